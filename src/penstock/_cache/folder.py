"""A cache folder: lists, counts, adds and evicts pieces.

The folder contains these files; files with other names are not touched:

    penstock-cache               total size of all pieces; locks on bytes of this file guard the folder and the pieces
    <digest>.penstock-piece      a piece: see `pieces`
    <digest>-<random>.penstock-part   a piece that is being written by the process that holds the piece's lock
    <name>.penstock-agenda       the pieces that a loader will need: see `agendas`
"""

from __future__ import annotations

import os
import re
import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import NamedTuple

from penstock._cache import agendas, pieces
from penstock._cache.agendas import Agenda, key_of, ranking
from penstock._cache.locks import ByteLock, LockError, LockPatience
from penstock._cache.pieces import FileStamp, stamp_of
from penstock._system import trust
from penstock._system.interrupts import acquire, with_loan

# In older versions, the names of parts have no random number.
_OURS = re.compile(
    r"([0-9a-f]{32})(?:-[0-9a-f]{16})?\.penstock-(piece|part)|\d+-[0-9a-f]{8}\.penstock-agenda(\.draft)?"
)
_STATE = "penstock-cache"
_HEAD = struct.Struct("<8s36sqqq")  # magic, boot id, 1 during a change, bytes, evictions
_MAGIC = b"pnstcach"

# Listing 1,000 files takes 1.4 ms, and 5 ms the first time. If there are more, an eviction frees a hundredth of the
# cache, so that listings are rare.
_FEW = 1000


class FolderTotals(NamedTuple):
    """The total size of all pieces in bytes, and a counter of evictions. The counter starts at a random number."""

    total: int
    evicted: int


class PieceFileInfo(NamedTuple):
    """A cached piece: its key in agendas, its file size in bytes, and its modification time in nanoseconds."""

    key: int
    size: int
    written: int


class FolderListing(NamedTuple):
    """The pieces in a folder, by digest, and the agendas (lists of future reads) of live loaders."""

    pieces: dict[str, PieceFileInfo]
    agendas: list[Agenda]

    @property
    def total(self) -> int:
        return sum(about.size for about in self.pieces.values())

    def ranked(self, digest: str) -> Iterator[tuple[str, int, bool]]:
        """Yields (digest, size, is_spare) for each piece, in eviction order.

        `digest` names the new piece that needs space. Spare pieces are needed later than the new piece.
        """
        digests = list(self.pieces)
        keys, sizes, times = zip(*self.pieces.values(), strict=True) if digests else ((), (), ())
        order, spare = ranking(keys, times, self.agendas, key_of(digest))
        return ((digests[at], sizes[at], spare[at]) for at in order.tolist())


class FreeSpace:
    """Tracks the free space in a folder. Listing is slow, so the folder is listed only if it may be full."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._listed = folder, FolderListing({}, [])
        self._is_listed, self._others = False, folder.noted().total

    def take(self, digest: str, nbytes: int, *, waits: bool = False) -> bool:
        """Reserves space for a piece. Returns False if there is not enough.

        The space of pieces that are needed later than the new piece counts as free. If `waits` is True, counting
        stops at the first piece in eviction order that is needed sooner than the new piece.
        """
        over = self._others + self._listed.total + nbytes + pieces.EXTRA - self._folder.limit
        if over > 0 and not self._is_listed:
            coming, self._listed = self._listed, self._folder.listed()
            self._listed.pieces.update(coming.pieces)
            self._is_listed, self._others = True, 0
            return self.take(digest, nbytes, waits=waits)
        for _, size, spare in self._listed.ranked(digest) if over > 0 else ():
            # Not spare: the best piece to evict will be used before the new one is needed.
            if over <= 0 or (waits and not spare):
                break
            over -= size if spare else 0
        if over <= 0:
            self.add(digest, nbytes)
        return over <= 0

    def add(self, digest: str, nbytes: int) -> None:
        """Counts a piece that is still being fetched as if it were already in the folder."""
        self._listed.pieces.setdefault(digest, PieceFileInfo(key_of(digest), nbytes + pieces.EXTRA, 0))


class Folder:
    """A cache folder. Pieces that are being written do not count towards `limit`. Members of `group` have access."""

    def __init__(self, path: str, limit: int, group: int | None = None) -> None:
        self.path, self.limit, self.group = path, limit, group
        self._state = os.path.join(path, _STATE)
        self._opened = partial(trust.open_or_make, self._state, group)
        self._patience = LockPatience()
        self._is_swept = False
        self._known: dict[str, PieceFileInfo] = {}  # the pieces of the last listing

    def piece(self, digest: str) -> str:
        return os.path.join(self.path, f"{digest}.penstock-piece")

    def lock(self, digest: str, *, waits: bool = True) -> ByteLock:
        """Returns the lock that a process must hold while it fetches this piece."""
        return ByteLock(self._opened, 1 + int(digest[:15], 16), self._patience if waits else None, long=True)

    def own_lock(self) -> ByteLock:
        """Returns the folder's lock, which is never held for more than a few milliseconds."""
        return ByteLock(self._opened, 0, self._patience)

    def add(self, digest: str, buffers: Sequence[memoryview]) -> tuple[int, FileStamp]:
        """Writes a piece. The caller must hold the piece's lock.

        Returns the number of evicted pieces and the stamp of the new file.
        """
        part = os.path.join(self.path, f"{digest}-{secrets.token_hex(8)}.penstock-part")
        pieces.write(part, digest, buffers, self.group)
        lock = self.own_lock()
        try:
            return with_loan(lock, self._insert, lock, digest, part)
        except BaseException:
            pieces.unlink(part)
            raise

    def _insert(self, lock: ByteLock, digest: str, part: str) -> tuple[int, FileStamp]:
        if not self._is_swept:
            self.listed(sweeps=True)
            self._is_swept = True
        # If the stored totals cannot be trusted, the pieces are counted, and the eviction counter starts at random.
        total, before = _noted(lock.fd) or FolderTotals(self.listed().total, secrets.randbits(40))
        about = os.stat(part)
        size = about.st_size
        _note(lock.fd, FolderTotals(total, before), is_changing=True)
        evicted = 0
        if total + size > self.limit:
            total, evicted = self._evict(size, digest)
        # This may replace a damaged piece, whose bytes stay in the total until the pieces are counted again.
        os.replace(part, self.piece(digest))
        _note(lock.fd, FolderTotals(total + size, before + evicted), is_changing=False)
        # As soon as the lock is released, the new piece may be evicted too.
        return evicted, stamp_of(about)

    def _evict(self, size: int, digest: str) -> tuple[int, int]:
        """Evicts pieces until `size` more bytes fit. Returns the new total size and the number of evicted pieces."""
        found = self.listed(sweeps=True)
        total, evicted = found.total, 0
        most = self.limit - size - (self.limit // 100 if len(found.pieces) > _FEW else 0)
        # The pieces that are needed later than the new one are evicted first. The sort is stable.
        for other, other_size, _ in sorted(found.ranked(digest), key=lambda one: not one[2]):
            if total <= most:
                break
            if other != digest:
                pieces.unlink(self.piece(other))
                total -= other_size
                evicted += 1
        return total, evicted

    def listed(self, *, sweeps: bool = False) -> FolderListing:
        """Lists the folder.

        If `sweeps` is True, deletes the files of dead processes. The caller must then hold the folder's lock.
        """
        found = FolderListing({}, [])
        for name in os.listdir(self.path):
            ours = _OURS.fullmatch(name)
            if ours is None:
                continue
            path, (digest, kind, draft) = f"{self.path}/{name}", ours.groups()
            if kind == "piece":
                with suppress(FileNotFoundError):
                    found.pieces[digest] = self._known.get(digest) or _about(digest, path)
            elif kind == "part":
                with suppress(LockError):
                    if sweeps:
                        with_loan(self.lock(digest, waits=False), pieces.unlink, path)
            elif (agenda := agendas.read(path, self.group, sweeps=sweeps)) is not None and draft is None:
                found.agendas.append(agenda)
        self._known = found.pieces.copy()  # a piece with the same digest has the same bytes
        return found

    def noted(self) -> FolderTotals:
        """Returns the totals stored in the folder, or (`limit`, -1) if they are invalid."""
        with suppress(OSError):
            fd = acquire(partial(trust.open_ours, self._state, group=self.group), os.close)
            try:
                return _noted(fd) or FolderTotals(self.limit, -1)
            finally:
                os.close(fd)
        return FolderTotals(self.limit, -1)


def is_file_of_cache(name: str) -> bool:
    return name == _STATE or _OURS.fullmatch(name) is not None


def _about(digest: str, path: str) -> PieceFileInfo:
    found = os.lstat(path)
    return PieceFileInfo(key_of(digest), found.st_size, found.st_mtime_ns)


def _noted(fd: int) -> FolderTotals | None:
    with suppress(struct.error):
        magic, boot, is_changing, *noted = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
        if (magic, boot, is_changing) == (_MAGIC, _boot(), 0):
            return FolderTotals(*noted)
    return None


def _note(fd: int, noted: FolderTotals, *, is_changing: bool) -> None:
    os.pwrite(fd, _HEAD.pack(_MAGIC, _boot(), is_changing, *noted), 0)


@cache
def _boot() -> bytes:
    """Returns the id of the current boot. Older totals are ignored: a power failure may have damaged them."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read(36)
