"""What is counted of a cache."""

from __future__ import annotations


class CacheCounts:
    """The counters of one worker, or of one scout.

    `hits`: pieces that were there when they were asked for. `misses`: those that were waited for, for `waited`
    nanoseconds in all. `fetched`: those that were fetched here, of `nbytes` bytes, ahead of time or not. `evicted`:
    those that were deleted to make room. `retries`: requests that were repeated. `decoded`: blocks that were decoded.
    `changed`: something was counted since somebody has set this to False.
    """

    NAMES = "hits", "misses", "waited", "fetched", "nbytes", "evicted", "retries", "decoded"
    __slots__ = (*NAMES, "changed")

    def __init__(self, *counts: int) -> None:
        self.hits = self.misses = self.waited = self.fetched = self.nbytes = 0
        self.evicted = self.retries = self.decoded = 0
        self.changed = False
        for name, number in zip(self.NAMES, counts, strict=False):
            setattr(self, name, number)

    def add(self, other: CacheCounts) -> None:
        for name in self.NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def words(self) -> list[int]:
        return [getattr(self, name) for name in self.NAMES]
