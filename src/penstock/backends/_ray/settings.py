"""`ray_options=`: what actors want of the cluster. Nothing here needs ray."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

PATIENCE = 10.0
"""Seconds until it is an error that no worker has found a place."""

# For actors, by Ray's names; the last is ours.
NAMES = ("num_cpus", "num_gpus", "memory", "resources", "runtime_env", "scheduling_strategy", "patience")


def check(given: Any) -> dict[str, Any]:
    """The options for actors, with their defaults; raises if one is not known."""
    if not isinstance(given, Mapping):
        raise TypeError(f"ray_options must be a mapping of names to values, got {type(given).__name__}.")
    unknown = [name for name in given if name not in NAMES]
    if unknown:
        raise ValueError(f"ray_options has no {unknown[0]!r}: its names are {', '.join(NAMES)}.")
    options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "patience": PATIENCE, **given}
    patience = options["patience"]
    if isinstance(patience, bool) or not isinstance(patience, (int, float)) or not 0 < patience <= math.inf:
        raise ValueError(f'ray_options["patience"] must be a positive number of seconds, got {patience!r}.')
    return options
