"""The arena: the memory that all slabs are part of.

The processes of one loader share one file without a name (memfd). The file only grows, and is sparse: pages that were
never written take no memory. It is mapped in extents, each of which holds many small slabs or one large one. So there
is one descriptor, and few mappings, however many batches the caller keeps. The inline and thread backends use private
memory, in the same extents.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._memory.mapping import Mapping


class Region(NamedTuple):
    """Part of the arena: `capacity` bytes at `start` in the extent at offset `extent`, of `length` bytes."""

    extent: int
    length: int
    start: int
    capacity: int


class Arena:
    """Maps regions of one file, or of private memory where `fd` is None. Each process that uses it has its own."""

    def __init__(self, fd: int | None) -> None:
        self.fd = fd
        self._maps: dict[int, Mapping] = {}

    def root(self, region: Region) -> NDArray[np.uint8]:
        """A new array over the whole region. Every view of it keeps it alive."""
        mapping = self._maps.get(region.extent)
        if mapping is None:
            mapping = self._maps[region.extent] = Mapping(self.fd, region.length, region.extent)
        return np.frombuffer(mapping.buffer, np.uint8, region.capacity, region.start)

    def discard(self, region: Region) -> None:
        """Returns the region's pages to the system. The region stays mapped, and reads as zeros."""
        mapping = self._maps.get(region.extent)
        if mapping is not None:
            mapping.discard(region.start, region.capacity)
