"""The pool: which region of the arena each slab has, and how large the next ones must be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock._memory.arena import EXTENT, Arena, Region

# How many bytes may be bundled in one slab, where a batch alone does not need more.
BUNDLE = 4 << 20

# What a batch needs beside its bytes: the reply that tells of it, and room to align it.
_BESIDE = 256


class Pool:
    """Slabs by id. The scheduler decides which slab is used when; the pool gives it memory."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._regions: dict[int, Region] = {}
        self.largest = 0  # bytes, of one batch

    def region(self, slab: int, at_least: int, count: int = 1, most: int = 1) -> Region:
        """The memory of a slab for `count` batches, which nobody uses now: larger than before if it must be.

        Before the first batch is known a slab is as large as an extent, and later it has room for `most` batches,
        as far as these may be bundled: its pages are taken only as they are written, so a generous guess costs
        nothing.
        """
        wanted = max(self.largest * count, at_least) + _BESIDE * count
        region = self._regions.get(slab)
        if region is not None and region.capacity >= wanted:
            return region
        if region is not None:
            self.arena.discard(region)
        room = max(wanted, min(self.largest * most, BUNDLE) + _BESIDE * most)
        capacity = room + room // 4 if self.largest else max(EXTENT, wanted)
        region = self._regions[slab] = self.arena.carve(capacity)
        return region

    def root(self, slab: int) -> NDArray[np.uint8]:
        """A fresh array over the memory of a slab."""
        return self.arena.root(self.region(slab, 0))

    def learn(self, nbytes: int) -> None:
        """A batch took this many bytes: slabs handed out from now on hold at least as much."""
        if nbytes > self.largest:
            self.largest = nbytes

    def cool(self, slab: int) -> None:
        """The slab's pages go back to the system; the next use of it faults them in again."""
        region = self._regions.get(slab)
        if region is not None:  # else it was named for a step that turned out not to exist
            self.arena.discard(region)
