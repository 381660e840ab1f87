"""A cache shared by all processes on a machine: named pieces of bytes in a folder, each fetched only once."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from penstock._cache import pieces
from penstock._cache.agendas import Agenda, Publisher
from penstock._cache.folder import Folder, FreeSpace, is_file_of_cache
from penstock._cache.locks import LockError
from penstock._cache.lru import LruCache
from penstock._cache.pieces import EXTRA
from penstock._measure.cached import counting
from penstock._system import trust
from penstock._system.interrupts import with_loan
from penstock._system.warnings import warn_caller

MakePiece = Callable[[], Any]
"""A function that returns the bytes of a piece, as a bytes-like object or a list of such objects."""

_MOST_MAPPED = 1 << 13  # 64 GB in pieces of 8 MB. A process may have about 65,000 maps, and a piece may have two.
_MOST_LOOSE = 256 << 20  # bytes
_MOST_SOUND = 1 << 16
# Whenever a piece is mapped, this many others (or a 256th of them, if that is more) are checked for eviction.
_LOOKED_AT = 4


class _TooLarge(OSError):
    """Raised if a piece is larger than the cache's size limit."""


class _MadePiece(NamedTuple):
    """The bytes of a piece. `refused` is the error if the piece could not be stored in the folder, otherwise None."""

    buffers: list[memoryview]
    refused: OSError | None = None


class Cache:
    """Keeps up to `limit` bytes of file pieces in a folder (on disk or in /dev/shm) for all processes on a machine.

    If a process dies, the kernel releases its locks. An incomplete piece is never used. Only the current user and, if
    `shared` is True, the members of the folder's group have access. Raises Untrusted if anyone else (except root) can
    write to the folder.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int, shared: bool = False) -> None:
        self.path, self.limit, self.shared = os.path.abspath(os.fspath(folder)), limit, shared
        group = None
        try:
            group = trust.use_folder(self.path, shared)
        except trust.Untrusted as error:
            raise trust.Untrusted(
                f"The folder {self.path} cannot be a cache: {error}, so other users could change your samples. "
                "Name a folder that only you can write to: cache=, or the variable PENSTOCK_CACHE; or, if you trust "
                "all members of its group, pass cache_shared=True."
            ) from None
        except OSError:  # without a folder, pieces stay in memory
            pass
        if not shared:
            trust.tighten(self.path, is_file_of_cache)
        self._folder = Folder(self.path, limit, group)
        # Threads share these containers without a lock, because each change is one atomic operation.
        self._mapped: dict[str, memoryview] = {}
        self._loose: LruCache[str, memoryview] = LruCache(_MOST_LOOSE)  # pieces that are not in the folder
        self._looked_at: deque[str] = deque()  # mapped pieces, the next one to check first
        self._sound: dict[str, pieces.FileStamp] = {}  # by digest: the file whose checksum was verified
        self._warned: set[int | None] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self.path, self.limit, self.shared)

    def __repr__(self) -> str:
        return f"Cache({self.path!r}, {self.limit}{', shared=True' * self.shared})"

    def get(self, name: str, make: MakePiece) -> memoryview:
        """Returns the bytes of a piece as a read-only view, which stays valid after the piece is evicted.

        If several threads or processes request a missing piece, one of them calls `make()` and the others wait. If
        `make` raises, one of the waiting callers calls its own `make`.
        """
        found = self.found(name)
        return self._get(name, make) if found is None else found

    def found(self, name: str) -> memoryview | None:
        """Returns the bytes of a piece, or None if the piece is neither in the folder nor in memory."""
        found = self._mapped.get(name)
        if found is None:
            found = self._loose.found(name) or self._map(name, digest_of(name))
        if found is not None:
            counting().hits += 1
        return found

    def mapped(self, name: str) -> memoryview | None:
        """Returns a piece if this process has mapped it, otherwise None.

        While the piece stays mapped, each call returns the same object.
        """
        return self._mapped.get(name)

    def fetch(self, name: str, make: MakePiece) -> bool:
        """Stores a piece for a later `get`. Returns False, without a warning, if the piece cannot be stored."""
        digest = digest_of(name)
        try:
            return with_loan(self._folder.lock(digest), self._fetched, name, digest, make)
        except LockError:
            return False

    def has(self, name: str) -> bool:
        return os.path.exists(self._folder.piece(digest_of(name)))

    def free_space(self) -> FreeSpace:
        return FreeSpace(self._folder)

    @property
    def evicted(self) -> int:
        """The folder's counter of evictions (see `FolderTotals`), or -1 if unknown."""
        return self._folder.noted().evicted

    def publisher(self) -> Publisher:
        return Publisher(self.path, self._folder.group)

    def publish(self, publisher: Publisher, agenda: Agenda) -> None:
        with_loan(self._folder.own_lock(), publisher.publish, agenda)

    # For pieces that this process has not mapped.

    def _get(self, name: str, make: MakePiece) -> memoryview:
        digest = digest_of(name)
        try:
            made = with_loan(self._folder.lock(digest), self._made, digest, make)
        except LockError as error:
            made = _MadePiece(self._call(make), error)
        counting().misses += 1
        if made.refused is not None:
            self._warn(made.refused)
        mapped = self._map(name, digest)
        if mapped is not None:
            return mapped
        # Kept in the memory of this process, because more samples of the piece may be needed soon.
        whole = made.buffers[0] if len(made.buffers) == 1 else memoryview(b"".join(made.buffers))
        return self._loose.get(name, lambda _: (whole.toreadonly(), len(whole)))

    def _fetched(self, name: str, digest: str, make: MakePiece) -> bool:
        # A damaged piece is detected by the process that maps it.
        return self.has(name) or self._stored(digest, self._call(make)).refused is None

    def _made(self, digest: str, make: MakePiece) -> _MadePiece:
        """Calls `make` and stores the piece, unless another process has stored it in the meantime."""
        with suppress(OSError, ValueError, MemoryError):
            return _MadePiece([self._opened(digest)])
        return self._stored(digest, self._call(make))

    def _stored(self, digest: str, buffers: list[memoryview]) -> _MadePiece:
        size = sum(map(len, buffers)) + EXTRA
        if size > self.limit:
            return _MadePiece(
                buffers, _TooLarge(errno.EFBIG, f"{size:,} bytes are more than cache_bytes={self.limit:,}")
            )
        try:
            evicted, self._sound[digest] = self._folder.add(digest, buffers)
        except OSError as error:
            return _MadePiece(buffers, error)
        counting().evicted += evicted
        return _MadePiece(buffers)

    def _call(self, make: MakePiece) -> list[memoryview]:
        made = make()
        counting().fetched += 1
        return list(map(_flat, made if isinstance(made, (list, tuple)) else [made]))

    def _opened(self, digest: str) -> memoryview:
        path = self._folder.piece(digest)
        view, mark = pieces.mapped(path, digest, self._sound.get(digest), self._folder.group)
        if len(self._sound) > _MOST_SOUND:
            self._sound = {}
        self._sound[digest] = mark
        return view

    def _map(self, name: str, digest: str) -> memoryview | None:
        try:
            view = self._mapped[name] = self._opened(digest)
        except (OSError, ValueError, MemoryError):
            return None
        self._looked_at.append(name)
        with suppress(IndexError):  # other threads have taken the others
            for _ in range(max(_LOOKED_AT, len(self._mapped) // 256)):
                # An evicted piece takes up disk space for as long as it is mapped.
                oldest = self._looked_at.popleft()
                if not self.has(oldest):
                    self._mapped.pop(oldest, None)
                elif oldest in self._mapped:
                    self._looked_at.append(oldest)
            while len(self._mapped) > _MOST_MAPPED:
                self._mapped.pop(self._looked_at.popleft(), None)
        return view

    def _warn(self, error: OSError) -> None:
        """Warns that a piece could not be written. Each error number is reported only once."""
        if error.errno not in self._warned:
            self._warned.add(error.errno)
            remedy = "Make room on the disk, or use another folder."
            if isinstance(error, _TooLarge):
                remedy = "Raise cache_bytes=."
            elif error.errno == errno.EFBIG:
                remedy = "Files of this process are limited: see `ulimit -f`."
            elif error.errno == errno.ETIMEDOUT:
                remedy = "Continue or end that program, or use another folder."
            elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR):
                remedy = "Name a folder that this user may write: cache=, or the variable PENSTOCK_CACHE."
            why = error.strerror or error
            warn_caller(
                f"A piece could not be kept in the cache {self.path}: {why}. Such pieces stay in memory, and every "
                f"process fetches them for itself. {remedy}",
                RuntimeWarning,
            )


def _flat(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


def digest_of(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
