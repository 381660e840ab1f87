"""Decoded blocks, shared by all processes on a machine, so that each block is decoded by only one process.

A process that reads a table with a loader opens an *inventory*. The inventory lists the decoded blocks, and
names the process that holds each block. For each loader, the inventory contains a *claim*: a list of the blocks that
the loader needs. The inventory is a memfd (shared memory without a path). Other processes find this memfd among the
descriptors of the process that opened the inventory (see `_measure/page.py`). Each block is a memfd of the process
that decoded the block; other processes open and map the block's memfd. An inventory contains:

    magic (8 bytes), time when the inventory was opened, number of rows, number of decoded blocks (8 bytes each)
    rows: block, process id, file descriptor, inode, size, sequence number among the decoded blocks (8 bytes each; a
          free row has process id 0). A row is added only if no row is free, because every reader reads all rows.
    claims, after the space for 4,096 rows: bytes to keep (-1 if the loader reads block by block), number of
          needed blocks, needed blocks (8 bytes each). A claim has space for 4,096 needed blocks.

A process accepts only memfds that belong to its own user (see `_system/trust.py`), because any user can create a
memfd with any name. An inventory never shrinks. A complete block is sealed, so that no process can change or
truncate the block. Because no memfd has a path, nothing can be left behind. If a process dies, the next process that
needs one of the dead process's blocks decodes this block again.

Locks (see `_cache/locks.py`): byte 0 guards the rows and claims, byte 1 + n guards block n, and byte 2**61 + n guards
claim n. A loader holds the lock of its claim for as long as the loader reads, so a claim whose lock is free is
outdated.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from penstock._cache.claims import MOST_NEEDS, ROW, Claim, Rows, place, surplus
from penstock._cache.locks import ByteLock, LockError, LockPatience, again, is_locked, open_alone
from penstock._cache.pieces import write_all
from penstock._measure.page import memfds
from penstock._memory.mapping import mapped, view_of
from penstock._system import descriptors, trust
from penstock._system.interrupts import acquire, finalizer, interrupts_deferred, with_loan
from penstock._system.platform import HAS_PROCESSES, SEAL_SHRINK, resource
from penstock._system.warnings import warn_caller

MakeBlock = Callable[[], Sequence[Any]]
"""A function that decodes a block and returns the bytes as a list of buffers."""

_NAME, _BLOCK = "penstock-inventory-", "penstock-block"
_HEAD = struct.Struct("<8sqqq")
_MAGIC = b"pnstinv3"
_ROWS = 4096  # the largest number. Each row is an open descriptor of some process: see `_most_own`.
_CLAIM = struct.Struct("<qq")
_CLAIMS = _HEAD.size + _ROWS * ROW.itemsize  # the offset of the first claim
_CLAIM_SIZE = _CLAIM.size + MOST_NEEDS * 8
_CLAIM_LOCKS = 1 << 61
_NEVER_SMALLER = SEAL_SHRINK
_AGAIN = 1.0  # seconds after which a process that found no inventory looks again
_UNFINISHED = 0.2  # seconds to wait for the head of an inventory that was opened just now


class Inventory:
    """The list of a table's shared blocks, and one loader's claim."""

    def __init__(self, table: str, claim: Claim) -> None:
        self._name = _NAME + table
        # Each loader creates an inventory, because it may be the first one. If an older one exists, all processes of
        # the machine use that one.
        self._fd = descriptors.open_memfd(self._name)
        self._first: int | None = None  # the descriptor of the inventory that all use, once it was found
        self._number, self._lock = 0, _claim_lock(self._fd, 0)
        self._patience = LockPatience()
        try:
            trust.seal(self._fd, _NEVER_SMALLER)
            # Finding the oldest inventory takes milliseconds. Usually it is this one, so the claim is written here.
            self._lock.begin()
            _write_claim(self._fd, 0, claim)
            # The time is taken after the file has become visible to others: see `_first_inventory`.
            os.pwrite(self._fd, _HEAD.pack(_MAGIC, time.monotonic_ns(), 0, 0), 0)
        except BaseException:
            self.close()
            raise

    @property
    def decoded(self) -> int:
        """The number of blocks decoded so far by all processes."""
        return _head(self._used())[2]

    def blocks(self) -> set[int]:
        return _blocks_in(_rows(self._used()))

    def claim(self, claim: Claim) -> None:
        """Replaces this loader's claim, and drops the blocks that no loader claims."""
        lock = ByteLock(again(self._used()), 0, self._patience)
        with_loan(lock, self._claim, lock, claim)

    def _claim(self, lock: ByteLock, claim: Claim) -> None:
        _check_is_inventory(lock.fd, self._name)
        if not os.path.samestat(os.fstat(lock.fd), os.fstat(self._lock.fd)):
            self._move(lock.fd)
        _write_claim(lock.fd, self._number, claim)
        rows = _rows(lock.fd)
        gone = surplus(rows, _claims(lock.fd))
        if gone.any():
            rows[gone] = 0
            _write_rows(lock.fd, rows)

    def _move(self, fd: int) -> None:
        """Moves this loader's claim into the lowest free slot of the inventory with the descriptor `fd`."""
        number = next(number for number in count() if not is_locked(fd, _CLAIM_LOCKS + number))
        lock = _claim_lock(fd, number)
        with interrupts_deferred(), descriptors.no_fork():
            try:
                lock.begin()
                if self._fd == -1:
                    raise OSError("the inventory is closed")
                lock, self._lock, self._number = self._lock, lock, number
            finally:
                lock.end()

    def _used(self) -> int:
        """Returns the descriptor of the oldest inventory, which all processes use. Raises OSError after `close`."""
        found = _first_inventory(self._name) if self._first is None else None
        with interrupts_deferred(), descriptors.no_fork():
            if self._fd != -1:
                self._first = self._first if found is None else found
                return self._fd if self._first is None else self._first
            if found is not None:
                descriptors.close(found)
        raise OSError("the inventory is closed")

    def close(self) -> None:
        with interrupts_deferred(), descriptors.no_fork():
            fds = {self._fd, self._fd if self._first is None else self._first} - {-1}
            self._fd, self._first = -1, None
            self._lock.end()
            descriptors.close(*fds)


def _claim_lock(fd: int, number: int) -> ByteLock:
    return ByteLock(again(fd), _CLAIM_LOCKS + number)


def _check_is_inventory(fd: int, name: str) -> None:
    """Raises OSError if `fd` is not an inventory with this name."""
    # A thread may close the inventory's descriptor while another one is about to write. The number may then be reused
    # for another file, perhaps one of the user's. So each writer opens a descriptor of its own, and checks it here.
    if not trust.is_memfd(f"/proc/self/fd/{fd}", name):
        raise OSError("not an inventory")


class Shared:
    """This process's decoded blocks of one table. If no loader has a claim, the newest `most` bytes are kept."""

    def __init__(self, table: str, most: int) -> None:
        self._name, self._most = _NAME + table, most
        self._is_warned = False
        self._renew()

    def _renew(self) -> None:
        self._process = os.getpid()
        self._inventory: int | None = None  # its descriptor, if one was found
        self._look_again = 0.0
        self._patience = LockPatience()
        self._own: dict[int, int] = {}  # descriptors of blocks, by inode

    def get(self, block: int, make: MakeBlock) -> memoryview | None:
        """Returns a block, decoding it with `make` if necessary.

        Returns None if there is no inventory or a lock cannot be taken in time.
        """
        inventory = self._find_inventory()
        if inventory is None:
            return None
        found = _mapped(inventory, block)
        if found is not None:
            return found
        lock = ByteLock(again(inventory), 1 + block, self._patience, long=True)
        try:
            return with_loan(lock, self._made, inventory, block, make)
        except LockError as error:
            self._warn(error)
            return None

    def _warn(self, error: OSError) -> None:
        """Warns once if another program has held a lock for too long."""
        if error.errno == errno.ETIMEDOUT and not self._is_warned:
            self._is_warned = True
            warn_caller(
                "Decoded blocks are not shared with other processes for now, and each of them decodes its own: "
                f"{error.strerror}. Continue or end that program."
            )

    def blocks(self) -> set[int]:
        """Returns the blocks in the inventory. Closes this process's blocks that are no longer listed."""
        inventory = self._find_inventory()
        if inventory is None:
            return set()
        rows = _rows(inventory)
        self._let_go(rows)
        return _blocks_in(rows)

    def _find_inventory(self) -> int | None:
        if self._process != os.getpid():  # a forked child, in which the descriptors are closed
            self._renew()
        if HAS_PROCESSES and self._inventory is None and time.monotonic() >= self._look_again:
            self._inventory = _first_inventory(self._name)
            self._look_again = time.monotonic() + _AGAIN
        return self._inventory

    def _made(self, inventory: int, block: int, make: MakeBlock) -> memoryview:
        found = _mapped(inventory, block)  # another process may have decoded it before this one had the lock
        if found is not None:
            return found
        buffers = [memoryview(buffer).cast("B") for buffer in make()]  # errors of `make` are the caller's
        try:
            return self._published(inventory, block, buffers)
        except OSError as error:  # such as too many descriptors, or no memory
            self._warn(error)
            return memoryview(b"".join(buffers))

    def _published(self, inventory: int, block: int, buffers: Sequence[memoryview]) -> memoryview:
        nbytes = sum(map(len, buffers))
        if len(self._own) >= _most_own():
            self._let_go(_rows(inventory))
            if len(self._own) >= _most_own():
                raise OSError("too many blocks of this process are needed")
        with interrupts_deferred():
            fd = descriptors.open_memfd(_BLOCK)
            inode = os.fstat(fd).st_ino
            self._own[inode] = fd
        # Written, not mapped, because a file that is mapped for writing cannot be sealed.
        for buffer in buffers:
            write_all(fd, buffer)
        trust.seal(fd, trust.UNCHANGING)
        view = _map_block(f"/proc/self/fd/{fd}", inode, nbytes)
        lock = ByteLock(again(inventory), 0, self._patience)
        with_loan(lock, self._insert, lock, (block, os.getpid(), fd, inode, nbytes))
        return view

    def _insert(self, lock: ByteLock, about: tuple[int, ...]) -> None:
        _check_is_inventory(lock.fd, self._name)
        _, _, decoded = _head(lock.fd)
        rows, claims = _rows(lock.fd), _claims(lock.fd) or [Claim(np.empty(0, np.int64), self._most)]
        rows[rows["block"] == about[0]] = 0  # its process has died
        # Loaders that read block by block drop blocks when they renew their claims, which may be slightly old here.
        if any(claim.keep is not None for claim in claims):
            rows[surplus(rows, claims, about[-1])] = 0
        row = place(rows, claims, _ROWS)
        if row is not None:
            if row == len(rows):
                rows = np.append(rows, np.zeros(1, ROW))
            rows[row] = (*about, decoded + 1)
        _write_rows(lock.fd, rows, decoded + 1)
        self._let_go(rows)
        if row is None:
            raise OSError("all blocks of the inventory are needed")

    def _let_go(self, rows: Rows) -> None:
        with interrupts_deferred():
            for inode in {*self._own} - {*rows["inode"].tolist()}:
                descriptors.close(self._own.pop(inode))

    def close(self) -> None:
        """Closes all blocks of this process. Other processes can still use the blocks that they have mapped."""
        with interrupts_deferred():
            if self._process == os.getpid():
                while self._own:
                    descriptors.close(self._own.popitem()[1])
                if self._inventory is not None:
                    descriptors.close(self._inventory)
                    self._inventory = None

    __del__ = finalizer(close)


def _most_own() -> int:
    """Returns how many blocks a process may share: half of the process's limit on open descriptors."""
    return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) // 2


def _mapped(inventory: int, block: int) -> memoryview | None:
    """Maps a block that a live process has decoded. Returns None if there is no such block."""
    rows = _rows(inventory)
    found = np.flatnonzero((rows["block"] == block) & (rows["pid"] > 0))
    if not len(found):
        return None
    row = rows[found[0]]
    _, pid, number, inode, nbytes, _ = row.tolist()
    try:
        block_of_row = _map_block(f"/proc/{pid}/fd/{number}", inode, nbytes)
    except OSError:  # the process has ended
        return None
    # The row is read again, because another process may have been writing it.
    same = os.pread(inventory, ROW.itemsize, _HEAD.size + int(found[0]) * ROW.itemsize) == row.tobytes()
    return block_of_row if same else None


def _map_block(path: str, inode: int, nbytes: int) -> memoryview:
    if not trust.is_memfd(path, _BLOCK):
        raise OSError("not a block")
    fd = acquire(partial(trust.open_sealed, path, _BLOCK, trust.UNCHANGING), os.close)
    try:
        about = os.fstat(fd)
        if (about.st_ino, about.st_size) != (inode, nbytes):
            raise OSError("another block")
        return view_of(mapped(fd, nbytes, writable=False), writable=False)
    finally:
        os.close(fd)


def _head(fd: int) -> tuple[int, int, int]:
    magic, opened, rows, decoded = _HEAD.unpack(os.pread(fd, _HEAD.size, 0).ljust(_HEAD.size, b"\0"))
    if magic != _MAGIC or not 0 <= rows * ROW.itemsize <= _CLAIMS - _HEAD.size:
        raise OSError("not an inventory")
    return opened, rows, decoded


def _rows(fd: int) -> Rows:
    nbytes = _head(fd)[1] * ROW.itemsize
    return np.frombuffer(bytearray(os.pread(fd, nbytes, _HEAD.size).ljust(nbytes, b"\0")), ROW)


def _write_rows(fd: int, rows: Rows, decoded: int | None = None) -> None:
    """Writes the rows of the inventory. The caller must hold the lock on byte 0. Readers need no lock."""
    opened, _, before = _head(fd)
    os.pwrite(fd, rows.tobytes(), _HEAD.size)
    os.pwrite(fd, _HEAD.pack(_MAGIC, opened, len(rows), before if decoded is None else decoded), 0)


def _claims(fd: int) -> list[Claim]:
    """Returns the claims of live loaders. The caller must hold the lock on byte 0."""
    return [
        _read_claim(fd, number)
        for number in range(-(-(os.fstat(fd).st_size - _CLAIMS) // _CLAIM_SIZE))
        if is_locked(fd, _CLAIM_LOCKS + number)
    ]


def _write_claim(fd: int, number: int, claim: Claim) -> None:
    """Writes a loader's claim. The caller must hold the lock on byte 0."""
    keep = -1 if claim.keep is None else claim.keep
    data = _CLAIM.pack(keep, len(claim.needs)) + claim.needs.astype("<i8").tobytes()
    os.pwrite(fd, data, _CLAIMS + number * _CLAIM_SIZE)


def _read_claim(fd: int, number: int) -> Claim:
    """Reads a claim. Accepts invalid bytes, because a killed program may leave a half-written claim."""
    data = os.pread(fd, _CLAIM_SIZE, _CLAIMS + number * _CLAIM_SIZE)
    numbers = np.frombuffer(data.ljust(_CLAIM_SIZE, b"\0"), "<i8")
    keep, needs = numbers[:2].tolist()
    return Claim(numbers[2 : 2 + max(0, needs)], None if keep == -1 else keep)


def _blocks_in(rows: Rows) -> set[int]:
    return {*rows["block"][rows["pid"] > 0].tolist()}


def _first_inventory(name: str) -> int | None:
    """Opens this user's oldest inventory with this name, or returns None if there is none."""
    # All processes must agree on one inventory. An inventory becomes visible before its opening time is taken, so one
    # that is not visible yet is younger than all that have a time. Only those without a time are waited for.
    deadline = time.monotonic() + _UNFINISHED
    found = [*_inventories(name)]
    while any(opened is None for opened, _ in found) and time.monotonic() < deadline:
        time.sleep(0.001)
        found = [*_inventories(name)]
    for _, path in sorted((opened, path) for opened, path in found if opened is not None):
        with suppress(OSError):
            return open_alone(partial(trust.open_sealed, path, name, _NEVER_SMALLER, os.O_RDWR))
    return None


def _inventories(name: str) -> Iterator[tuple[int | None, str]]:
    """Yields (opening time, path) of each inventory with this name. The time is None until it is written."""
    for _, path in memfds(os.geteuid(), name):
        with suppress(OSError):  # the process has ended, or the memfd is no inventory of this user
            yield _opened_at(path, name), path


def _opened_at(path: str, name: str) -> int | None:
    fd = acquire(partial(trust.open_sealed, path, name, _NEVER_SMALLER), os.close)
    try:
        return _head(fd)[0] if os.pread(fd, 8, 0).strip(b"\0") else None
    finally:
        os.close(fd)
