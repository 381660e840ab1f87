"""The options for remote files: options of the store, and options of the cache on a local disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, TypedDict

from penstock._cache.cache import Cache
from penstock._files.pieces import FetchPiece, Piece, Pieces, PiecesInMemory
from penstock._remote.store import Storage
from penstock._remote.urls import is_url, redacted
from penstock._system.platform import HAS_LOCKS, SYSTEM
from penstock._system.trust import Untrusted
from penstock._system.warnings import warn_caller

CachePath = str | os.PathLike[str] | bool | None

_LEAST, _MOST = 1 << 30, 100 << 30  # bounds of the default size of a cache, in bytes


class RemoteOptions(TypedDict, total=False):
    """The keyword arguments for remote files, which every format accepts: see `penstock.formats`."""

    storage: Storage | None
    cache: CachePath
    cache_bytes: int | None
    cache_shared: bool


class FileOptions(RemoteOptions, total=False):
    """The keyword arguments that every format accepts: see `penstock.formats`.

    A format takes them as `**files: Unpack[FileOptions]` and passes them on to `Format`.
    """

    max_sample_bytes: int | None


class Access(NamedTuple):
    storage: Storage | None = None
    cache: CachePath = None
    cache_bytes: int | None = None
    cache_shared: bool = False

    @classmethod
    def of(cls, reader: str, files: RemoteOptions) -> Access:
        if unknown := sorted(files.keys() - set(cls._fields)):
            raise TypeError(f"{reader}.__init__() got an unexpected keyword argument {unknown[0]!r}")
        return cls(**files)

    def check(self) -> None:
        """Raises TypeError or ValueError for an invalid option, even if all files are local."""
        if self.storage is not None and not isinstance(self.storage, Mapping):
            raise TypeError(f"storage must be a dict of options, but it is a {type(self.storage).__name__}.")
        if self.cache_bytes is not None:
            check_bytes("cache_bytes", self.cache_bytes)
        if self.cache is False and self.cache_bytes is not None:
            raise ValueError("cache_bytes= was given with cache=False, which keeps nothing on disk. Leave one out.")
        if not isinstance(self.cache_shared, bool):
            raise TypeError(f"cache_shared must be True or False, but it is {self.cache_shared!r}.")
        if self.cache is False and self.cache_shared:
            raise ValueError(
                "cache_shared=True was given with cache=False, which keeps nothing on disk. Leave one out."
            )
        if self.cache is None or isinstance(self.cache, bool):
            return
        if not isinstance(self.cache, (str, os.PathLike)):
            raise TypeError(f"cache must be the path of a folder, True or False, but it is {self.cache!r}.")
        path = os.fspath(self.cache)
        if not path or is_url(path):
            given = redacted(path) if path else path
            raise ValueError(f"cache must be a folder of a local disk, such as '/local/cache', but it is {given!r}.")
        if redacted(path) != path and not os.path.exists(path):
            raise ValueError(f"cache must be a folder of a local disk, but {redacted(path)!r} looks like a URL.")
        if not (there := _nearest(Path(path))).is_dir():
            raise ValueError(f"cache must be a folder, but {str(there)!r} is a file. Name another folder.")

    def pieces(self) -> Pieces:
        if self.cache is False:
            return PiecesInMemory()
        if not HAS_LOCKS:
            _warn_of_no_cache()
            return PiecesInMemory()
        given = None if isinstance(self.cache, bool) else self.cache
        try:
            folder = cache_folder() / "pieces" if given is None else Path(given)
        except RuntimeError:
            warn_caller(
                "This user has no home folder for the cache of remote files: they are kept in memory, and every "
                "process downloads them for itself. Set PENSTOCK_CACHE, or pass a folder as cache=."
            )
            return PiecesInMemory()
        limit = _size_for(folder) if self.cache_bytes is None else self.cache_bytes
        try:
            return PiecesOnDisk(Cache(folder, limit, self.cache_shared))
        except Untrusted as error:
            if given is not None:
                raise
            warn_caller(f"{error} Until then, remote files are kept in memory: every process downloads its own.")
            return PiecesInMemory()


@cache
def _warn_of_no_cache() -> None:
    warn_caller(
        f"Remote files are kept in memory and not on disk, because penstock's cache needs locks that only Linux has, "
        f"and this is {SYSTEM}. So each program downloads them again. Pass cache=False to confirm this."
    )


class PiecesOnDisk:
    """Keeps pieces of remote files in a folder. Each piece is fetched only once for all processes on this machine."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.passing = PiecesInMemory()

    def get(self, piece: Piece, fetch: FetchPiece) -> memoryview:
        return self.cache.get(piece.name, partial(fetch, piece))

    def found(self, piece: Piece) -> memoryview | None:
        return self.cache.found(piece.name)

    def mapped(self, piece: Piece) -> memoryview | None:
        return self.cache.mapped(piece.name)


def cache_folder() -> Path:
    """Returns the folder for indexes and pieces. Raises RuntimeError if the user has no home folder."""
    return Path(os.environ.get("PENSTOCK_CACHE") or Path.home() / ".cache" / "penstock")


def check_bytes(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number of bytes, such as 10 * 10**9 for 10 GB, got {value!r}.")


def _nearest(path: Path) -> Path:
    """Returns the path itself if it exists, otherwise its nearest existing parent folder."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if os.path.exists(each))


def _size_for(folder: Path) -> int:
    """Returns the default size limit of the cache: half of the disk space that is either free or taken by the cache.

    The limit is at least 1 GB and at most 100 GB.
    """
    free = used = 0
    with suppress(OSError):  # if the folder is missing or not readable, the cache warns about it
        free = shutil.disk_usage(_nearest(folder)).free
        for entry in os.scandir(folder):
            with suppress(OSError):  # another program has just deleted it
                used += entry.stat().st_size
    return max(_LEAST, min(_MOST, (free + used) // 2))
