"""What is counted of remote files, their cache, and the blocks of tables."""

from __future__ import annotations

from penstock._at_work import Source, at_work


class CacheCounts:
    """The counters of one worker, or of the scouts of a loader.

    `hits`: pieces that were there when they were asked for. `misses`: those that were not, for which the worker
    waited, for `waited` nanoseconds in all. `fetched`: those that were fetched here, ahead of time or not. `evicted`:
    those that were deleted to make room. `requests`: to stores, of which `retries` were repetitions; `nbytes`: bytes
    that came. `decoded`: blocks that were decoded. `changed`: something was counted since this was set to False.
    """

    NAMES = "hits", "misses", "waited", "fetched", "evicted", "requests", "retries", "nbytes", "decoded"
    __slots__ = (*NAMES, "changed")

    def __init__(self, *counts: int) -> None:
        self.hits = self.misses = self.waited = self.fetched = self.evicted = 0
        self.requests = self.retries = self.nbytes = self.decoded = 0
        self.changed = False
        for name, number in zip(self.NAMES, counts, strict=False):
            setattr(self, name, number)

    def words(self) -> list[int]:
        return [getattr(self, name) for name in self.NAMES]


outside = CacheCounts()
"""What was counted in threads that belong to no worker and no scout."""


class Counting(Source):
    """Makes a thread count for these counters: see `working_at`."""

    def __init__(self, counts: CacheCounts) -> None:
        self._counts = counts

    @property
    def cache(self) -> CacheCounts:
        return self._counts


def counting() -> CacheCounts:
    """The counters of the worker or scout that this thread belongs to.

    Threads share them without a lock: under the GIL, `counts.hits += 1` is atomic if what is added calls nothing (see
    `_interrupts` on where a thread may be interrupted). So add a constant or a local variable.
    """
    source = at_work.source
    counts = None if source is None else source.cache
    if counts is None:
        return outside
    counts.changed = True
    return counts
