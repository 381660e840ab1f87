"""Maps memory with mmap(2) and related calls, without the file descriptor that `mmap.mmap` keeps for each mapping."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._system.interrupts import free_at_end, interrupts_deferred
from penstock._system.platform import resource

_ADDRESS, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

CAN_PLACE = hasattr(mmap, "MAP_PRIVATE")
"""True if memory can be mapped at a given address. False on Windows, where penstock maps no files."""

_libc: Any = ctypes.CDLL(None, use_errno=True) if CAN_PLACE else None


def _function(name: str, returns: Any, *takes: Any) -> Any:
    """Returns a function of the C library, or None if the system does not have this function."""
    found = getattr(_libc, name, None)
    if found is not None:
        found.restype, found.argtypes = returns, takes
    return found


_mmap = _function("mmap", _ADDRESS, _ADDRESS, _SIZE, _INT, _INT, _INT, ctypes.c_long)
_mremap = _function("mremap", _ADDRESS, _ADDRESS, _SIZE, _SIZE, _INT, _ADDRESS)  # only Linux has it
unmap = _function("munmap", _INT, _ADDRESS, _SIZE)
advise = _function("madvise", _INT, _ADDRESS, _SIZE, _INT)

_FAILED = _ADDRESS(-1).value
_COPY = 1 | 2  # MREMAP_MAYMOVE and MREMAP_FIXED


def map_memory(address: int | None, length: int, access: int, flags: int, fd: int, offset: int) -> int:
    found: int = _mmap(address, length, access, flags, fd, offset)
    if found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found


def copy_map(address: int, length: int, to: int) -> None:
    """Maps shared memory a second time, at the address `to`, by calling mremap(2) with an old size of 0."""
    if _mremap is None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    if _mremap(address, 0, length, _COPY, to) == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def grow(fd: int, size: int) -> None:
    """Sets the size of a file. Memory is allocated only when a page of the file is written."""
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        raise OSError(
            error.errno,
            f"Shared memory for batches needs {size:,} bytes, but no file of this process may have more than "
            f"{most:,} (ulimit -f, which counts shared memory too). Raise that limit before Python starts, as by "
            '"ulimit -f unlimited"; or use backend="thread" or num_workers=0, which need no shared memory.',
        ) from None


def mapped(fd: int | None, length: int, offset: int = 0, *, writable: bool = True) -> Any:
    """Maps part of a file as shared memory, or maps private memory if `fd` is None.

    The result is a ctypes array, for `np.frombuffer`, `view_of` and `struct`. The memory stays mapped until the last
    reference to the result is gone.
    """
    if not CAN_PLACE:
        return mmap.mmap(-1, length)
    # Not mmap.mmap, which keeps a descriptor for each mapping: a caller with many large batches would run out of
    # them. (Python 3.13 can avoid it.)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if fd is None else mmap.MAP_SHARED
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    with interrupts_deferred():
        try:
            address = map_memory(None, length, access, flags, -1 if fd is None else fd, offset)
        except OSError as error:
            raise MemoryError(
                f"{length} bytes of memory for batches could not be mapped: {error.strerror}. Use smaller batches, a "
                "smaller prefetch_factor, or fewer workers, or keep fewer batches."
            ) from error
        memory: Any = (ctypes.c_ubyte * length).from_address(address)
        array: Any = np.frombuffer(memory, np.uint8)
        free_at_end(array, partial(unmap, address, length))
        # Not the array itself, because views of views would refer to it, and not to the view that is lent. And not a
        # memoryview: CPython counts all views of a memoryview in one number, without a lock. If threads make and drop
        # views at the same time and there is no GIL, that number may reach 0 while some of the views are in use.
        return (ctypes.c_ubyte * length).from_buffer(array)


def view_of(memory: Any, *, writable: bool = True) -> memoryview:
    """Returns a view of mapped memory. Several threads may read and set its items, but only one may slice it."""
    array: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
    array.flags.writeable = writable
    return array.data
