"""Mapped memory that keeps no file descriptor.

`mmap.mmap` keeps a duplicate of the descriptor while the memory is mapped (Python 3.13 has an option against that). A
caller that keeps many large batches would run out of descriptors.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

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
        self.buffer: Any = (ctypes.c_ubyte * length).from_address(address)
        # Not at the interpreter's exit: arrays may still use the memory then, and the system unmaps it anyway.
        weakref.finalize(self.buffer, _libc.munmap, address, length).atexit = False

    def discard(self, start: int, length: int) -> None:
        """Returns pages to the system; they read as zeros afterwards."""
        advice = mmap.MADV_REMOVE if self._shared else mmap.MADV_DONTNEED
        _libc.madvise(self._address + start, length, advice)
