"""`penstock.default_collate`: what a loader does with samples when no `collate_fn` is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock._fill.collate import collate

__all__ = ["default_collate"]


def default_collate(samples: Sequence[object]) -> Any:
    """The batch that a loader makes of these samples when no `collate_fn` is given.

    Numbers and equally shaped arrays are stacked into arrays with one row for each sample; str and
    bytes stay as a list; dicts, lists, tuples, namedtuples and dataclasses keep their class and are
    collated field by field. What cannot be stacked raises `CollateError`, which names the field, the
    rows and the remedy. Call it from a `collate_fn` of your own to treat some fields by hand.

    >>> batch = default_collate([{"x": 1.5, "name": "a"}, {"x": 2.5, "name": "b"}])
    >>> batch["x"].tolist(), batch["name"]
    ([1.5, 2.5], ['a', 'b'])
    """
    return collate(samples, np.empty)
