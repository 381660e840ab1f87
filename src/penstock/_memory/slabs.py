"""Slabs are numbered pieces of memory for batches. Leases keep track of the slabs that are on loan to the caller.

The scheduler decides when each slab is used, and this module provides the memory.

All slabs are part of an arena. The processes of one loader share one unnamed file (a memfd), which only grows and is
sparse: pages that were never written take no memory. The file is mapped in extents, each for many small slabs or one
large slab. So one descriptor and few mappings suffice, however many batches the caller keeps. The inline and thread
backends use private memory, which is divided into extents in the same way.

Weak references to plain numpy arrays show when memory can be unmapped. A lease is also such a weak reference, and
shows when a slab comes back from the caller. A weak reference to a numpy array is safe, because the garbage collector
does not track numpy arrays: the reference's callback is called when the array is deallocated, and never while a
finalizer could still bring the array back. For an object that the collector tracks, such as a ctypes array, the
callback would come before the finalizers.

In numpy, every view refers to the array that owns the memory, here the slab's root array. torch tensors and DLPack
capsules refer to the numpy array. So the callback for the root is called exactly once, when no object of this process
can reach the slab any more.

After a fork, the child shares the memory of the batches on loan, and may read these batches until it ends. So a
slab that is on loan at a fork is used again only after the child has ended.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._memory import forks
from penstock._memory.mapping import CAN_PLACE, advise, grow, mapped
from penstock._system.interrupts import LiveObjects
from penstock._system.platform import HAS_PROCESSES, register_at_fork

# Bytes of address space. An extent takes memory only when its pages are written.
EXTENT = 64 << 20

# The largest total size in bytes of the batches that share one slab, unless one batch alone needs more.
BUNDLE = 4 << 20

# Bytes that a batch needs in addition to its arrays, for the reply that describes it and for alignment.
_BESIDE = 256


class Region(NamedTuple):
    """A byte range in an extent. An extent is `length` bytes of the arena's file, starting at offset `extent`."""

    extent: int
    length: int
    start: int
    capacity: int


class Arena:
    """The mapped regions of one file, or of private memory if `fd` is None. Each process has its own Arena."""

    def __init__(self, fd: int | None) -> None:
        self.fd = fd
        self._extents: dict[int, Any] = {}  # by offset; see `mapped`

    def root(self, region: Region) -> NDArray[np.uint8]:
        """Returns a new array over the whole region. Every view keeps the array alive."""
        buffer = self._extents.get(region.extent)
        if buffer is None:
            buffer = self._extents[region.extent] = mapped(self.fd, region.length, region.extent)
        return np.frombuffer(buffer, np.uint8, region.capacity, region.start)

    def discard(self, region: Region) -> None:
        """Gives the region's memory pages back to the system. The region stays mapped and reads as zeros."""
        buffer = self._extents.get(region.extent)
        if buffer is not None and CAN_PLACE:
            advice = mmap.MADV_DONTNEED if self.fd is None else mmap.MADV_REMOVE
            advise(ctypes.addressof(buffer) + region.start, region.capacity, advice)


class Slabs:
    """The memory of each slab: a part of the file `fd`, or private memory if `fd` is None."""

    def __init__(self, fd: int | None) -> None:
        self.arena = Arena(fd)
        self.largest = 0  # bytes of the largest batch so far
        self._end = 0
        self._regions: dict[int, Region] = {}
        self._unused: dict[int, Iterator[Region]] = {}  # by capacity

    def region(self, slab: int, at_least: int = 0, count: int = 1, most: int = 1) -> Region:
        """Returns the region of a free slab. Replaces the region first if it is too small for `count` batches.

        Until the size of a batch is known, a new region is a whole extent (see `EXTENT`). Later, a new region has
        room for up to `most` batches, because a slab may hold a bundle, up to the size `BUNDLE`. A large region costs
        nothing, because memory pages are allocated only when they are written.
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

    def root(self, slab: int) -> NDArray[np.uint8]:
        """Returns a new array over a free slab, with room for one batch."""
        return self.arena.root(self.region(slab))

    def learn(self, nbytes: int) -> None:
        """Records the size of a batch. From now on, regions have room for a batch of this size."""
        if nbytes > self.largest:
            self.largest = nbytes

    @property
    def nbytes(self) -> int:
        """The memory that the slabs use, in bytes. For private memory, this is an estimate."""
        if self.arena.fd is not None:
            return os.fstat(self.arena.fd).st_blocks * 512
        return self.largest * len(self._regions)

    def cool(self, slab: int) -> None:
        """Gives the slab's memory pages back to the system. They are allocated again when the slab is used."""
        region = self._regions.get(slab)
        if region is not None:  # the slab may have been meant for a step that does not exist
            self.arena.discard(region)

    def _carve(self, capacity: int) -> Region:
        capacity = max(mmap.PAGESIZE, -(-capacity // mmap.PAGESIZE) * mmap.PAGESIZE)
        region = next(self._unused.get(capacity, iter(())), None)
        if region is not None:
            return region
        extent, length = self._end, max(1, EXTENT // capacity) * capacity
        self._end += length
        if self.arena.fd is not None:
            grow(self.arena.fd, self._end)
        # A generator, because an extent may hold ten thousand regions, and few of them are ever used.
        regions = (Region(extent, length, start, capacity) for start in range(0, length, capacity))
        self._unused[capacity] = regions
        return next(regions)


# How many leases that forked children inherited one `collect` checks. Each check is a system call.
_LOOKS = 4


class _Lease(weakref.ref):  # type: ignore[type-arg]  # a generic base cannot have slots added
    __slots__ = ("forks", "nbytes", "slab")

    slab: int
    nbytes: int
    forks: tuple[forks.Fork, ...]  # the forks that happened while the slab was on loan


class Leases:
    """The slabs that are lent to the caller, and those returned since the last `collect`."""

    def __init__(self, shared: bool = True) -> None:
        self._lent: dict[int, _Lease] = {}
        self._returned: deque[_Lease | int] = deque()
        self._inherited: deque[_Lease] = deque()  # came back, but a forked child may still read them
        # Private memory is safe at a fork, because the system copies a page when parent or child writes to it, and
        # without worker processes all memory is private.
        self._shared = shared and HAS_PROCESSES
        if self._shared:
            _all.add(self)

    def lend(self, slab: int, root: NDArray[np.uint8], nbytes: int = 0) -> None:
        # The callback runs in the thread that drops the last view, at any instruction, perhaps inside the garbage
        # collector. deque.append is atomic and takes none of our locks.
        lease = _Lease(root, self._returned.append)
        lease.slab, lease.nbytes, lease.forks = slab, nbytes, ()
        self._lent[slab] = lease

    @property
    def lent(self) -> int:
        return len(self._lent)

    @property
    def nbytes(self) -> int:
        return sum(lease.nbytes for lease in self._lent.copy().values())

    @property
    def matter_at_fork(self) -> bool:
        """True if a fork must be recorded, because slabs in shared memory are on loan and may be reused later."""
        return self._shared and bool(self._lent)

    def give_back(self, slab: int) -> None:
        """Frees a slab that was not lent after all. The next `collect` returns the slab."""
        self._returned.append(slab)

    def collect(self) -> list[int]:
        """Returns the slabs that have become free since the last call."""
        slabs = []
        while self._returned:
            back = self._returned.popleft()
            if isinstance(back, int):
                slabs.append(back)
                continue
            self._lent.pop(back.slab, None)
            if back.forks:
                self._inherited.append(back)
            else:
                slabs.append(back.slab)
        if self._inherited:
            self._look_at_inherited(slabs)
        return slabs

    def _look_at_inherited(self, slabs: list[int]) -> None:
        for _ in range(min(len(self._inherited), _LOOKS)):
            lease = self._inherited.popleft()
            if all(fork.is_over() for fork in lease.forks):
                slabs.append(lease.slab)
            else:
                self._inherited.append(lease)

    def inherit(self, fork: forks.Fork | None) -> None:
        """Records a fork.

        If `fork` is None, the child cannot be watched, so the slabs that are on loan at this fork are never reused.
        """
        if fork is None:
            self._lent.clear()
            return
        for lease in self._lent.copy().values():
            if fork not in lease.forks:
                lease.forks = (*lease.forks, fork)

    def close(self) -> None:
        """Forgets all forks, and ignores all later forks, because no slab is used again.

        `nbytes` still counts lent slabs.
        """
        self._shared = False
        self._inherited.clear()
        for lease in self._lent.copy().values():
            lease.forks = ()

    def forget(self) -> None:
        """Forgets all leases. Called in a forked child: the slabs belong to the parent."""
        self._lent.clear()
        self._inherited.clear()


_all = LiveObjects[Leases]()

own_fork = threading.local()
"""`own_fork.now` is True while penstock itself forks a worker. Workers do not read batches on loan."""

_birth = threading.local()
"""`_birth.fork` is the witness (see `forks.py`) of the fork that this thread is about to make."""


def _before_fork() -> None:
    _birth.fork = None
    if not getattr(own_fork, "now", False) and any(leases.matter_at_fork for leases in _all):
        _birth.fork = forks.begun()
        _inherit_all()


def _after_fork_in_parent() -> None:
    if not getattr(own_fork, "now", False):
        # A second time, because another thread may have lent a slab just before the fork.
        _inherit_all()
        if _birth.fork is not None:
            _birth.fork.has_happened()
    _birth.fork = None


def _inherit_all() -> None:
    for leases in _all:
        if leases.matter_at_fork:
            leases.inherit(_birth.fork)


def _after_fork_in_child() -> None:
    _birth.fork = None
    for leases in _all:
        leases.forget()


register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
