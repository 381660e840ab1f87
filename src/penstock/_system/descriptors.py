"""File descriptors that no forked child may keep open.

A write end that stays open in a forked child never gives an end-of-file to the reader. So descriptors of penstock are
registered here when they are opened, and every child that this process forks closes them. A worker keeps those that
its launcher gives it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from penstock._system.interrupts import acquire, interrupts_deferred

_kept_from_children: set[int] = set()
_guard = threading.RLock()
_birth = threading.local()


def close_in_child(*fds: int) -> None:
    """Has these closed in every child that Python forks from this process.

    Call it under `no_fork()`, together with what opens them: else another thread may fork in between.
    """
    with _guard:
        _kept_from_children.update(fds)


def forget(*fds: int) -> None:
    """Undoes `close_in_child`. Call it before the close, since the numbers are used again."""
    with _guard:
        _kept_from_children.difference_update(fds)


def close(*fds: int) -> None:
    """Closes descriptors that were registered with `close_in_child`."""
    with interrupts_deferred(), no_fork():
        forget(*fds)
        for fd in fds:
            os.close(fd)


def open_memfd(name: str) -> int:
    """An unnamed file in memory, which no forked child keeps open. It can be sealed (`_trust.seal`)."""

    def made() -> int:
        with no_fork():
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            close_in_child(fd)
        return fd

    return acquire(made, close)


def no_fork() -> AbstractContextManager[bool]:
    """No other thread forks in this block. Code in the block must not take another lock."""
    return _guard


@contextmanager
def kept_by_child(fds: Iterable[int]) -> Iterator[None]:
    """A child that this thread forks in this block keeps these descriptors."""
    _birth.keep = frozenset(fds)
    try:
        yield
    finally:
        _birth.keep = frozenset()


def take_standard_streams() -> None:
    """Opens /dev/null in the place of each standard stream that is closed, so that penstock gets no such number.

    A library that writes warnings to descriptor 2 would write into shared memory, and a new process would take
    descriptor 0 for its input.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _after_fork_in_child() -> None:
    keep: frozenset[int] = getattr(_birth, "keep", frozenset())
    _birth.keep = frozenset()
    for fd in _kept_from_children - keep:
        with suppress(OSError):
            os.close(fd)
    _kept_from_children.clear()
    _guard.release()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_after_fork_in_child)
