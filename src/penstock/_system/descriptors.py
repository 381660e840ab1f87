"""File descriptors that forked children must close, so that the reader of a pipe sees the end of file.

Penstock registers its descriptors when it opens them, and every forked child closes the registered ones. A worker
keeps the descriptors that its launcher passes to it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from penstock._system.interrupts import acquire, interrupts_deferred
from penstock._system.platform import register_at_fork

_kept_from_children: set[int] = set()
_guard = threading.RLock()
_birth = threading.local()


def close_in_child(*fds: int) -> None:
    """Registers descriptors to be closed in forked children. Open and register them in one `no_fork()` block."""
    with _guard:
        _kept_from_children.update(fds)


def forget(*fds: int) -> None:
    """Undoes `close_in_child`. Call this before `os.close`: the number of a closed descriptor may be reused."""
    with _guard:
        _kept_from_children.difference_update(fds)


def close(*fds: int) -> None:
    with interrupts_deferred(), no_fork():
        forget(*fds)
        for fd in fds:
            os.close(fd)


def open_memfd(name: str) -> int:
    """Creates a memfd that is closed in forked children and can be sealed with `trust.seal`."""

    def made() -> int:
        with no_fork():
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            close_in_child(fd)
        return fd

    return acquire(made, close)


def no_fork() -> AbstractContextManager[bool]:
    """Returns a context manager that prevents other threads from forking. No lock may be taken inside the block."""
    return _guard


@contextmanager
def kept_by_child(fds: Iterable[int]) -> Iterator[None]:
    """Inside the `with` block, children that this thread forks keep these descriptors open."""
    _birth.keep = frozenset(fds)
    try:
        yield
    finally:
        _birth.keep = frozenset()


def take_standard_streams() -> None:
    """Opens /dev/null for each closed standard stream, so that no other file gets descriptor 0, 1 or 2."""
    # Otherwise a library that prints to descriptor 2 might write into shared memory, and a new process might read one
    # of penstock's files as its standard input.
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


register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_after_fork_in_child)
