"""Maps files into memory without keeping a descriptor of each: several files in one range of addresses.

Python's `mmap` keeps a duplicate of the descriptor for as long as the map lives, so that 10,000 files would need
10,000 descriptors. Here Python's `mmap` reserves the range, and frees it in the end; files are mapped into it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock._memory.slabs import map_memory
from penstock.formats._files import File

_FIXED = 0x10  # MAP_FIXED, which the module mmap does not have


def mapped(files: Sequence[File]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of all files as one read-only array, and where each file begins in it: at a multiple of a page."""
    sizes = np.array([file.size for file in files], np.int64)
    edges = np.concatenate([[0], (-(-sizes // mmap.PAGESIZE) * mmap.PAGESIZE).cumsum()])
    if not edges[-1]:
        return np.empty(0, np.uint8), edges[:-1]
    room = mmap.mmap(-1, int(edges[-1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    whole = np.frombuffer(room, np.uint8)  # keeps the map
    address = whole.ctypes.data
    for file, start in zip(files, edges[:-1].tolist(), strict=True):
        if file.size:
            _map(file, address + start)
    return whole, edges[:-1]


def _map(file: File, address: int) -> None:
    descriptor = file.descriptor()
    file.check_unchanged(descriptor)  # it may have been opened long ago
    flags = mmap.MAP_SHARED | _FIXED
    try:
        map_memory(address, file.size, mmap.PROT_READ, flags, descriptor.number, 0)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{file.path} cannot be mapped into memory: {error.strerror}. A process may have about 65,000 maps "
            "(vm.max_map_count): join small files into larger ones",
        ) from error
