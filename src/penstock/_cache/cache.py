"""The cache of a machine: named pieces of bytes in a folder, each made once for all processes."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from penstock._cache import pieces
from penstock._cache.agendas import Agenda, Publisher
from penstock._cache.folder import Folder, FreeSpace, is_file_of_cache
from penstock._cache.locks import LockError
from penstock._cache.pieces import EXTRA
from penstock._measure.cached import counting
from penstock._system import trust
from penstock._system.interrupts import with_loan
from penstock._system.warnings import warn_caller

MakePiece = Callable[[], Any]
"""Returns the bytes of a piece: a bytes-like object, or a list of them."""

_MOST_MAPPED = 1 << 13  # 64 GB in pieces of 8 MB. A process may have about 65,000 maps, and a piece may have two.
_MOST_LOOSE = 256 << 20  # bytes
_MOST_SOUND = 1 << 16
# Mapped pieces (of many, a 256th part) that are looked at whenever another is mapped: some may have been evicted.
_LOOKED_AT = 4


class _TooLarge(OSError):
    """A piece is larger than the whole cache may be."""


class _MadePiece(NamedTuple):
    """A piece, and why it is not in the folder, if it is not."""

    buffers: list[memoryview]
    refused: OSError | None = None


class Cache:
    """Pieces in a folder of a local disk, or of memory (/dev/shm), for all processes of this machine.

    The pieces have `limit` bytes at most; beyond that, the piece that is needed last is evicted (see `agendas`), or
    the oldest if no loader has said what it will need. A process keeps the pieces mapped that it has used last, so a
    piece that it uses again costs a look into a dict.

    Any number of processes and programs may use the folder. Locks are the kernel's: a process that dies at any moment
    leaves no lock, and no piece that is wrong. Files in the folder that are not of the cache are not touched.

    Other users can neither read nor write the pieces; if it is `shared`, members of the folder's group can. Raises
    Untrusted if others could write them (see `_system/trust.py`).
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int, shared: bool = False) -> None:
        self.path, self.limit, self.shared = os.path.abspath(os.fspath(folder)), limit, shared
        group = None
        try:
            group = trust.use_folder(self.path, shared)
        except trust.Untrusted as error:
            raise trust.Untrusted(
                f"The folder {self.path} cannot be a cache: {error}, so other users could change your samples. "
                "Name a folder in which only you can write: cache=, or the variable PENSTOCK_CACHE; or, if you trust "
                "all members of its group, pass cache_shared=True."
            ) from None
        except OSError:  # where there is no folder, pieces stay in memory
            pass
        if not shared:
            trust.tighten(self.path, is_file_of_cache)
        self._folder = Folder(self.path, limit, group)
        self._mapped: OrderedDict[str, memoryview] = OrderedDict()
        self._loose: OrderedDict[str, memoryview] = OrderedDict()  # pieces that could not be kept in the folder
        self._looked_at: deque[str] = deque()  # mapped pieces, the next one to look at first
        self._sound: dict[str, pieces.FileStamp] = {}  # the files whose checksum was verified, by digest
        self._warned: set[int | None] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self.path, self.limit, self.shared)

    def __repr__(self) -> str:
        return f"Cache({self.path!r}, {self.limit}{', shared=True' * self.shared})"

    def get(self, name: str, make: MakePiece) -> memoryview:
        """The bytes of a piece, read-only. They stay valid after the piece was evicted.

        If the piece is not in the folder, `make()` returns it: in one thread of one process, while others wait. What
        `make` raises is raised here, and the next that waits calls its own `make`.
        """
        found = self.found(name)
        return self._get(name, make) if found is None else found

    def found(self, name: str) -> memoryview | None:
        """The bytes of a piece that is in the folder, or in memory; else None."""
        found = self._mapped.get(name)
        if found is not None:
            try:
                self._mapped.move_to_end(name)
            except KeyError:  # another thread has dropped it
                pass
        else:
            found = self._loose.get(name) or self._map(name, digest_of(name))
        if found is not None:
            counting().hits += 1
        return found

    def mapped(self, name: str) -> memoryview | None:
        """The map of a piece that this process has mapped: the same object until it is dropped."""
        return self._mapped.get(name)

    def fetch(self, name: str, make: MakePiece) -> bool:
        """Makes a piece for a later `get`, unless it is in the folder. Waits for another process that makes it.

        Returns False, without a warning, if it could not be kept.
        """
        digest = digest_of(name)
        try:
            return with_loan(self._folder.lock(digest), self._fetched, name, digest, make)
        except LockError:
            return False

    def has(self, name: str) -> bool:
        """Whether the piece is in the folder."""
        return os.path.exists(self._folder.piece(digest_of(name)))

    def free_space(self) -> FreeSpace:
        """The room in the folder at this moment."""
        return FreeSpace(self._folder)

    @property
    def evicted(self) -> int:
        """How many pieces were evicted from the folder since it was made, by all processes. -1 if it is not known."""
        return self._folder.noted().evicted

    def publisher(self) -> Publisher:
        """An agenda in the folder, to be published."""
        return Publisher(self.path, self._folder.group)

    def publish(self, publisher: Publisher, agenda: Agenda) -> None:
        """Tells all processes what a loader will need. Raises OSError if the folder cannot be written."""
        try:
            self._folder.publish(publisher, agenda)
        except LockError as error:
            raise error.cause from None

    # A piece that is not mapped here.

    def _get(self, name: str, make: MakePiece) -> memoryview:
        digest = digest_of(name)
        try:
            made = with_loan(self._folder.lock(digest), self._made, digest, make)
        except LockError as error:
            made = _MadePiece(self._call(make), error.cause)
        counting().misses += 1
        if made.refused is not None:
            self._warn(made.refused)
        mapped = self._map(name, digest)
        return self._keep_loose(name, made.buffers) if mapped is None else mapped

    def _fetched(self, name: str, digest: str, make: MakePiece) -> bool:
        # One that is damaged is found by the process that maps it.
        return self.has(name) or self._stored(digest, self._call(make)).refused is None

    def _made(self, digest: str, make: MakePiece) -> _MadePiece:
        """The piece, which another process may have made before this one had the lock."""
        with suppress(OSError, ValueError, MemoryError):
            return _MadePiece([self._opened(digest, self._folder.piece(digest))])
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

    def _opened(self, digest: str, path: str) -> memoryview:
        view, mark = pieces.mapped(path, digest, self._sound.get(digest), self._folder.group)
        if len(self._sound) > _MOST_SOUND:
            self._sound = {}
        self._sound[digest] = mark
        return view

    def _map(self, name: str, digest: str) -> memoryview | None:
        """The piece from the folder, which stays mapped; None if it is not there, or damaged."""
        try:
            view = self._mapped[name] = self._opened(digest, self._folder.piece(digest))
        except (OSError, ValueError, MemoryError):
            return None
        self._looked_at.append(name)
        with suppress(KeyError, IndexError):  # another thread has dropped it
            for _ in range(max(_LOOKED_AT, len(self._mapped) // 256)):
                # An evicted piece takes room on the disk for as long as it is mapped.
                oldest = self._looked_at.popleft()
                if not self.has(oldest):
                    self._mapped.pop(oldest, None)
                elif oldest in self._mapped:
                    self._looked_at.append(oldest)
            while len(self._mapped) > _MOST_MAPPED:
                self._mapped.popitem(last=False)
        return view

    def _keep_loose(self, name: str, made: list[memoryview]) -> memoryview:
        """Keeps a piece in the memory of this process: its samples may be asked for one by one."""
        whole = made[0] if len(made) == 1 else memoryview(b"".join(made))
        piece = self._loose[name] = whole.toreadonly()
        with suppress(KeyError):
            while len(self._loose) > 1 and sum(map(len, self._loose.copy().values())) > _MOST_LOOSE:
                self._loose.popitem(last=False)
        return piece

    def _warn(self, error: OSError) -> None:
        """Warns once of each kind of error."""
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
    """The name of a piece in its folder."""
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
