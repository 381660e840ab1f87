"""The lease: a lent slab comes back when the last array that uses its memory is gone.

In numpy every view refers to the array that owns the memory: here the root of the slab. torch and DLPack refer to
the numpy array. So a weak reference to the root is called exactly once: when no object of this process can reach the
slab any more.

A child process that the program forks has the lent batches too, in the same memory, and may read them for as long as
it lives. Hence a slab that is lent when the program forks is never used again.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray


class _Lease(weakref.ref):  # type: ignore[type-arg]  # a generic base cannot have slots added
    __slots__ = ("slab",)

    slab: int


class Leases:
    """The slabs that are lent, and those that came back since the last `collect`."""

    def __init__(self, shared: bool = True) -> None:
        self._lent: dict[int, _Lease] = {}
        self._returned: deque[_Lease | int] = deque()
        # Private memory needs no care at a fork: the system copies a page when parent or child writes to it.
        if shared:
            _all.add(self)

    def lend(self, slab: int, root: NDArray[np.uint8]) -> None:
        # Called in the thread that drops the last view, at any instruction, perhaps inside the garbage collector.
        # deque.append is atomic (guaranteed by the GIL), and takes no lock of ours.
        lease = _Lease(root, self._returned.append)
        lease.slab = slab
        self._lent[slab] = lease

    @property
    def lent(self) -> int:
        """How many slabs are lent."""
        return len(self._lent)

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


_all: weakref.WeakSet[Leases] = weakref.WeakSet()

own_fork = threading.local()
"""While `own_fork.now` is true, penstock itself forks a worker, which reads no batch."""


def _retire_all() -> None:
    if not getattr(own_fork, "now", False):
        for leases in tuple(_all):
            leases._lent.clear()  # without its reference, a slab is never reported as returned


os.register_at_fork(after_in_parent=_retire_all)
