"""Slabs: numbered pieces of memory, and the leases of those that are lent to the caller.

The scheduler decides which slab is used when; this module provides its memory.

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
it lives. So a slab that is lent when the program forks is used again only after that process has ended.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._memory import forks
from penstock._memory.mapping import advise, grow, mapped
from penstock._system.interrupts import LiveObjects

# Bytes of address space: an extent takes memory as its pages are written.
EXTENT = 64 << 20

# Largest number of bytes that is bundled into one slab, unless one batch alone needs more.
BUNDLE = 4 << 20

# Bytes that a batch needs beside its arrays: for the reply that describes it, and for alignment.
_BESIDE = 256


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
            advise(address + region.start, region.capacity, advice)


class Slabs:
    """The memory of each slab, in an arena on the file `fd`, or in private memory if that is None."""

    def __init__(self, fd: int | None) -> None:
        self.arena = Arena(fd)
        self.largest = 0  # bytes of the largest batch so far
        self._end = 0
        self._regions: dict[int, Region] = {}
        self._unused: dict[int, Iterator[Region]] = {}  # by capacity

    def region(self, slab: int, at_least: int = 0, count: int = 1, most: int = 1) -> Region:
        """The region of a free slab; a larger one is allocated if `count` batches would not fit.

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
        """Records the size of a batch: from now on, slabs have room for at least as many bytes."""
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
        if region is not None:  # the slab may have been meant for a step that does not exist
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


# Leases of forked children that one `collect` checks, at a system call each.
_LOOKS = 4


class _Lease(weakref.ref):  # type: ignore[type-arg]  # a generic base cannot have slots added
    __slots__ = ("forks", "nbytes", "slab")

    slab: int
    nbytes: int
    forks: tuple[forks.Fork, ...]  # those that happened while the slab was lent


class Leases:
    """The slabs that are lent, and those that came back since the last `collect`."""

    def __init__(self, shared: bool = True) -> None:
        self._lent: dict[int, _Lease] = {}
        self._returned: deque[_Lease | int] = deque()
        self._inherited: deque[_Lease] = deque()  # came back, but a forked child may still read them
        # Private memory needs no care at a fork: the system copies a page when parent or child writes to it.
        if shared:
            _all.add(self)

    def lend(self, slab: int, root: NDArray[np.uint8], nbytes: int = 0) -> None:
        # Called in the thread that drops the last view, at any instruction, perhaps inside the garbage collector.
        # deque.append is atomic (guaranteed by the GIL), and takes no lock of ours.
        lease = _Lease(root, self._returned.append)
        lease.slab, lease.nbytes, lease.forks = slab, nbytes, ()
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
        """Records a fork, whose child has the lent slabs too. Without a witness, these slabs are never used again."""
        if fork is None:
            self._lent.clear()
            return
        for lease in self._lent.values():
            if fork not in lease.forks:
                lease.forks = (*lease.forks, fork)

    def forget(self) -> None:
        """Forgets all leases. Called in a forked child, because the slabs belong to the parent."""
        self._lent.clear()
        self._inherited.clear()


_all = LiveObjects[Leases]()

own_fork = threading.local()
"""While `own_fork.now` is true, penstock itself forks a worker, which reads no batch."""

_birth = threading.local()
"""`fork` is the witness of the fork that this thread is about to do."""


def _before_fork() -> None:
    _birth.fork = None
    if not getattr(own_fork, "now", False) and any(leases.lent for leases in _all):
        _birth.fork = forks.begun()
        _inherit_all()


def _after_fork_in_parent() -> None:
    if not getattr(own_fork, "now", False):
        # Again: another thread may have lent a slab just before the fork.
        _inherit_all()
        if _birth.fork is not None:
            _birth.fork.has_happened()
    _birth.fork = None


def _inherit_all() -> None:
    for leases in _all:
        if leases.lent:
            leases.inherit(_birth.fork)


def _after_fork_in_child() -> None:
    _birth.fork = None
    for leases in _all:
        leases.forget()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
