"""Locks between all threads and processes on a machine. The kernel releases a lock when its holder dies.

Every wait for a lock has a time limit, because the holder may be suspended (SIGSTOP) or be an unrelated program.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from penstock._system import descriptors, trust
from penstock._system.interrupts import acquire, interrupts_deferred
from penstock._system.platform import fcntl

# `struct flock` of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
_WHOLE = 1 << 62
_LEAST_PAUSE, _MOST_PAUSE = 0.0005, 0.02  # seconds between two tries
_SHARE = 8  # a pause is an eighth of the wait so far, so a wait is at most an eighth longer than necessary
_LOCK_OF_FILE = re.compile(r"^lock:\s+\d+: OFDLCK +\S+ +(\w+) .* (\d+) (\d+|EOF)$", re.MULTILINE)


class LockError(OSError):
    """Raised if a lock's file cannot be opened, or if another process does not release the lock in time."""


class LockPatience:
    """Remembers that a wait for a lock has timed out.

    For the next `trust.LONGEST` seconds, every wait for a lock in the same file fails immediately.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._why = ""

    def check(self) -> None:
        if time.monotonic() < self._until:
            raise TimeoutError(errno.ETIMEDOUT, self._why)

    def lose(self, why: str) -> None:
        # Otherwise, a suspended program that holds many locks would delay this one again and again.
        self._until, self._why = time.monotonic() + trust.LONGEST, why
        self.check()


class ByteLock:
    """A lock on one byte of the file that `opened()` opens. Each object is used once, usually through `with_loan`.

    The byte may lie beyond the end of the file, so one file can hold up to 2**62 locks. The lock belongs to a file
    descriptor (`F_OFD_SETLK`), so it also works between threads. A forked child closes its copy of the descriptor,
    so that the child does not keep the lock after the parent has died.

    Without `patience`, `begin` does not wait. With `patience`, `begin` waits up to `trust.WAIT` seconds, or up to
    `trust.LONGEST` seconds if `long` is True and the lock's holder is running. F_OFD_SETLKW is not used, because it
    has no time limit.
    """

    __slots__ = ("_byte", "_fds", "_long", "_opened", "_patience")

    def __init__(
        self, opened: Callable[[], int], byte: int, patience: LockPatience | None = None, *, long: bool = False
    ) -> None:
        self._opened, self._byte, self._patience, self._long = opened, byte % _WHOLE, patience, long
        self._fds: list[int] = []

    @property
    def fd(self) -> int:
        return self._fds[0]

    def begin(self) -> None:
        """Opens the file and takes the lock. Raises LockError if either fails."""
        try:
            self._fds.append(open_alone(self._opened))
            self._take()
        except OSError as error:
            raise LockError(*error.args) from error

    def _take(self) -> None:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self._byte, 1, 0)
        begun, look_at = time.monotonic(), trust.WAIT
        while True:
            try:
                fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, asked)
                return
            except BlockingIOError:
                if self._patience is None:
                    raise
            self._patience.check()
            if (waited := time.monotonic() - begun) > look_at:
                look_at += trust.WAIT
                self._look(self._patience, waited)
            time.sleep(max(_LEAST_PAUSE, min(waited / _SHARE, _MOST_PAUSE)))

    def _look(self, patience: LockPatience, waited: float) -> None:
        """Raises TimeoutError if the time is up, or if the holder is suspended or is not a penstock process."""
        holders = [*_holders(self.fd, self._byte)]
        if waited < trust.LONGEST and self._long and all(one.may_work for one in holders):
            return
        known = [f"process {one.pid}{' (stopped)' * one.is_stopped}" for one in holders]
        patience.lose(f"{' and '.join(known) or 'another program'} has kept a lock for more than {waited:.0f} s")

    def end(self) -> None:
        if self._fds:
            with interrupts_deferred():
                descriptors.close(self._fds.pop())


def again(fd: int) -> Callable[[], int]:
    """Returns a function that reopens the descriptor's file. Each lock needs its own descriptor."""
    return partial(os.open, f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


def open_alone(opened: Callable[[], int]) -> int:
    """Calls `opened()` and returns the new descriptor, which is closed in forked children."""

    def alone() -> int:
        with descriptors.no_fork():
            fd = opened()
            descriptors.close_in_child(fd)
        return fd

    return acquire(alone, descriptors.close)


class _Holder(NamedTuple):
    """A process that holds a lock. `may_work` is True if the process is running and its lock may be a `ByteLock`."""

    pid: int
    is_stopped: bool
    may_work: bool


def _holders(fd: int, byte: int) -> Iterator[_Holder]:
    """Yields the current user's processes that hold the lock on this byte and that `/proc` does not hide."""
    file = os.fstat(fd)
    for pid in trust.processes(os.geteuid()):
        with suppress(OSError):  # the process has ended, or is hidden from us
            state = _text(f"/proc/{pid}/stat").rpartition(") ")[2][:1]
            for number in os.listdir(f"/proc/{pid}/fd"):
                for kind, first, last in _locks_of(f"/proc/{pid}", number, file):
                    if int(first) <= byte and (last == "EOF" or byte <= int(last)):
                        yield _Holder(pid, state in "tT", state not in "tTZX" and (kind, first) == ("WRITE", last))


def _locks_of(process: str, number: str, file: os.stat_result) -> list[tuple[str, str, str]]:
    """Returns (kind, first byte, last byte) of each lock on `file` that a process holds through one descriptor."""
    with suppress(OSError):  # the descriptor was closed
        if os.path.samestat(os.stat(f"{process}/fd/{number}"), file):
            return _LOCK_OF_FILE.findall(_text(f"{process}/fdinfo/{number}"))
    return []


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def is_locked(fd: int, byte: int = 0) -> bool:
    """True if the lock on this byte is held through a descriptor other than `fd`."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer: bytes = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
    kind: int = _FLOCK.unpack(answer)[0]
    return bool(kind != fcntl.F_UNLCK)
