"""Locks between all threads and processes of a machine, which the kernel releases when their holder dies."""

from __future__ import annotations

import fcntl
import os
import struct
from functools import partial

from penstock import _descriptors
from penstock._interrupts import acquire, interrupts_deferred

# `struct flock` of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
_WHOLE = 1 << 62


class LockError(Exception):
    """The file of a lock cannot be opened; or, if the lock is not waited for, another has it."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


class ByteLock:
    """The lock of one byte of a file, for `with_loan`. One is used once.

    The byte need not exist: a file has a lock for each number from 0 to 2**62. So no lock has a file of its own that
    could be left behind. The lock belongs to the descriptor (`F_OFD_SETLK`): threads exclude each other too. A forked
    child closes its copy of the descriptor, and so cannot keep the lock of a parent that has died.
    """

    __slots__ = ("_byte", "_fds", "_path", "_waits")

    def __init__(self, path: str, byte: int, *, waits: bool = True) -> None:
        self._path, self._byte, self._waits = path, byte % _WHOLE, waits
        self._fds: list[int] = []

    @property
    def fd(self) -> int:
        """The file, open for reading and writing while the lock is held."""
        return self._fds[0]

    def begin(self) -> None:
        """Opens the file, which is made if it is missing, and waits for the lock. Raises LockError."""
        command = fcntl.F_OFD_SETLKW if self._waits else fcntl.F_OFD_SETLK
        try:
            self._fds.append(open_alone(self._path))
            fcntl.fcntl(self.fd, command, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self._byte, 1, 0))
        except OSError as error:
            raise LockError(error) from error

    def end(self) -> None:
        """Lets go of the lock, if it is held."""
        if self._fds:
            with interrupts_deferred():
                _descriptors.close(self._fds.pop())


def open_alone(path: str) -> int:
    """A descriptor for reading and writing that no forked child keeps open."""
    return acquire(partial(_open, path), _descriptors.close)


def _open(path: str) -> int:
    with _descriptors.no_fork():
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        _descriptors.close_in_child(fd)
    return fd


def is_locked(fd: int, byte: int = 0) -> bool:
    """True if another descriptor has the lock of this byte."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer: bytes = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK
