"""Pages: the figures of a running loader, which other processes of the same user can read.

A page is a piece of shared memory without a name, a memfd. Its publisher keeps it open, and so it is found among the
descriptors of that process: the link /proc/PID/fd/N leads to "memfd:penstock-loader". The kernel lets only the same
user (and root) follow the link, no port or file is opened, and the page disappears with its process, however that
ends. A reader accepts only a page that belongs to the user: a process of root may hold a memfd that another user has
made.

A page has room for two publications; the counter in its first eight bytes says which one is newer. The publisher
overwrites the older one, and then increments the counter. So a reader never blocks it, and finds a complete
publication even if the publisher is stopped in the middle of the next one. The checksum fails for a reader that was
overtaken, or that saw the counter before the text (some processors reorder stores).

Rejected: one page for all loaders of a process, with a slot for each. C code would have to empty the slot of a loader
that is gone; a separate page is just closed.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from zlib import crc32

from penstock._system import trust
from penstock._system.descriptors import no_fork
from penstock._system.interrupts import CallAtEnd, call_at_end, interrupts_deferred

NAME = "penstock-loader"
MOST_PAGES = 64
"""The largest number of pages of this process, each a descriptor. Further loaders are not shown."""

PUBLICATION_BYTES = 64 << 10
"""Bytes of a publication and its head."""

_COUNTER = struct.Struct("Q")  # native, and so stored at once
_HEAD = struct.Struct("QQ")  # length and checksum of the text
_FIRST = mmap.PAGESIZE
_SIZE = _FIRST + 2 * PUBLICATION_BYTES


class _OpenPage(NamedTuple):
    memory: mmap.mmap
    end: CallAtEnd


_pages: dict[int, _OpenPage] = {}
"""The pages of this process, by the id of their publisher.

Dropping an `mmap.mmap` unmaps its memory and closes its descriptor, all in C code: it may happen at any instruction.
"""


def publish(by: object, text: bytes) -> None:
    """Puts the text on the page of `by`, in place of the text before.

    The page exists until it is withdrawn, or `by` is deallocated.
    A text that is too long is not published.
    """
    page = _pages.get(id(by)) or _opened(by)
    if page is None or len(text) > PUBLICATION_BYTES - _HEAD.size:
        return
    memory = page.memory
    (count,) = _COUNTER.unpack_from(memory, 0)
    at = _FIRST + (count + 1) % 2 * PUBLICATION_BYTES
    memory[at + _HEAD.size : at + _HEAD.size + len(text)] = text
    _HEAD.pack_into(memory, at, len(text), crc32(text))
    _COUNTER.pack_into(memory, 0, count + 1)


def withdraw(by: object) -> None:
    """Closes the page of `by`, if it has one."""
    _pages.pop(id(by), None)


def _opened(by: object) -> _OpenPage | None:
    # As one step: a forked child finds all of it in `_pages`, or nothing.
    with interrupts_deferred(), no_fork():
        if len(_pages) >= MOST_PAGES:
            return None
        try:
            fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:  # no descriptor is left: the loader can do without a page
            return None
        try:
            os.ftruncate(fd, _SIZE)
            trust.seal(fd, trust.OF_ONE_SIZE)
            memory = mmap.mmap(fd, _SIZE)  # has a descriptor of its own
        except OSError:
            return None
        finally:
            os.close(fd)
        page = _pages[id(by)] = _OpenPage(memory, call_at_end(by, partial(_pages.pop, id(by), None)))
        return page


os.register_at_fork(after_in_child=_pages.clear)


class FoundPage(NamedTuple):
    """A page of a process. `inode` distinguishes pages."""

    pid: int
    inode: int
    text: bytes


def find(uid: int) -> Iterator[FoundPage]:
    """Yields the readable pages of all processes of a user. A process that inherited a page has it too."""
    for pid, path in memfds(uid, NAME):
        with suppress(OSError, struct.error):  # a memfd of the same name that is no page, or of another user
            inode, text = _read(path, uid)
            if text is not None:
                yield FoundPage(pid, inode, text)


def memfds(uid: int, name: str) -> Iterator[tuple[int, str]]:
    """Yields the process id and the path of each memfd of this name that a process of the user has open."""
    for pid in trust.processes(uid):
        with suppress(OSError):  # the process has ended, or is hidden from us
            for number in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{number}"
                with suppress(OSError):  # the descriptor was closed
                    if trust.is_memfd(path, name):
                        yield pid, path


def _read(path: str, uid: int) -> tuple[int, bytes | None]:
    """Returns the inode of a page, and its newest text, which is None if nothing was published yet."""
    fd = trust.open_sealed(path, NAME, trust.OF_ONE_SIZE, owner=uid)
    try:
        inode = os.fstat(fd).st_ino
        for _ in range(3):  # retries only if the publisher has written two texts meanwhile
            counter = os.pread(fd, _COUNTER.size, 0)
            if not any(counter):
                break
            read = os.pread(fd, PUBLICATION_BYTES, _FIRST + _COUNTER.unpack(counter)[0] % 2 * PUBLICATION_BYTES)
            length, checksum = _HEAD.unpack_from(read)
            text = read[_HEAD.size :][:length]
            if crc32(text) == checksum:
                return inode, text
        return inode, None
    finally:
        os.close(fd)
