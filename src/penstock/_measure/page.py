"""Publishes the figures of a running loader to other processes of the same user, on a page of shared memory.

A page is a memfd: shared memory without a path. The publishing process keeps the page open, so readers find the page
among the file descriptors of that process: the link /proc/PID/fd/N leads to "memfd:penstock-loader". The kernel lets
only the same user (and root) follow the link. No port or file is opened, and the page disappears when the publishing
process ends, even after a crash. A reader accepts only a page that belongs to the reader's user, because a root
process may hold a memfd that another user has made.

A page has room for two publications, and the counter in the page's first eight bytes says which publication is newer.
The publisher overwrites the older publication and then increments the counter. So readers never block the publisher,
and readers find a complete publication even if the publisher is stopped in the middle of the next one. Each
publication has a checksum, which does not match if the publisher overwrote the text during the read, or if the reader
saw the new counter before the new text (some processors reorder stores).

One page per process, with a slot for each loader, was rejected. When a loader is deallocated, C code would have to
clear the loader's slot, whereas a separate page is simply closed.
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
from penstock._system.platform import HAS_PROCESSES, register_at_fork

NAME = "penstock-loader"
MOST_PAGES = 64
"""The largest number of pages in a process (each takes a file descriptor). Further loaders are not published."""

PUBLICATION_BYTES = 64 << 10
"""The largest size of a publication in bytes, including its header."""

_COUNTER = struct.Struct("Q")  # native, so it is stored atomically
_HEAD = struct.Struct("QQ")  # length and checksum of the text
_FIRST = mmap.PAGESIZE
_SIZE = _FIRST + 2 * PUBLICATION_BYTES


class _OpenPage(NamedTuple):
    memory: mmap.mmap
    end: CallAtEnd


_pages: dict[int, _OpenPage] = {}
"""The pages of this process, by the `id()` of their publishers.

A finalizer may safely remove an entry at any moment: deallocating an `mmap.mmap` unmaps its memory and closes its
file descriptor entirely in C code.
"""


def publish(by: object, text: bytes) -> None:
    """Publishes `text` on a page that is closed when `by` is deallocated. Does nothing if `text` is too long."""
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
    _pages.pop(id(by), None)


def _opened(by: object) -> _OpenPage | None:
    # No fork can happen in this block, so a forked child finds the complete page in `_pages`, or none.
    with interrupts_deferred(), no_fork():
        if len(_pages) >= MOST_PAGES or not HAS_PROCESSES:
            return None
        try:
            fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:  # no file descriptor is left, and the loader works without a page
            return None
        try:
            os.ftruncate(fd, _SIZE)
            trust.seal(fd, trust.OF_ONE_SIZE)
            memory = mmap.mmap(fd, _SIZE)  # has a file descriptor of its own
        except OSError:
            return None
        finally:
            os.close(fd)
        page = _pages[id(by)] = _OpenPage(memory, call_at_end(by, partial(_pages.pop, id(by), None)))
        return page


register_at_fork(after_in_child=_pages.clear)


class FoundPage(NamedTuple):
    """A page that was found in a process. No two pages have the same `inode`."""

    pid: int
    inode: int
    text: bytes


def find(uid: int) -> Iterator[FoundPage]:
    """Yields the readable pages of a user's processes.

    A page is yielded twice if a forked child has the page open, too.
    """
    for pid, path in memfds(uid, NAME):
        with suppress(OSError, struct.error):  # a memfd of the same name that is not a page, or is another user's
            inode, text = _read(path, uid)
            if text is not None:
                yield FoundPage(pid, inode, text)


def memfds(uid: int, name: str) -> Iterator[tuple[int, str]]:
    """Yields (process id, path) for each memfd with this name that is open in one of the user's processes."""
    for pid in trust.processes(uid):
        with suppress(OSError):  # the process has ended, or is hidden from us
            for number in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{number}"
                with suppress(OSError):  # the descriptor was closed
                    if trust.is_memfd(path, name):
                        yield pid, path


def _read(path: str, uid: int) -> tuple[int, bytes | None]:
    """Returns the inode and the newest text of a page.

    The text is None if nothing has been published yet, or if the publisher overwrote the text during each read.
    """
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
