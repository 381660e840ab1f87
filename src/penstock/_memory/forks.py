"""Forks of the program while batches are lent.

The child has the lent batches too, in the same shared memory, and may read them as long as it lives. A witness tells
whether it still lives: a page of shared memory that parent and child map, and that the parent then unmaps. The
kernel refuses to seal a file against writing while any process maps it, so the seal succeeds when the child, and all
processes that it has forked, have ended or called exec.

Rejected: a pipe, because a child that closes all descriptors closes its end too early; and waiting for the pid, which
the fork hooks are not told and which says nothing about grandchildren.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from functools import partial

from penstock._memory.mapping import map_memory, unmap
from penstock._system.interrupts import LiveObjects, free_at_end

MOST = 64
"""The largest number of witnesses, each a descriptor. Slabs that are lent at further forks are never used again."""


class Fork:
    """The witness of one fork, which is about to happen or has happened."""

    __slots__ = ("__weakref__", "_address", "_fd")

    def __init__(self) -> None:
        self._fd = os.memfd_create("penstock-fork", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        free_at_end(self, partial(os.close, self._fd))
        os.ftruncate(self._fd, mmap.PAGESIZE)
        access = mmap.PROT_READ | mmap.PROT_WRITE
        self._address = map_memory(None, mmap.PAGESIZE, access, mmap.MAP_SHARED, self._fd, 0)
        _living.add(self)

    def has_happened(self) -> None:
        """Called in the parent after the fork."""
        unmap(self._address, mmap.PAGESIZE)

    def is_over(self) -> bool:
        """True if no process is left that inherited memory from this one at the fork."""
        try:
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        except OSError:
            return False
        return True


_living = LiveObjects[Fork]()


def begun() -> Fork | None:
    """The witness of a fork that is about to happen; None if none can be made."""
    if len(_living) >= MOST:
        return None
    try:
        return Fork()
    except OSError:
        return None
