"""Indexes of files: arrays that are computed once, and stored beside the file or in the cache folder.

An index is stored as a file with these parts:

    magic (8 bytes) | version, length of the description, its CRC-32 (4 bytes each)
    description: JSON with the kind of index; size and time of the indexed file; name, dtype, shape and CRC-32 of
                 each array
    the arrays, each at a multiple of 64 bytes

Numbers are little-endian. An index that does not match its file, or is damaged in any way, is rebuilt.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._at_work import is_worker_process
from penstock._files.access import PiecesOnDisk, cache_folder
from penstock._files.local import AnyFile, File
from penstock._files.remote import FromTheStart, RemoteFile
from penstock._progress import progress
from penstock._remote.parallel import in_parallel
from penstock._remote.store import IN_FLIGHT
from penstock._system import trust
from penstock._system.limits import usable_cpus
from penstock._system.platform import HAS_OWNERS, HAS_PROCESSES, SYSTEM
from penstock._system.warnings import warn_caller
from penstock.loader import DataLoader
from penstock.source._dataset import Dataset

T = TypeVar("T")
Arrays = Mapping[str, NDArray[Any]]
MakeIndex = Callable[[AnyFile], Arrays]


class OtherIndexes(Protocol):
    def arrays(self, file: AnyFile) -> Arrays | None: ...

    def all_others(self, files: Sequence[AnyFile]) -> None:
        """Receives all files for which `arrays` returned None, before penstock makes their indexes."""


_MAGIC, _VERSION = b"penstock", 1
_HEAD = struct.Struct("<8sIII")
_ALIGNED = 64
_SMALL = 64 << 10  # bytes; smaller indexes are read, not mapped, because a process may have only about 65,000 maps
_ALONE = 64 << 20  # bytes; fewer are indexed by this process alone, because starting workers would take longer
_PIECE = 1 << 20
_IN_CACHE = re.compile(r"\.penstock-|^pieces$")  # names of files in penstock's cache folder
_WHAT = "indexing files"
_QUIET = 1.0  # seconds before a progress bar is shown


class Index(Mapping[str, NDArray[Any]]):
    """The arrays of an index, by name. If the arrays are stored in a file, a pickled copy reads that file."""

    def __init__(
        self,
        file: AnyFile,
        kind: str,
        make: MakeIndex,
        arrays: Arrays,
        kept: bool,
        checks: dict[str, int] | None = None,
    ) -> None:
        self._origin = file, kind, make
        self._arrays, self.kept = arrays, kept
        self._checks = checks or {}

    @property
    def path(self) -> str:
        return self._origin[0].path

    def check(self, name: str) -> int:
        """Returns the CRC-32 of an array. Computes the CRC-32 only if the index was not read from a file."""
        if name not in self._checks:
            self._checks[name] = zlib.crc32(np.ascontiguousarray(self._arrays[name]).data)
        return self._checks[name]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        return (cached, self._origin) if self.kept else (Index, (*self._origin, dict(self._arrays), False))


def cached(file: AnyFile, kind: str, make: MakeIndex, elsewhere: OtherIndexes | None = None) -> Index:
    """Returns a file's stored index, otherwise its index from `elsewhere`, otherwise a new one from `make(file)`.

    A new index is stored if possible. `kind` names the kind of index and its version, such as "tar-1". The version
    must change whenever `make` changes. `make` must be a module-level function, because `make` is pickled.
    """
    kept = _loaded(file, kind, make)
    if kept is None and elsewhere is not None and (arrays := elsewhere.arrays(file)) is not None:
        return _kept(file, kind, make, arrays)
    return kept or _made(file, kind, make)


def cached_each(
    files: Sequence[AnyFile], kind: str, make: MakeIndex, elsewhere: OtherIndexes | None = None
) -> list[Index]:
    """Returns the index of each file, like `cached`, but makes missing indexes in parallel, with a progress bar."""
    found = [_loaded(file, kind, make) for file in files]
    missing = [at for at, index in enumerate(found) if index is None]
    if elsewhere is not None and missing:
        for at, arrays in zip(missing, for_each(elsewhere.arrays, [files[at] for at in missing]), strict=True):
            found[at] = None if arrays is None else _kept(files[at], kind, make, arrays)
        missing = [at for at in missing if found[at] is None]
        elsewhere.all_others([files[at] for at in missing])
    for at, index in zip(missing, _made_each([files[at] for at in missing], kind, make), strict=True):
        found[at] = index
    return [index for index in found if index is not None]


def _made_each(files: Sequence[AnyFile], kind: str, make: MakeIndex) -> Iterator[Index]:
    # In processes, not threads, because half of the work is Python code that holds the GIL.
    alone = sum(file.size for file in files) < _ALONE or len(files) == 1 or is_worker_process()
    workers = 0 if alone or not HAS_PROCESSES else min(len(files), usable_cpus())
    what = "reading remote files" if any(isinstance(file, RemoteFile) for file in files) else _WHAT
    if workers < 2:
        yield from for_each(lambda file: _made(file, kind, make), files)
        return
    loader: DataLoader[Any] = DataLoader(_Making(files, kind, make), batch_size=None, num_workers=workers)
    with loader:
        for file, arrays in zip(files, with_progress_bar(loader, len(files), what), strict=True):
            yield Index(file, kind, make, arrays, False) if arrays else cached(file, kind, make)


class _Making(Dataset[dict[str, NDArray[Any]]]):
    """A dataset that makes indexes. Sample i is the index of file i, or {} if the index has been stored on disk."""

    def __init__(self, files: Sequence[AnyFile], kind: str, make: MakeIndex) -> None:
        self._files, self._kind, self._make = files, kind, make

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, at: int) -> dict[str, NDArray[Any]]:
        index = _made(self._files[at], self._kind, self._make)
        return {} if index.kept else dict(index)


def with_progress_bar(made: Iterable[Any], total: int | None, what: str = _WHAT) -> Iterator[Any]:
    """Yields the items, with a progress bar if they take longer than a second."""
    begun, items = time.monotonic(), iter(made)
    for done, item in enumerate(items, 1):
        yield item
        if time.monotonic() - begun > _QUIET:
            yield from progress(items, what, total=None if total is None else total - done)


def for_each(call: Callable[[AnyFile], T], files: Sequence[AnyFile], threads: int = 1) -> Iterator[T]:
    """Yields `call(file)` for each file, in order, with a progress bar. Remote files are read in parallel."""
    if any(isinstance(file, RemoteFile) for file in files):
        threads = IN_FLIGHT
    return with_progress_bar(in_parallel(lambda file, _: call(file), files, threads), len(files))


def _made(file: AnyFile, kind: str, make: MakeIndex) -> Index:
    begun = time.monotonic()
    arrays = make(FromTheStart(file) if isinstance(file, RemoteFile) else file)
    if not HAS_OWNERS and time.monotonic() - begun > _QUIET:
        _warn_of_no_indexes()
    return _kept(file, kind, make, arrays)


@cache
def _warn_of_no_indexes() -> None:
    warn_caller(
        f"The index of a large file is made again by each program that opens the file: {SYSTEM} does not say who may "
        "write a file, so penstock trusts no index that it finds on the disk, and keeps none."
    )


def _kept(file: AnyFile, kind: str, make: MakeIndex, made: Arrays) -> Index:
    arrays = {name: np.ascontiguousarray(array) for name, array in made.items()}
    for place in _places(file, kind) if file.identity.lasts else ():
        try:
            place.write(partial(_write, file, kind, arrays))
            return _loaded(file, kind, make) or Index(file, kind, make, arrays, False)
        except trust.Untrusted as error:
            # The pieces of a remote file are in the same folder, so there was a warning already.
            if isinstance(place, _InCache) and isinstance(file, File) and not is_worker_process():
                warn_caller(
                    f"The index of {file.path} is not kept in {place.path.parent}: {error}, so other users could "
                    "change it. It is made again each time. Set PENSTOCK_CACHE to a folder that only you can write."
                )
        except OSError:
            pass
    return Index(file, kind, make, arrays, False)


def _loaded(file: AnyFile, kind: str, make: MakeIndex) -> Index | None:
    for place in _places(file, kind) if file.identity.lasts else ():
        with suppress(Exception):  # the file may contain anything
            arrays, checks = _read(place, file, kind)
            return Index(file, kind, make, arrays, True, checks)
    return None


def _places(file: AnyFile, kind: str) -> Iterator[_IndexBeside | _InCache]:
    """Yields the places where an index may be stored: beside a local file, and in the cache folder."""
    if not HAS_OWNERS:
        return
    path = Path(file.path)
    if isinstance(file, File):
        yield _IndexBeside(path.with_name(f".{path.name}.penstock-{kind}"), file.path)
    with suppress(RuntimeError):  # there is no home folder
        folder = cache_folder()
        yield _InCache(folder / f"{file.identity.place}-{path.name[:100]}.penstock-{kind}", _is_shared(file, folder))


def _is_shared(file: AnyFile, folder: Path) -> bool:
    """True if a group of users shares the file's pieces in this folder, and therefore the index too."""
    pieces = file.pieces if isinstance(file, RemoteFile) else None
    if not isinstance(pieces, PiecesOnDisk):
        return False
    return pieces.cache.shared and pieces.cache.path == os.path.abspath(folder / "pieces")


class _IndexBeside(NamedTuple):
    """An index beside the indexed file, readable by all who can read that file.

    An index is used only if all other users who can write it can also change the indexed file.
    """

    path: Path
    of: str

    def check(self) -> os.stat_result:
        return trust.check_beside(os.fspath(self.path), self.of)

    def write(self, write: Callable[[int], None]) -> None:
        """Writes the index. Raises OSError if an untrusted index of another user is in the way."""
        with suppress(FileNotFoundError):
            if os.lstat(self.path).st_uid != os.geteuid():
                self.check()
        trust.replace(os.fspath(self.path), partial(self._written, write), 0o600)

    def _written(self, write: Callable[[int], None], fd: int) -> None:
        write(fd)
        ours, its = os.fstat(fd), os.stat(self.of)
        readers = stat.S_IROTH | (stat.S_IRGRP if ours.st_gid == its.st_gid else 0)
        os.fchmod(fd, 0o600 | (its.st_mode & readers))


class _InCache(NamedTuple):
    """An index in the cache folder. The index belongs to the user or, if `is_shared` is True, the folder's group."""

    path: Path
    is_shared: bool

    def check(self) -> os.stat_result:
        about, group = os.lstat(self.path), self._group()
        trust.check(about, group)
        if group is None and about.st_mode & 0o077 and about.st_uid == os.geteuid():  # created by an older version
            os.chmod(self.path, 0o600)
        return about

    def write(self, write: Callable[[int], None]) -> None:
        trust.replace(os.fspath(self.path), write, 0o600, self._group())

    def _group(self) -> int | None:
        folder = os.path.abspath(self.path.parent)
        group = trust.use_folder(folder, self.is_shared)
        if not self.is_shared:
            trust.tighten(folder, _IN_CACHE.search)
        return group


class _NoFile(NamedTuple):
    """Stands in for the indexed file when the arrays do not come from a file."""

    size: int = 0
    modified: int = 0


def computed(name: str, kind: str) -> Arrays | None:
    with suppress(Exception):  # there is no home folder, or the file may contain anything
        return _read(_computed_in(name, kind), _NoFile(), kind)[0]
    return None


def keep_computed(name: str, kind: str, arrays: Arrays) -> None:
    """Stores arrays under `name`, which identifies their content. Does nothing if the cache folder is unusable."""
    with suppress(RuntimeError, OSError):  # no home folder, or one that cannot be written or trusted
        _computed_in(name, kind).write(partial(_write, _NoFile(), kind, arrays))


def _computed_in(name: str, kind: str) -> _InCache:
    return _InCache(cache_folder() / f"{name}.penstock-{kind}", False)


def _write(file: AnyFile | _NoFile, kind: str, arrays: Arrays, fd: int) -> None:
    described = [[name, array.dtype.str, array.shape, zlib.crc32(array.data)] for name, array in arrays.items()]
    description = json.dumps(
        {"kind": kind, "size": file.size, "modified": file.modified, "arrays": described}
    ).encode()
    head = _HEAD.pack(_MAGIC, _VERSION, len(description), zlib.crc32(description))
    with open(fd, "wb", closefd=False) as out:
        out.write(head + description)
        for array in arrays.values():
            out.write(bytes(-out.tell() % _ALIGNED))
            out.write(array.data)


def _read(place: _IndexBeside | _InCache, file: AnyFile | _NoFile, kind: str) -> tuple[Arrays, dict[str, int]]:
    """Returns the arrays of an index and their CRC-32s.

    Raises an exception if the index is damaged or untrusted, or belongs to another file.
    """
    index = File(os.fspath(place.path))
    if not os.path.samestat(place.check(), os.fstat(index.descriptor().number)):
        raise ValueError("another file was put in its place")
    magic, version, length, check = _HEAD.unpack(index.read(0, _HEAD.size))
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError("no index, or of another version")
    description = index.read(_HEAD.size, length)
    if zlib.crc32(description) != check:
        raise ValueError("the description is damaged")
    about = json.loads(description)
    if (about["kind"], about["size"], about["modified"]) != (kind, file.size, file.modified):
        raise ValueError("the index of another file")
    content = np.frombuffer(index.read(0, index.size), np.uint8) if index.size <= _SMALL else index.map()
    arrays: dict[str, NDArray[Any]] = {}
    at = _HEAD.size + length
    for name, dtype, shape, check in about["arrays"]:
        at += -at % _ALIGNED
        stop = at + math.prod(shape) * np.dtype(dtype).itemsize
        if min(shape, default=0) < 0:
            raise ValueError("an array has no shape")
        if stop > index.size or _check(index, at, stop) != check:
            raise ValueError("an array is damaged")
        arrays[name] = content[at:stop].view(dtype).reshape(shape)
        at = stop
    return arrays, {name: check for name, _, _, check in about["arrays"]}


def _check(index: File, start: int, stop: int) -> int:
    """Returns the CRC-32 of these bytes. Does not map the bytes, because mapped pages count as used memory."""
    check = 0
    for at in range(start, stop, _PIECE):
        check = zlib.crc32(index.read(at, min(_PIECE, stop - at)), check)
    return check
