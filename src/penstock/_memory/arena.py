"""The arena: all the memory that slabs are carved from.

A crew of processes shares one file without a name (memfd). The file only ever grows, and is sparse:
what nobody wrote to costs nothing. It is mapped in extents, each holding many small slabs or one
large one, so the number of descriptors is one and the number of mappings stays small however many
batches a caller keeps. The in-process backends use private memory, in the same extents.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._memory.mapping import Mapping

PAGE = mmap.PAGESIZE

# Address space only: an extent takes pages when they are written to.
EXTENT = 64 << 20


class Region(NamedTuple):
    """A piece of the arena: `capacity` bytes at `start` in the extent that begins at `extent`."""

    extent: int
    length: int
    start: int
    capacity: int


class Arena:
    """Slabs are carved out of it by its owner, and mapped from it by every process that has `fd`."""

    def __init__(self, fd: int | None) -> None:
        self.fd = fd
        self._end = 0
        self._maps: dict[int, Mapping] = {}
        self._unused: dict[int, Iterator[Region]] = {}

    def carve(self, capacity: int) -> Region:
        """A region of at least `capacity` bytes that was never carved before."""
        capacity = max(PAGE, -(-capacity // PAGE) * PAGE)
        region = next(self._unused.get(capacity, iter(())), None)
        if region is not None:
            return region
        extent, length = self._end, max(1, EXTENT // capacity) * capacity
        self._end += length
        if self.fd is not None:
            os.ftruncate(self.fd, self._end)
        # One after the other: there may be ten thousand, of which few are ever asked for.
        regions = (Region(extent, length, start, capacity) for start in range(0, length, capacity))
        self._unused[capacity] = regions
        return next(regions)

    def root(self, region: Region) -> NDArray[np.uint8]:
        """A fresh array over the whole region. Every view made from it keeps it alive."""
        mapping = self._maps.get(region.extent)
        if mapping is None:
            mapping = self._maps[region.extent] = Mapping(self.fd, region.length, region.extent)
        return np.frombuffer(mapping.buffer, np.uint8, region.capacity, region.start)

    def discard(self, region: Region) -> None:
        """Gives the region's pages back to the system. It stays mapped, and reads as zeros."""
        mapping = self._maps.get(region.extent)
        if mapping is not None:
            mapping.discard(region.start, region.capacity)
