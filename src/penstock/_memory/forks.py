"""Forks of the program while batches are on loan to the caller.

The child shares the memory of these batches, and may read the batches until the child ends. A witness shows whether
the child is still alive. A witness is a page of shared memory that the parent maps before the fork, so that the child
maps this page too. After the fork, the parent unmaps the page. The kernel refuses to seal a file against writing
while any process maps the file. So the seal succeeds once the child, and every process that the child has forked, has
ended or called exec.

Two alternatives were rejected. A pipe to the child reports the child's end too early if the child closes all its
descriptors. Fork hooks do not get the child's process id, and the id would not show whether grandchildren are alive.
"""

from __future__ import annotations

import mmap
import os
from functools import partial

from penstock._memory.mapping import map_memory, unmap
from penstock._system.interrupts import LiveObjects, free_at_end
from penstock._system.platform import fcntl

MOST = 64
"""The largest number of witnesses. Each witness needs a descriptor.

Slabs that are on loan during further forks are never reused.
"""


class Fork:
    """Shared memory that shows whether a forked child is still alive (see the module's docstring)."""

    __slots__ = ("__weakref__", "_address", "_fd")

    def __init__(self) -> None:
        self._fd = os.memfd_create("penstock-fork", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        free_at_end(self, partial(os.close, self._fd))
        os.ftruncate(self._fd, mmap.PAGESIZE)
        access = mmap.PROT_READ | mmap.PROT_WRITE
        self._address = map_memory(None, mmap.PAGESIZE, access, mmap.MAP_SHARED, self._fd, 0)
        _living.add(self)

    def has_happened(self) -> None:
        """Unmaps the shared memory in the parent, after the fork."""
        unmap(self._address, mmap.PAGESIZE)

    def is_over(self) -> bool:
        """True if the forked child, and every process that it has forked, has ended or called exec."""
        try:
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        except OSError:
            return False
        return True


_living = LiveObjects[Fork]()


def begun() -> Fork | None:
    """Returns a `Fork` object for a fork that is about to happen, or None if none can be created."""
    if len(_living) >= MOST:
        return None
    try:
        return Fork()
    except OSError:
        return None
