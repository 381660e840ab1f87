"""How files of URLs are read: the options of their store, and the cache on a disk of this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from penstock._cache.cache import Cache
from penstock._remote.store import Storage
from penstock.formats._pieces import Fetch, Piece, Pieces, PiecesInMemory

CachePath = str | os.PathLike[str] | bool | None

_LEAST, _MOST = 1 << 30, 100 << 30  # bytes of a cache whose size was not given


class Access(NamedTuple):
    """`storage` has options of the library that reads URLs.

    Pieces of files are kept in the folder `cache`, up to `cache_bytes`. By default this is the cache folder of
    penstock, up to half of the space that is free on its disk, and at most 100 GB. With `cache=False`, each process
    keeps a few pieces in its memory.
    """

    storage: Storage | None = None
    cache: CachePath = None
    cache_bytes: int | None = None

    def pieces(self) -> Pieces:
        """Where pieces are kept."""
        size = self.cache_bytes
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
            raise ValueError(f"cache_bytes must be a number of bytes of 0 or more, got {size!r}.")
        if self.cache is False:
            if size is not None:
                raise ValueError("cache_bytes= was given with cache=False, which keeps nothing on a disk. Give one.")
            return PiecesInMemory()
        folder = cache_folder() / "pieces" if self.cache in (None, True) else Path(self.cache)  # type: ignore[arg-type]
        return PiecesOnDisk(Cache(folder, _size_for(folder) if size is None else size))


class PiecesOnDisk:
    """Pieces in a folder, each fetched once for all processes of this machine."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def get(self, piece: Piece, fetch: Fetch) -> memoryview:
        return self.cache.get(piece.name, partial(fetch, piece))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return PiecesOnDisk, (self.cache,)


def cache_folder() -> Path:
    """Where penstock keeps what it can make or fetch again. Raises RuntimeError if there is no home folder."""
    return Path(os.environ.get("PENSTOCK_CACHE") or Path.home() / ".cache" / "penstock")


def _size_for(folder: Path) -> int:
    """Half of what is free on the disk, and of what the cache has already."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    used = sum(entry.stat().st_size for entry in os.scandir(folder)) if folder.is_dir() else 0
    return max(_LEAST, min(_MOST, (shutil.disk_usage(there).free + used) // 2))
