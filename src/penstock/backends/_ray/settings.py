"""Checks `ray_options=` and adds the defaults. This module can be imported without Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from penstock._work.job import Job
from penstock.backends._base import Backend

PATIENCE = 10.0
"""The default `patience`: if no worker starts within this many seconds, the backend raises an error."""

# Options of actors, by Ray's names; the last is ours.
NAMES = ("num_cpus", "num_gpus", "memory", "resources", "runtime_env", "scheduling_strategy", "patience")


def resolved(given: Any) -> dict[str, Any]:
    """Returns the options with defaults added. Raises an error for an unknown option or a wrong value."""
    given = {} if given is None else given
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


def on_cluster(job: Job, given: Any) -> Backend:
    from penstock.backends._ray.backend import start

    options = resolved(given)
    try:
        from penstock.backends._ray.cluster import RayCluster
    except ImportError as error:
        remedy = 'pip install ".[ray]" in a clone of penstock'
        raise RuntimeError(f'backend="ray" needs Ray ({error}): {remedy}.') from error
    patience = options.pop("patience")
    return start(job, RayCluster(options), patience)


def workers_that_fit(given: Any) -> int | None:
    try:
        from penstock.backends._ray.cluster import actors_that_fit
    except ModuleNotFoundError:
        return None
    return actors_that_fit(resolved(given))
