"""When each block is used next, from the forecast of a loader."""

from __future__ import annotations

from itertools import dropwhile, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.plan._forecast import Forecast

_AT_ONCE = 1 << 16  # keys that are looked at together
_MOST = 1 << 16  # uses that are known at a time, if they follow from keys


class Uses(NamedTuple):
    """The next uses of blocks: from the position `first` to before `stop`. They are sorted by `first`.

    Look them up again when the loader has come to the position `until`.
    """

    until: int
    blocks: NDArray[np.int64]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]

    def before(self, number: int, position: int) -> Uses:
        """The uses before this one, for a loader at this position."""
        until = max(position + 1, (position + int(self.first[number])) // 2)
        return Uses(min(self.until, until), self.blocks[:number], self.first[:number], self.stop[:number])


def uses(forecast: Forecast, edges: NDArray[np.int64]) -> Uses:
    """The uses in the present epoch and the next; if they follow from single keys, those that come first.

    `edges`: the first key of each block, and the end.
    """
    forecast = forecast.snapshot()
    position = forecast.position
    if not edges[-1]:
        return Uses(position + 1, *_NOTHING)
    # The loader may be at the end of an epoch, and not have begun the next.
    epochs = dropwhile(lambda epoch: epoch[1] + epoch[2] <= position, forecast.epochs())
    present, following = islice(epochs, 2)
    order: Any = forecast.order
    until = following[1]
    if hasattr(order, "spans") and np.array_equal(order.edges, edges):
        some = np.flatnonzero(np.diff(edges))  # a block may be empty
        spans = [(start, *order.spans(epoch)) for epoch, start, _ in (present, following)]
        parts = [(some, start + first[some], start + stop[some]) for start, first, stop in spans]
    else:
        parts, end = _of_keys(forecast, edges, position, following[1] + following[2])
        if end < following[1] + following[2]:
            until = (position + end) // 2
    blocks, first, stop = (np.concatenate(part) for part in zip(_NOTHING, *parts, strict=True))
    sort = np.argsort(first, kind="stable")
    return Uses(until, blocks[sort], first[sort], stop[sort])


_Part = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
_NOTHING: _Part = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)


def _of_keys(
    forecast: Forecast, edges: NDArray[np.int64], at: int, end: int
) -> tuple[list[_Part], int]:
    """Each run of keys of the same block is a use. Up to `end`, or until there are many."""
    parts: list[_Part] = []
    count = 0
    while at < end and count < _MOST:
        stop = min(at + _AT_ONCE, end)
        blocks = edges.searchsorted(forecast.keys(at, stop), "right") - 1
        begins = np.flatnonzero(np.diff(blocks, prepend=-1))
        parts.append((blocks[begins], at + begins, at + np.append(begins[1:], len(blocks))))
        at, count = stop, count + len(begins)
    return parts, at
