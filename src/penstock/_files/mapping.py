"""Maps several files into one range of addresses, without keeping their descriptors open.

Python's `mmap` keeps a duplicate of the descriptor for as long as the map exists, so 10,000 files would need
10,000 descriptors. Here, Python's `mmap` only reserves and frees the range. `mmap(2)` maps the files into the range.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from penstock._files.local import File
from penstock._memory.mapping import CAN_PLACE, copy_map, map_memory
from penstock._system.platform import SYSTEM

_NOTHING = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if CAN_PLACE else 0
_FIXED = 0x10  # MAP_FIXED, which the module mmap does not have


def mapped(files: Sequence[File]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Maps all files into one read-only array of bytes. Returns the array and each file's page-aligned offset."""
    sizes = np.array([file.size for file in files], np.int64)
    edges = np.concatenate([[0], (-(-sizes // mmap.PAGESIZE) * mmap.PAGESIZE).cumsum()])
    if not edges[-1]:
        return np.empty(0, np.uint8), edges[:-1]
    whole = reserved(int(edges[-1]))
    for file, start in zip(files, edges[:-1].tolist(), strict=True):
        map_file(file, whole.ctypes.data + start)
    return whole, edges[:-1]


def reserved(nbytes: int) -> NDArray[np.uint8]:
    """Reserves a range of addresses as a read-only array of zeros. Freeing the array also unmaps the files in it."""
    if not CAN_PLACE:
        raise OSError(errno.ENOTSUP, f"{SYSTEM} maps no files into a range of addresses")
    room = mmap.mmap(-1, nbytes, flags=_NOTHING, prot=mmap.PROT_READ)
    return np.frombuffer(room, np.uint8)  # keeps the map alive


def map_file(file: File, address: int) -> None:
    if not file.size:
        return
    descriptor = file.descriptor()
    file.check_unchanged(descriptor)  # it may have changed since it was opened
    flags = mmap.MAP_SHARED | _FIXED
    try:
        map_memory(address, file.size, mmap.PROT_READ, flags, descriptor.number, 0)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{file.path} cannot be mapped into memory: {error.strerror}. A process may have about 65,000 maps "
            "(vm.max_map_count): join small files into larger ones",
        ) from error


def map_again(memory: memoryview, address: int) -> bool:
    """Maps the file behind `memory` a second time, even if the file is deleted. Returns False if mapping fails."""
    try:
        copy_map(np.ndarray(1, np.uint8, memory).ctypes.data, len(memory), address)
    except OSError:
        clear(address, len(memory))  # the range must not have a hole
        return False
    return True


def clear(address: int, nbytes: int) -> None:
    """Unmaps a part of a reserved range. The unmapped part reads as zeros again."""
    with suppress(OSError):  # if there are too many maps, it stays mapped
        map_memory(address, nbytes, mmap.PROT_READ, _NOTHING | _FIXED, -1, 0)
