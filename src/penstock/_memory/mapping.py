"""Mapped memory that keeps no file descriptor.

`mmap.mmap` keeps a duplicate of the descriptor while the memory is mapped (Python 3.13 has an option against that). A
caller that keeps many large batches would run out of descriptors.

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
from typing import Any

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_FAILED = ctypes.c_void_p(-1).value


class Mapping:
    """`length` bytes of a file from `offset` on, shared; or private memory if `fd` is None.

    `buffer` is unmapped when neither this object nor an array refers to it any more.
    """

    def __init__(self, fd: int | None, length: int, offset: int = 0) -> None:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        flags = private if fd is None else mmap.MAP_SHARED
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, length, access, flags, -1 if fd is None else fd, offset)
        if address == _FAILED:
            error = ctypes.get_errno()
            raise MemoryError(
                f"{length} bytes of memory for batches could not be mapped: {os.strerror(error)}. Use smaller "
                "batches, a smaller prefetch_factor, or fewer workers, or keep fewer batches."
            )
        self._address, self._shared = address, fd is not None
        memory: Any = (ctypes.c_ubyte * length).from_address(address)
        array = np.frombuffer(memory, np.uint8)
        self.buffer = array.data  # not the array: views of an array that refers to it would refer to it alone
        # Not at the interpreter's exit: arrays may still use the memory then, and the system unmaps it anyway.
        weakref.finalize(array, _libc.munmap, address, length).atexit = False

    def discard(self, start: int, length: int) -> None:
        """Returns pages to the system; they read as zeros afterwards."""
        advice = mmap.MADV_REMOVE if self._shared else mmap.MADV_DONTNEED
        _libc.madvise(self._address + start, length, advice)
