"""Computes which keys are in which block, for a dataset that contains other datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.plan._blocks import BlockOrder
from penstock.plan._order import Order, Selected

KeyArray = NDArray[np.int64]


class Grouping:
    """The keys of a dataset, grouped by block. Block b has `keys[edges[b]:edges[b + 1]]`.

    If `keys` is None, block b has the keys `edges[b]` to `edges[b + 1] - 1`. `of(keys)` returns the block number of
    each key.
    """

    def __init__(
        self, edges: KeyArray, keys: KeyArray | None = None, of: Callable[[KeyArray], KeyArray] | None = None
    ) -> None:
        self.edges, self.keys = edges, keys
        self.of = of or self._searched

    def _searched(self, keys: KeyArray) -> KeyArray:
        return self.edges.searchsorted(keys, "right") - 1

    def __len__(self) -> int:
        return len(self.edges) - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grouping):
            return NotImplemented
        return _equal(self.edges, other.edges) and _equal(self.keys, other.keys)

    __hash__ = None  # type: ignore[assignment]

    def order(self, window: int, seed: int) -> Order:
        """Returns a random order of all keys that needs at most `window` blocks at a time."""
        order = BlockOrder(self.edges, window, seed)
        return order if self.keys is None else Selected(order, self.keys)

    def is_of(self, order: Order) -> bool:
        base: Any
        base, keys = (order.order, order.keys) if isinstance(order, Selected) else (order, None)
        return hasattr(base, "spans") and _equal(base.edges, self.edges) and _equal(keys, self.keys)


def _equal(one: KeyArray | range | None, other: KeyArray | range | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


class InnerBlocks(NamedTuple):
    """Maps block b of a wrapper to block `numbers[b]` of a wrapped dataset (-1: b is not in that dataset)."""

    outer: Grouping
    inner: Grouping
    numbers: KeyArray


def chosen(inner: Grouping, indices: KeyArray) -> InnerBlocks:
    """Returns the blocks of a subset: samples from the same block of the wrapped dataset form one block."""
    last = max(0, len(inner) - 1)
    of = inner.of(indices).clip(0, last)  # an index that does not exist fails when it is read
    counts = np.bincount(of, minlength=len(inner))
    numbers = np.flatnonzero(counts)
    edges = np.concatenate([[0], counts[numbers].cumsum()]).astype(np.int64)
    keys = None if (np.diff(of) >= 0).all() else of.argsort(kind="stable")
    ours = np.full(len(counts), -1)
    ours[numbers] = np.arange(len(numbers))
    return InnerBlocks(
        Grouping(edges, keys, lambda keys: ours[inner.of(indices[keys]).clip(0, last)]), inner, numbers
    )


def joined(parts: Sequence[Grouping]) -> Grouping:
    firsts = np.cumsum([0, *(part.edges.item(-1) for part in parts)])
    blocks = np.cumsum([0, *map(len, parts)])

    def of(keys: KeyArray) -> KeyArray:
        numbers, places = np.empty(len(keys), np.int64), firsts.searchsorted(keys, "right") - 1
        for place in np.unique(places.clip(0, len(parts) - 1)).tolist():
            here = places == place
            numbers[here] = blocks[place] + parts[place].of(keys[here] - firsts[place])
        return numbers

    pairs = list(zip(firsts.tolist(), parts, strict=False))
    edges = np.concatenate([*(first + part.edges[:-1] for first, part in pairs), firsts[-1:]])
    if all(part.keys is None for part in parts):
        return Grouping(edges, None, of)
    keys = [first + (np.arange(part.edges[-1]) if part.keys is None else part.keys) for first, part in pairs]
    return Grouping(edges, np.concatenate(keys), of)
