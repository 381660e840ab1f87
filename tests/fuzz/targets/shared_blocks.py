"""The inventory of decoded blocks that another program of this user has left open, with anything in it."""

from __future__ import annotations

import fcntl
import os
import struct
from functools import cache

import numpy as np

from penstock._cache.claims import Claim
from penstock._cache.shared import _BLOCK, _NAME, Inventory, Shared
from penstock._system import trust
from tests.fuzz import scratch

ALLOWED = ()
TABLE = "fuzz"
SOUND = b"a decoded block" * 100


@cache
def block() -> tuple[int, int]:
    """A block of another size than its row may say: its descriptor and inode."""
    fd = os.memfd_create(_BLOCK, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, SOUND)
    trust.seal(fd, trust.UNCHANGING)
    return fd, os.fstat(fd).st_ino


def seeds() -> list[bytes]:
    fd, inode = block()
    row = struct.pack("<6q", 3, os.getpid(), fd, inode, len(SOUND), 1)
    head = struct.pack("<8sqqq", b"pnstinv2", 1, 2, 2)
    return [
        head + row + struct.pack("<6q", 4, 1, 0, 1, 1, 2),
        head + struct.pack("<6q", 7, os.getpid(), 1, 1, 1, 1),
    ]


def attack(data: bytes) -> None:
    with scratch.alone():
        _attack(data)


def _attack(data: bytes) -> None:
    fd = os.memfd_create(_NAME + TABLE, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    shared = Shared(TABLE, 1 << 20)
    try:
        os.write(fd, data)
        trust.seal(fd, fcntl.F_SEAL_SHRINK)
        for number in (3, 5):
            found = shared.get(number, lambda: [SOUND])
            assert found is None or isinstance(found, memoryview)
        shared.blocks()
        try:
            inventory = Inventory(TABLE, Claim(np.arange(3), None))
        except OSError:
            return
        try:
            inventory.claim(Claim(np.arange(2), 10))
            inventory.blocks()
            assert inventory.decoded is not None
        except OSError:  # callers do without
            pass
        finally:
            inventory.close()
    finally:
        shared.close()
        os.close(fd)
