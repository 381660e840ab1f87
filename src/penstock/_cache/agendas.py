"""Agendas: files in which loaders publish what they will read, so that any process can choose which piece to evict.

A piece is a byte range of a remote file that is cached as a whole. An agenda file contains:

    magic (8 bytes), the loader's position, number of rows (8 bytes each)
    one row for each use of a piece: key, first position that needs the piece, last such position plus 1

Rows are sorted by key. A key is the first half of a piece's digest, read as an integer. Positions count the samples
of all ranks and epochs. Each agenda is written by a scout, a background thread of the loader. The scout keeps the
position up to date, and holds a lock on the file for as long as the scout runs.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock._cache.locks import ByteLock, is_locked
from penstock._cache.pieces import unlink, write_all
from penstock._system import trust
from penstock._system.interrupts import acquire, interrupts_deferred

SUFFIX = ".penstock-agenda"
FAR = np.iinfo(np.int64).max // 2
"""The distance to the next use, in samples, if a piece will not be used again."""

_HEAD = struct.Struct("<8sqq")
_MAGIC = b"pnstagnd"
_MOST_BYTES = 1 << 26  # the largest number of bytes to read from a file; an agenda has at most 2**18 rows
_ROW = np.dtype([("key", "<u8"), ("first", "<i8"), ("stop", "<i8")])


class Agenda(NamedTuple):
    position: int
    rows: NDArray[Any]

    def distances(self, ahead: int = 0) -> NDArray[np.int64]:
        """Returns the distance of each use from the loader's position, in samples.

        A use that ends within the next `ahead` samples has the distance FAR. All other distances are at least
        `ahead`.
        """
        rows, at = self.rows, self.position + ahead
        coming: NDArray[np.int64] = np.maximum(rows["first"], at) - self.position
        return np.where(at < rows["stop"], coming, FAR)


def rows_of(keys: ArrayLike, first: ArrayLike, stop: ArrayLike) -> NDArray[Any]:
    keys = np.asarray(keys, np.uint64)
    rows = np.empty(len(keys), _ROW)
    rows["key"], rows["first"], rows["stop"] = keys, first, stop
    return rows[np.argsort(keys, kind="stable")]


def key_of(digest: str) -> int:
    return int(digest[:16], 16)


class Needs:
    """Computes when each piece is needed next, from the agendas of all loaders."""

    def __init__(self, keys: Sequence[int], agendas: Sequence[Agenda]) -> None:
        self._keys = np.array(keys, np.uint64)
        # For each agenda: the first row of each piece; the index in it of each of our pieces, and if it is found.
        self._rows = []
        for agenda in agendas:
            theirs = agenda.rows["key"]
            begins = np.flatnonzero(np.append(True, theirs[1:] != theirs[:-1])[: len(theirs)])
            if len(begins):
                at = np.minimum(theirs[begins].searchsorted(self._keys), len(begins) - 1)
                self._rows.append((agenda, begins, at, theirs[begins][at] == self._keys))

    def after(self, ahead: int) -> NDArray[np.int64]:
        """Returns the smallest distance of each piece (see `Agenda.distances`), or FAR for a piece without uses."""
        needs = np.full(len(self._keys), FAR, np.int64)
        for agenda, begins, at, known in self._rows:
            nearest = np.minimum.reduceat(agenda.distances(ahead), begins)
            np.minimum(needs, nearest[at], out=needs, where=known)
        return needs


class Ranking(NamedTuple):
    """The order in which to evict pieces, to make room for a new one."""

    order: NDArray[np.intp]  # indexes of the pieces
    spare: NDArray[np.bool_]  # for each piece: True if it is needed later than the new one


def ranking(keys: Sequence[int], times: Sequence[int], agendas: Sequence[Agenda], new: int = 0) -> Ranking:
    """Ranks pieces for eviction by Belady's rule.

    Pieces that no loader needs come first, from oldest to newest. Then come the needed pieces, beginning with
    the piece whose next use is furthest away.
    """
    needs = Needs([*keys, new], agendas)
    now = needs.after(0)
    ahead = 0 if now[-1] == FAR else int(now[-1])
    # The order is for the moment when the piece `new` will be needed. A piece that is used before that moment cannot
    # be evicted now, even if it ranks first.
    then = needs.after(ahead)[:-1]
    order = np.lexsort((np.asarray(times, np.int64), -then))
    return Ranking(order, (now[:-1] >= ahead) & (then > ahead))


class Publisher:
    """Writes a loader's agenda to the cache folder. Only one thread at a time may use a publisher."""

    def __init__(self, folder: str, group: int | None = None) -> None:
        self._path, self._group = os.path.join(folder, f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"), group
        self._locks: list[ByteLock] = []  # on the published file; a list, so that an interrupt loses none

    def publish(self, agenda: Agenda) -> None:
        """Replaces the agenda file.

        The caller must hold the folder's lock. Otherwise, another process could delete the unfinished new file.
        """
        draft = f"{self._path}.draft"
        lock = ByteLock(partial(trust.make_file, draft, self._group), 0)
        try:
            lock.begin()
            head = _HEAD.pack(_MAGIC, agenda.position, len(agenda.rows))
            write_all(lock.fd, memoryview(head + agenda.rows.tobytes()))
            os.replace(draft, self._path)
        except BaseException:
            lock.end()
            unlink(draft)
            raise
        self._locks.append(lock)
        while len(self._locks) > 1:
            self._locks[0].end()
            del self._locks[0]

    def move(self, position: int) -> None:
        if self._locks:
            os.pwrite(self._locks[-1].fd, struct.pack("<q", position), 8)

    def close(self) -> None:
        with interrupts_deferred():
            if self._locks:
                unlink(self._path)
            while self._locks:
                self._locks.pop().end()


def read(path: str, group: int | None = None, *, sweeps: bool) -> Agenda | None:
    """Reads an agenda. Returns None if the file is invalid or its writer has died.

    If `sweeps` is True, deletes the file of a dead writer.
    """
    with suppress(OSError, ValueError, struct.error):
        fd = acquire(partial(trust.open_ours, path, os.O_RDWR, group), os.close)
        try:
            if not is_locked(fd):
                if sweeps:
                    unlink(path)
                return None
            found = os.pread(fd, min(os.fstat(fd).st_size, _MOST_BYTES), 0)
        finally:
            os.close(fd)
        magic, position, count = _HEAD.unpack_from(found)
        if magic == _MAGIC:
            return Agenda(position, np.frombuffer(found, _ROW, count, _HEAD.size))
    return None
