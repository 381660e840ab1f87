"""Functions that make a batch from samples: `default_collate`, and `pad` for samples of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock._fill.collate import collate
from penstock._fill.pad import pad

__all__ = ["default_collate", "pad"]


def default_collate(samples: Sequence[object]) -> Any:
    """Returns the batch that a loader without a `collate_fn` makes from these samples.

    Numbers, and arrays of equal shape, are stacked, so that the batch has one row for each sample. Values of type str
    or bytes become a list. dicts, lists, tuples, namedtuples and dataclasses keep their class and are collated field
    by field. Values that cannot be stacked raise `CollateError`, which names the field, the rows and a remedy. Call
    this function from your own `collate_fn` to treat some fields differently.

    >>> batch = default_collate([{"x": 1.5, "name": "a"}, {"x": 2.5, "name": "b"}])
    >>> batch["x"].tolist(), batch["name"]
    ([1.5, 2.5], ['a', 'b'])
    """
    return collate(samples, np.empty)
