"""What is counted of a cache."""

from __future__ import annotations


class CacheCounts:
    """The counters of one worker, or of one scout.

    `hits`: pieces that were there when they were asked for. `misses`: those that were waited for, for `waited`
    nanoseconds in all. `fetched`: those that were fetched here, of `nbytes` bytes, ahead of time or not. `evicted`:
    those that were deleted to make room. `changed`: something was counted since somebody has set this to False.
    """

    __slots__ = ("changed", "evicted", "fetched", "hits", "misses", "nbytes", "waited")

    def __init__(
        self, hits: int = 0, misses: int = 0, waited: int = 0, fetched: int = 0, nbytes: int = 0, evicted: int = 0
    ) -> None:
        self.hits, self.misses, self.waited = hits, misses, waited
        self.fetched, self.nbytes, self.evicted = fetched, nbytes, evicted
        self.changed = False

    def add(self, other: CacheCounts) -> None:
        for name in self.__slots__[1:]:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def words(self) -> tuple[int, int, int, int, int, int]:
        return self.hits, self.misses, self.waited, self.fetched, self.nbytes, self.evicted
