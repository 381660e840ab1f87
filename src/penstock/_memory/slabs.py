"""Slabs: memory by number, and the leases of those that are lent to the caller.

The scheduler decides which slab is used when; its memory is found here.

All slabs are part of an arena. The processes of one loader share one file without a name (memfd), which only grows,
and is sparse: pages that were never written take no memory. It is mapped in extents, each of which holds many small
slabs or one large one. So there is one descriptor, and few mappings, however many batches the caller keeps. Inline
and thread backends use private memory, in the same extents.

Memory is unmapped by a weak reference to a plain numpy array, and lent memory comes back by another, a lease.
That is safe because the garbage collector does not track numpy arrays: such a reference is called when the array is
deallocated, and never while a finalizer could still bring the array back. For an object that the collector tracks,
such as a ctypes array, it is called before the finalizers run.

In numpy every view refers to the array that owns the memory: here the root of the slab. torch and DLPack refer to
the numpy array. So a weak reference to the root is called exactly once: when no object of this process can reach the
slab any more.

A child process that the program forks has the lent batches too, in the same memory, and may read them for as long as
it lives. Hence a slab that is lent when the program forks is never used again.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._interrupts import Living, call_at_end, interrupts_deferred

# Bytes of address space: an extent takes memory as its pages are written.
EXTENT = 64 << 20

# Largest number of bytes that is bundled into one slab, unless one batch alone needs more.
BUNDLE = 4 << 20

# Bytes that a batch needs beside its arrays: for the reply that describes it, and for alignment.
_BESIDE = 256

_ADDRESS, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = _ADDRESS
_libc.mmap.argtypes = (_ADDRESS, _SIZE, _INT, _INT, _INT, ctypes.c_long)
_libc.mremap.argtypes = (_ADDRESS, _SIZE, _SIZE, _INT, _ADDRESS)
_libc.munmap.argtypes = (_ADDRESS, _SIZE)
_libc.madvise.argtypes = (_ADDRESS, _SIZE, _INT)

_FAILED = _ADDRESS(-1).value
_COPY = 1 | 2  # MREMAP_MAYMOVE and MREMAP_FIXED


def map_memory(address: int | None, length: int, access: int, flags: int, fd: int, offset: int) -> int:
    """Calls mmap(2), and returns the address. Raises OSError."""
    found: int = _libc.mmap(address, length, access, flags, fd, offset)
    if found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found


def copy_map(address: int, length: int, to: int) -> None:
    """Maps what is mapped at an address, shared, at another one as well: mremap(2) of 0 bytes. Raises OSError."""
    if _libc.mremap(address, 0, length, _COPY, to) == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def grow(fd: int, size: int) -> None:
    """Gives a file so many bytes of address space. Its memory is allocated as its pages are written."""
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


def mapped(fd: int | None, length: int, offset: int = 0, *, writable: bool = True) -> memoryview:
    """A buffer over `length` bytes of a file from `offset` on, shared; or over private memory if `fd` is None.

    It is unmapped when nothing refers to it any more, and keeps no descriptor. `mmap.mmap` keeps one for each mapping
    (Python 3.13 has an option against that), and a caller with many large batches would run out of them.
    """
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
        array = np.frombuffer(memory, np.uint8)
        memory.end = call_at_end(array, partial(_libc.munmap, address, length))  # lives as long as the array
        # Not the array: views of its views would keep it alive, and not the view that is lent.
        return array.data


class Region(NamedTuple):
    """Part of the arena: `capacity` bytes at `start` in the extent at offset `extent`, of `length` bytes."""

    extent: int
    length: int
    start: int
    capacity: int


class Arena:
    """Maps regions of one file, or of private memory if `fd` is None. Each process that uses it has its own."""

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
        if region is not None:
            if region.capacity >= wanted:
                return region
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

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the slabs take; an estimate for private memory."""
        if self.arena.fd is not None:
            return os.fstat(self.arena.fd).st_blocks * 512
        return self.largest * len(self._regions)

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
            grow(self.arena.fd, self._end)
        # A generator: an extent may hold ten thousand regions, few of which are ever used.
        regions = (Region(extent, length, start, capacity) for start in range(0, length, capacity))
        self._unused[capacity] = regions
        return next(regions)


class _Lease(weakref.ref):  # type: ignore[type-arg]  # a generic base cannot have slots added
    __slots__ = ("nbytes", "slab")

    slab: int
    nbytes: int


class Leases:
    """The slabs that are lent, and those that came back since the last `collect`."""

    def __init__(self, shared: bool = True) -> None:
        self._lent: dict[int, _Lease] = {}
        self._returned: deque[_Lease | int] = deque()
        # Private memory needs no care at a fork: the system copies a page when parent or child writes to it.
        if shared:
            _all.add(self)

    def lend(self, slab: int, root: NDArray[np.uint8], nbytes: int = 0) -> None:
        # Called in the thread that drops the last view, at any instruction, perhaps inside the garbage collector.
        # deque.append is atomic (guaranteed by the GIL), and takes no lock of ours.
        lease = _Lease(root, self._returned.append)
        lease.slab, lease.nbytes = slab, nbytes
        self._lent[slab] = lease

    @property
    def lent(self) -> int:
        """How many slabs are lent."""
        return len(self._lent)

    @property
    def nbytes(self) -> int:
        """How many bytes of batches are lent."""
        return sum(lease.nbytes for lease in tuple(self._lent.values()))

    def give_back(self, slab: int) -> None:
        """Returns a slab that was delivered without any array in it."""
        self._returned.append(slab)

    def collect(self) -> list[int]:
        """The slabs that came back since the last call."""
        slabs = []
        while self._returned:
            back = self._returned.popleft()
            slab = back if isinstance(back, int) else back.slab
            self._lent.pop(slab, None)
            slabs.append(slab)
        return slabs


_all = Living[Leases]()

own_fork = threading.local()
"""While `own_fork.now` is true, penstock itself forks a worker, which reads no batch."""


def _retire_all() -> None:
    if not getattr(own_fork, "now", False):
        for leases in _all:
            leases._lent.clear()  # without its reference, a slab is never reported as returned


os.register_at_fork(after_in_parent=_retire_all)
