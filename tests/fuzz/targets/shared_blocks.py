"""The inventory of decoded blocks that another program of this user has left open, with anything in it.

The bytes after the first `CLAIMS` are those of its claims, of which the first two are locked: their loaders live.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import numpy as np

from penstock._cache import shared as module
from penstock._cache.claims import Claim
from penstock._cache.shared import (
    _BLOCK,
    _CLAIM,
    _CLAIM_SIZE,
    _CLAIMS,
    _HEAD,
    _MAGIC,
    _NAME,
    Inventory,
    Shared,
    _claim_lock,
)
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
    head = _HEAD.pack(_MAGIC, 1, 2, 2)
    claim = _CLAIM.pack(4000, 2) + struct.pack("<2q", 3, 9)
    return [
        head + row + struct.pack("<6q", 4, 1, 0, 1, 1, 2),
        head + struct.pack("<6q", 7, os.getpid(), 1, 1, 1, 1),
        head + row + struct.pack("<6q", 4, 1, 0, 1, 1, 2) + CLAIMS + claim,
        head + row * 2 + CLAIMS + claim.ljust(_CLAIM_SIZE, b"\0") + _CLAIM.pack(-1, 0),
    ]


CLAIMS = b"claims"


def mended(data: bytes) -> bytes:
    """With a first row that leads to the block: a corpus is of processes that have ended."""
    fd, inode = block()
    at = _HEAD.size + 8
    return data[:at] + struct.pack("<3q", os.getpid(), fd, inode) + data[at + 24 :] if len(data) > at else data


def attack(data: bytes) -> None:
    decoded(data)


def decoded(data: bytes) -> int:
    """Attacks; returns how many of two blocks had to be decoded, because the inventory has none of that number."""
    with scratch.alone(), _no_wait():
        return _attack(data)


@contextmanager
def _no_wait() -> Iterator[None]:
    """An inventory without a head is being opened, and is waited for: 0.2 s for each attack."""
    before, module._UNFINISHED = module._UNFINISHED, 0.0
    try:
        yield
    finally:
        module._UNFINISHED = before


def _attack(data: bytes) -> int:
    made = 0

    def make() -> list[bytes]:
        nonlocal made
        made += 1
        return [SOUND]

    shared, (rows, _, claims) = Shared(TABLE, 1 << 20), data.partition(CLAIMS)
    with ExitStack() as ended:
        ended.callback(shared.close)
        fd = os.memfd_create(_NAME + TABLE, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        ended.callback(os.close, fd)
        os.pwrite(fd, rows[:_CLAIMS], 0)
        if claims:
            os.pwrite(fd, claims, _CLAIMS)
            for number in range(2):
                lock = _claim_lock(fd, number)
                lock.begin()
                ended.callback(lock.end)
        trust.seal(fd, fcntl.F_SEAL_SHRINK)
        for number in (3, 5):
            found = shared.get(number, make)
            assert found is None or isinstance(found, memoryview)
        shared.blocks()
        try:
            inventory = Inventory(TABLE, Claim(np.arange(3), None))
        except OSError:
            return made
        ended.callback(inventory.close)
        try:
            inventory.claim(Claim(np.arange(2), 10))
            inventory.blocks()
            assert inventory.decoded is not None
        except OSError:  # callers do without
            pass
    return made
