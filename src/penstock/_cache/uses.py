"""Computes when each block is used next, from a loader's forecast (the keys that the loader will read)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import dropwhile, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.plan._forecast import Forecast
from penstock.plan._grouping import Grouping

_AT_ONCE = 1 << 16  # keys that are processed together
_MOST = 1 << 16  # the largest number of uses that are computed from single keys


class Uses(NamedTuple):
    """The next uses of blocks, sorted by `first`. Positions count the samples that the loader reads."""

    until: int  # the position at which the uses must be computed again
    blocks: NDArray[np.int64]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]  # the position after the last one that uses the block

    def before(self, number: int, position: int) -> Uses:
        """Returns the first `number` uses. These uses expire when the loader is halfway to the first omitted use."""
        until = max(position + 1, (position + int(self.first[number])) // 2)
        return Uses(min(self.until, until), self.blocks[:number], self.first[:number], self.stop[:number])


Blocked = tuple[Forecast, NDArray[np.int64]]
"""A dataset's forecast and block edges (the first key of each block, followed by the number of samples)."""


def uses(sources: Sequence[Blocked]) -> Uses:
    """Returns the uses of all blocks in this epoch and the next. Blocks are numbered across all `sources`."""
    forecast = sources[0][0].root.snapshot()
    position = forecast.position
    if not any(size for _, _, size in islice(forecast.epochs(), 2)):
        return Uses(position + 1, *_NOTHING)
    # The loader may be at the end of an epoch without having begun the next one.
    epochs = dropwhile(lambda epoch: epoch[1] + epoch[2] <= position, forecast.epochs())
    present, following = islice(epochs, 2)
    until, end = following[1], following[1] + following[2]
    blocks = [Grouping(edges) for _, edges in sources]
    if all(source.knows(its) for (source, _), its in zip(sources, blocks, strict=True)):
        parts = [part for start in (present, following) for part in _of_spans(sources, blocks, *start[:2])]
    else:
        # A forecast does not know when each block is needed, so only about the first `_MOST` uses are computed.
        parts, reached = _of_keys(forecast, sources, position, end)
        if reached < end:
            until = (position + reached) // 2
    found, first, stop = (np.concatenate(part) for part in zip(_NOTHING, *parts, strict=True))
    sort = np.argsort(first, kind="stable")
    return Uses(until, found[sort], first[sort], stop[sort])


_UseArrays = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
_NOTHING: _UseArrays = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)


def _of_spans(sources: Sequence[Blocked], blocks: Sequence[Grouping], epoch: int, start: int) -> Iterator[_UseArrays]:
    before = 0
    for (source, _), its in zip(sources, blocks, strict=True):
        numbers, first, stop = source.spans(its, epoch)
        yield before + numbers, start + first, start + stop
        before += len(its)


def _of_keys(forecast: Forecast, sources: Sequence[Blocked], at: int, end: int) -> tuple[list[_UseArrays], int]:
    """Returns up to about `_MOST` uses from position `at` onwards, and the position where the search stopped."""
    parts: list[_UseArrays] = []
    count = 0
    while at < end and count < _MOST:
        stop = min(at + _AT_ONCE, end)
        keys, before = forecast.keys(at, stop), 0
        for source, edges in sources:
            blocks = edges.searchsorted(source.inner(keys), "right") - 1  # -1: a key of another dataset
            # Consecutive keys in the same block are one use.
            begins = np.flatnonzero(np.diff(blocks, prepend=-1))
            ends = np.append(begins[1:], len(blocks))[: len(begins)]
            here = blocks[begins] >= 0
            parts.append((before + blocks[begins][here], at + begins[here], at + ends[here]))
            before, count = before + len(edges) - 1, count + int(here.sum())
        at = stop
    return parts, at
