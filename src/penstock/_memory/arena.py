"""The arena: the memory that all slabs are part of.

The processes of one loader share one file without a name (memfd). The file only grows, and is sparse: pages that were
never written take no memory. It is mapped in extents, each of which holds many small slabs or one large one. So there
is one descriptor, and few mappings, however many batches the caller keeps. The inline and thread backends use private
memory, in the same extents.

Memory is unmapped by a weak reference to a plain numpy array, and lent memory comes back by another (`lease.py`).
That is safe because the garbage collector does not track numpy arrays: such a reference is called when the array is
deallocated, and never while a finalizer could still bring the array back. For an object that the collector tracks,
such as a ctypes array, it is called before the finalizers run.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_ADDRESS, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _ADDRESS
_libc.mmap.argtypes = (_ADDRESS, _SIZE, _INT, _INT, _INT, ctypes.c_long)
_libc.munmap.argtypes = (_ADDRESS, _SIZE)
_libc.madvise.argtypes = (_ADDRESS, _SIZE, _INT)

_FAILED = _ADDRESS(-1).value


def mapped(fd: int | None, length: int, offset: int = 0) -> memoryview:
    """A buffer over `length` bytes of a file from `offset` on, shared; or over private memory if `fd` is None.

    It is unmapped when nothing refers to it any more, and keeps no descriptor. `mmap.mmap` keeps one for each mapping
    (Python 3.13 has an option against that), and a caller with many large batches would run out of them.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if fd is None else mmap.MAP_SHARED
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(None, length, access, flags, -1 if fd is None else fd, offset)
    if address == _FAILED:
        raise MemoryError(
            f"{length} bytes of memory for batches could not be mapped: {os.strerror(ctypes.get_errno())}. Use "
            "smaller batches, a smaller prefetch_factor, or fewer workers, or keep fewer batches."
        )
    memory: Any = (ctypes.c_ubyte * length).from_address(address)
    array = np.frombuffer(memory, np.uint8)
    # Not at the interpreter's exit: arrays may still use the memory then, and the system unmaps it anyway.
    weakref.finalize(array, _libc.munmap, address, length).atexit = False
    return array.data  # not the array: views of its views would keep it alive, and not the view that is lent


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
        self._extents: dict[int, memoryview] = {}

    def root(self, region: Region) -> NDArray[np.uint8]:
        """A new array over the whole region. Every view of it keeps it alive."""
        buffer = self._extents.get(region.extent)
        if buffer is None:
            buffer = self._extents[region.extent] = mapped(self.fd, region.length, region.extent)
        return np.frombuffer(buffer, np.uint8, region.capacity, region.start)

    def discard(self, region: Region) -> None:
        """Returns the region's pages to the system. The region stays mapped, and reads as zeros."""
        buffer = self._extents.get(region.extent)
        if buffer is not None:
            advice = mmap.MADV_DONTNEED if self.fd is None else mmap.MADV_REMOVE
            address = np.frombuffer(buffer, np.uint8).ctypes.data
            _libc.madvise(address + region.start, region.capacity, advice)
