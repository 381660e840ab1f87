"""The file format of a cached piece: the piece's bytes, followed by their length and a checksum.

    the bytes
    magic (8 bytes), length (8), checksum of the bytes (4)
    CRC-32 (4) of the piece's digest and the previous line

The bytes come first, so that they are page-aligned. A truncated or damaged file is detected and never used.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

import numpy as np

from penstock._memory.mapping import mapped as memory
from penstock._memory.mapping import view_of
from penstock._system import trust
from penstock._system.interrupts import acquire

_MAGIC = b"pnstpie2"
_END = struct.Struct("<8sQI")
_CHECK = struct.Struct("<I")
EXTRA = _END.size + _CHECK.size
"""Number of bytes that follow the piece's own bytes in the file."""

_WORDS = 512  # 8-byte words in a page, because disk and kernel write 4 KB as a whole
_AT_ONCE = 1 << 30  # bytes of one write: the kernel accepts at most 2 GB


def write(path: str, digest: str, buffers: Sequence[memoryview], group: int | None = None) -> None:
    whole = buffers[0] if len(buffers) == 1 else memoryview(b"".join(buffers))
    fd = acquire(partial(trust.make_file, path, group), os.close)
    try:
        write_all(fd, whole)
        end = _END.pack(_MAGIC, len(whole), checksum(whole))
        write_all(fd, memoryview(end + _CHECK.pack(zlib.crc32(digest.encode() + end))))
    except BaseException:
        unlink(path)
        raise
    finally:
        os.close(fd)


def write_all(fd: int, view: memoryview) -> None:
    while len(view):
        view = view[os.write(fd, view[:_AT_ONCE]) :]


def checksum(view: memoryview) -> int:
    """Returns a hash of sums of 8-byte words. CRC-32 would take three to seven times as long.

    A sum for each page reveals missing or swapped pages. A sum for each position within a page, taken over all pages,
    reveals damage within a page. Speed matters, because each process checks every piece that it maps (at 14 GB per
    second of CPU time).
    """
    count = len(view) // (8 * _WORDS)
    pages = np.frombuffer(view, np.uint64, count * _WORDS).reshape(count, _WORDS)
    found = blake2b(view[pages.nbytes :], digest_size=4)
    found.update(pages.sum(1))
    found.update(pages.sum(0))
    return int.from_bytes(found.digest(), "little")


FileStamp = tuple[int, int]
"""A file's inode number (which may be reused) and modification time, to distinguish files with the same name."""


def stamp_of(about: os.stat_result) -> FileStamp:
    return about.st_ino, about.st_mtime_ns


def mapped(
    path: str, digest: str, checked: FileStamp | None = None, group: int | None = None
) -> tuple[memoryview, FileStamp]:
    """Maps a piece. Raises ValueError if the file is damaged. Skips the checksum if `checked` is the file's stamp."""
    fd = acquire(partial(trust.open_ours, path, group=group), os.close)
    try:
        about = os.fstat(fd)
        size, stamp = about.st_size, stamp_of(about)
        if size < EXTRA:
            raise ValueError(f"{path} has only {size} bytes")
        view = view_of(memory(fd, size, writable=False), writable=False)
    finally:
        os.close(fd)
    end = bytes(view[-EXTRA : -_CHECK.size])
    magic, length, sum_of_bytes = _END.unpack(end)
    if _CHECK.unpack(view[-_CHECK.size :])[0] != zlib.crc32(digest.encode() + end) or magic != _MAGIC:
        raise ValueError(f"{path} does not end as a piece does")
    if length + EXTRA != size or (stamp != checked and checksum(view[:length]) != sum_of_bytes):
        raise ValueError(f"{path} is damaged")
    return view[:length], stamp


def unlink(path: str) -> None:
    """Deletes a file, ignoring any OSError."""
    try:
        os.unlink(path)
    except OSError:
        pass
