"""The lease: a lent slab comes back when the last array that looks into it is gone.

numpy keeps every view of an array pointing at the array that it was first made from: its root.
torch and DLPack keep the numpy array. So a weak reference to the root fires exactly once, when
nobody can look into the slab any more.
"""

from __future__ import annotations

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

    def __init__(self) -> None:
        self._lent: dict[int, _Lease] = {}
        self._returned: deque[int] = deque()

    def lend(self, slab: int, root: NDArray[np.uint8]) -> None:
        lease = _Lease(root, _end)
        lease.slab = slab
        lease.returned = self._returned
        self._lent[slab] = lease

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
