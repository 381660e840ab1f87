"""The lease: a lent slab comes back when the last array that looks into it is gone.

numpy keeps every view of an array pointing at the array that it was first made from: its root.
torch and DLPack keep the numpy array. So a weak reference to the root fires exactly once, when
nobody can look into the slab any more.

Nobody in this process, that is. A child that the program forks has the lent batches too, in the same memory,
and may look at them for as long as it lives: so what is lent at a fork is never used again.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray


class _Lease(weakref.ref):  # type: ignore[type-arg]  # a generic base cannot have slots added
    __slots__ = ("returned", "slab")

    slab: int
    returned: deque[int]


def _end(lease: _Lease) -> None:
    # Runs in whichever thread drops the last view, perhaps inside the garbage collector, at any
    # instruction. deque.append is atomic under the GIL and takes no lock of ours.
    lease.returned.append(lease.slab)


class Leases:
    """The slabs that are lent now, and those that came back and were not yet taken note of."""

    def __init__(self, shared: bool = True) -> None:
        self._lent: dict[int, _Lease] = {}
        self._returned: deque[int] = deque()
        if (
            shared
        ):  # memory that is not is copied by the system when a forked child, or its parent, writes to it
            _all.add(self)

    def lend(self, slab: int, root: NDArray[np.uint8]) -> None:
        lease = _Lease(root, _end)
        lease.slab = slab
        lease.returned = self._returned
        self._lent[slab] = lease

    @property
    def lent(self) -> int:
        """How many."""
        return len(self._lent)

    def retire(self) -> None:
        """What is lent now does not come back: nobody is told of it any more."""
        self._lent.clear()

    def give_back(self, slab: int) -> None:
        """For a slab that was delivered with nothing in it that anybody could look at."""
        self._returned.append(slab)

    def collect(self) -> list[int]:
        """The slabs that came back since the last call."""
        if not self._returned:
            return []
        slabs = []
        while self._returned:
            slab = self._returned.popleft()
            self._lent.pop(slab, None)
            slabs.append(slab)
        return slabs


_all: weakref.WeakSet[Leases] = weakref.WeakSet()

own_fork = threading.local()
"""While `own_fork.now` is true, the fork is that of a worker, which looks at no batch."""


def _retire_all() -> None:
    if not getattr(own_fork, "now", False):
        for leases in tuple(_all):
            leases.retire()


os.register_at_fork(after_in_parent=_retire_all)
