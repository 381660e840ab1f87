"""Slabs: memory by number. The scheduler decides which slab is used when; its memory is found here."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from penstock._memory.arena import Arena, Region

# Bytes of address space: an extent takes memory as its pages are written.
EXTENT = 64 << 20

# Largest number of bytes that is bundled into one slab, unless one batch alone needs more.
BUNDLE = 4 << 20

# Bytes that a batch needs beside its arrays: for the reply that describes it, and for alignment.
_BESIDE = 256


class Slabs:
    """The memory of each slab, in an arena on the file `fd`, or in private memory if that is None."""

    def __init__(self, fd: int | None) -> None:
        self.arena = Arena(fd)
        self.largest = 0  # bytes of the largest batch so far
        self._end = 0
        self._regions: dict[int, Region] = {}
        self._unused: dict[int, Iterator[Region]] = {}  # by capacity

    def region(self, slab: int, at_least: int = 0, count: int = 1, most: int = 1) -> Region:
        """Where a free slab has its memory; moved to a larger region if `count` batches would not fit.

        Before the size of a batch is known, a slab is as large as an extent. Later it has room for `most` batches, up
        to the limit for bundles. A generous size costs nothing, because pages are allocated when they are written.
        """
        wanted = max(self.largest * count, at_least) + _BESIDE * count
        region = self._regions.get(slab)
        if region is not None and region.capacity >= wanted:
            return region
        if region is not None:
            self.arena.discard(region)
        room = max(wanted, min(self.largest * most, BUNDLE) + _BESIDE * most)
        capacity = room + room // 4 if self.largest else max(EXTENT, wanted)
        region = self._regions[slab] = self._carve(capacity)
        return region

    def root(self, slab: int, at_least: int = 0) -> NDArray[np.uint8]:
        """A new array over the memory of a free slab, with room for one batch of `at_least` bytes."""
        return self.arena.root(self.region(slab, at_least))

    def learn(self, nbytes: int) -> None:
        """Notes the size of a batch: slabs have room for at least as many bytes from now on."""
        if nbytes > self.largest:
            self.largest = nbytes

    def cool(self, slab: int) -> None:
        """Returns the slab's pages to the system. The next use of the slab allocates them again."""
        region = self._regions.get(slab)
        if region is not None:  # a slab may have been named for a step that turned out not to exist
            self.arena.discard(region)

    def _carve(self, capacity: int) -> Region:
        """A region of at least `capacity` bytes that was never used before."""
        capacity = max(mmap.PAGESIZE, -(-capacity // mmap.PAGESIZE) * mmap.PAGESIZE)
        region = next(self._unused.get(capacity, iter(())), None)
        if region is not None:
            return region
        extent, length = self._end, max(1, EXTENT // capacity) * capacity
        self._end += length
        if self.arena.fd is not None:
            os.ftruncate(self.arena.fd, self._end)
        # A generator: an extent may hold ten thousand regions, few of which are ever used.
        regions = (Region(extent, length, start, capacity) for start in range(0, length, capacity))
        self._unused[capacity] = regions
        return next(regions)
