"""Reads and writes indexes that are stored in the same folder as the tars they describe.

There are three kinds: `penstock.index`, the indexes of wids (a part of webdataset), and the indexes of NVIDIA DALI.
`penstock.index` is one file for all tars of a folder, so that opening thousands of tars takes one request:

    magic (8 bytes) | version, length of the description, its CRC-32 (4 bytes each)
    description: JSON with the kind of the indexes and, for each tar, its name, size, ETag (if known), the offset
    and CRC-32 of one header, the size and CRC-32 of its compressed positions, and a description of its damage
    positions of each tar: distances between samples in units of 512 bytes, 4 bytes each, compressed with zlib

An entry is used only if the tar still has the stored size, and either the stored ETag or, at the stored offset, a
header with the stored CRC-32. This is enough, because each header is checked again when the sample is read.

wids writes a JSON file with the number of samples in each tar. DALI writes a text file for each tar, `NAME.idx`:

    v1.2 <number of samples>
    one line per sample, with these words for each member: <extension> <offset of the content> <size> <name>
"""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._at_work import is_worker_process
from penstock._files.index import Arrays, Index, MakeIndex, OtherIndexes, cached
from penstock._files.local import AnyFile, File
from penstock._files.remote import RemoteFile
from penstock._remote.parallel import in_parallel
from penstock._remote.store import IN_FLIGHT
from penstock._system import trust
from penstock._system.warnings import warn_caller
from penstock.errors import FormatError, RemoteError
from penstock.formats._archive import HEADER, Member, TarPart, member_at, plain_member
from penstock.formats._extents import compact
from penstock.formats._samples import TarSamples
from penstock.stats import _units

NAME = "penstock.index"
_WIDS = ("wids-meta.json", "shardindex.json", "index.json")  # the names that users and tools give to a wids index
_MOST_WIDS = 256 << 20  # the maximum size of a wids index, in bytes
_MUCH = 64 << 20  # bytes: warn if more must be read to build indexes, which takes seconds on a slow network
_MOST_ZEROS, _MOST_HEADERS = 64 << 10, 1 << 20  # bytes of zeros at the end of a tar; of one member's headers
_MAGIC, _VERSION = b"penstars", 1
_HEAD = struct.Struct("<8sIII")
_TYPES = [str, int, str, int, int, bytes, dict]  # the types of a tar's name and of the fields of its Entry
# Arrays that only damaged tars have, and their shapes: see `_tar.BadRows`.
_BAD: dict[str, Callable[[NDArray[Any]], tuple[int, ...]]] = {"apart": lambda a: (len(a), 2), "fault": lambda a: (2,)}


class Entry(NamedTuple):
    """The entry for one tar in a `penstock.index`.

    `token` is the tar's ETag, or "" if the ETag is unknown. `place` is the offset of one header in the tar, and
    `check` is the CRC-32 of this header. `positions` holds the positions of the samples, compressed. `bad` lists the
    rows that cannot be read.
    """

    size: int
    token: str
    place: int
    check: int
    positions: bytes
    bad: Mapping[str, list[Any]]

    @classmethod
    def of(cls, size: int, token: str, place: int, check: int, arrays: Arrays) -> Entry:
        steps = np.diff(np.asarray(arrays["starts"], np.int64), prepend=0) // HEADER
        bad = {part: arrays[part].tolist() for part in _BAD if part in arrays}
        return cls(size, token, place, check, zlib.compress(steps.astype("<u4").tobytes()), bad)

    def arrays(self) -> Arrays:
        """Returns the index of the tar. Call `fits` first. Raises ValueError if the entry is damaged."""
        # Limited, because a few bytes can decompress to a thousand times their size.
        most = (self.size // HEADER + 2) * 4
        try:
            grown = zlib.decompressobj().decompress(self.positions, most + 4)
            starts = np.frombuffer(grown, "<u4").cumsum(dtype=np.int64) * HEADER
            found = {part: np.array(self.bad[part], np.int64) for part in _BAD if part in self.bad}
        except (zlib.error, TypeError, OverflowError) as error:
            raise ValueError(f"it is damaged: {error!r}") from error
        sound = len(grown) <= most and len(starts) > 0 and starts[-1] <= self.size
        if not sound or any(array.shape != _BAD[part](array) for part, array in found.items()):
            raise ValueError("its positions are not those of samples in this tar")
        return {"starts": compact(starts, self.size), **found}

    def fits(self, file: AnyFile) -> bool:
        if self.size != file.size:
            return False
        if self.token and self.token == file.modified:
            return True
        return _header(file, self.place) == self.check


def entry_of(file: AnyFile, arrays: Arrays) -> Entry:
    starts = arrays["starts"]
    place = int(starts[(len(starts) - 1) // 2])
    token = file.modified if isinstance(file, RemoteFile) else ""  # a local file's time differs from its copy's
    return Entry.of(file.size, str(token), place, _header(file, place), arrays)


def _header(file: AnyFile, place: int) -> int:
    """Returns the CRC-32 of the tar header at the offset `place`. The file may end within the header."""
    place = min(place, file.size)
    return zlib.crc32(file.peek(place, min(HEADER, file.size - place)))


def packed(entries: Mapping[str, Entry], kind: str) -> bytes:
    """Returns the content of an index file. The keys of `entries` are the tars' file names."""
    described, bodies = [], []
    for name, entry in sorted(entries.items()):
        body = entry.positions
        described.append([name, *entry[:4], len(body), zlib.crc32(body), entry.bad])
        bodies.append(body)
    description = json.dumps({"kind": kind, "tars": described}).encode()
    return b"".join([_HEAD.pack(_MAGIC, _VERSION, len(description), zlib.crc32(description)), description, *bodies])


def unpacked(content: bytes, kind: str) -> dict[str, Entry]:
    """Reverses `packed`. Raises ValueError if the content is not a valid index of this kind."""
    try:
        magic, version, length, check = _HEAD.unpack_from(content)
        description = content[_HEAD.size : _HEAD.size + length]
        if magic != _MAGIC or len(description) != length or zlib.crc32(description) != check:
            raise ValueError("it is damaged, or not an index of penstock")
        about = json.loads(description)
        if (version, about["kind"]) != (_VERSION, kind):
            raise ValueError("it was written by another version of penstock")
        at, entries = _HEAD.size + length, {}
        for name, size, token, place, header, nbytes, check, bad in about["tars"]:
            body = content[at : at + nbytes]
            if zlib.crc32(body) != check:
                raise ValueError(f"the positions of {name} are damaged")
            entries[name] = entry = Entry(size, token, place, header, body, bad)
            if [*map(type, (name, *entry))] != _TYPES or min(size, place, nbytes) < 0:
                raise ValueError(f"it is damaged at {name!r}")
            at += nbytes
        return entries
    except (struct.error, zlib.error, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is damaged, or not an index of penstock: {error!r}") from error


class LateIndex(Index):
    """A tar's index, loaded or built on first use. The number of samples may be known earlier, from a wids index."""

    def __init__(
        self, file: AnyFile, kind: str, make: MakeIndex, count: int | None, elsewhere: OtherIndexes | None = None
    ) -> None:
        super().__init__(file, kind, make, {}, False)
        self._known, self._elsewhere = count, elsewhere

    @property
    def count(self) -> int:
        return len(self["starts"]) - 1 if self._known is None else self._known

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._whole()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())

    def __reduce__(self) -> tuple[Any, ...]:
        return LateIndex, (*self._origin, self._known)

    def _whole(self) -> Arrays:
        if not self._arrays:
            found = cached(*self._origin, self._elsewhere)
            starts = found["starts"]
            missing = 0 if self._known is None else self._known - (len(starts) - 1)
            if missing < 0 or (missing and "fault" not in found):
                raise FormatError(
                    f"{self._origin[0].path} has {len(starts) - 1:,} samples, but the index of wids beside it says "
                    f"{self._known:,}. Delete or correct that index, or write one by `penstock index`, which is used "
                    "instead."
                )
            if missing:  # samples after the damage count too
                starts = np.concatenate([starts, np.repeat(starts[-1:], missing)])
            self._arrays = {**found, "starts": starts}
        return self._arrays


class Beside:
    """Looks up tars in the index files of their folders, or in the index file that the user passed (`given`)."""

    def __init__(self, files: Sequence[AnyFile], given: AnyFile | None, kind: str, warns: bool = True) -> None:
        self._kind, self._given, self._warns = kind, given, warns
        self._folders = {} if given is not None else _folders(files)
        self._reading = threading.Lock()  # many threads look up tars in one index
        self._entries: dict[str, dict[str, Entry]] = {}  # by the path of the index
        self._counts: dict[str, dict[str, list[Any]]] = {}  # by the path of the index, and the name of the tar

    def count(self, file: AnyFile) -> int | None:
        """Returns a tar's number of samples according to a wids index, or None if no such index lists the tar."""
        index = self._index(file)
        if index is None or not index.path.endswith(".json"):
            return None
        if index.path not in self._counts:
            self._counts[index.path] = _shards(index, index is self._given)
        shard = _nearest(file.path, self._counts[index.path].get(_name(file), []))
        if not shard or shard.get("filesize", file.size) != file.size or shard["nsamples"] > file.size // HEADER:
            return None  # the entry is for a different tar, because each sample has at least one header
        count: int = shard["nsamples"]
        return count

    def arrays(self, file: AnyFile) -> Arrays | None:
        """Returns the index of a tar from `penstock.index` or a DALI index, or None if there is neither."""
        index = self._index(file)
        if index is not None and not index.path.endswith(".json"):
            with self._reading:
                entry = self._entries_of(index).get(_name(file))
            if entry is not None and entry.fits(file):
                with self._refusing(index):
                    return entry.arrays()
        return dali_index(file)

    def all_others(self, files: Sequence[AnyFile]) -> None:
        """Warns if more than `_MUCH` bytes must be downloaded to build the missing indexes of these tars."""
        remote = [file for file in files if isinstance(file, RemoteFile)]
        nbytes = sum(file.size for file in remote)
        if self._warns and nbytes > _MUCH and not is_worker_process():
            warn_caller(
                f"Tar now reads {len(remote):,} remote shards ({_units.size(nbytes)}) to count their samples, before "
                "the first batch, because no index is beside them. It does so once on each machine. To avoid it, run "
                "`penstock index SHARDS` once, which writes the index beside them, or begin at once, without a "
                "length, with penstock.formats.UncountedTar (docs/webdataset.md)."
            )

    def _entries_of(self, index: AnyFile) -> dict[str, Entry]:
        if index.path not in self._entries:
            self._entries[index.path] = {}
            with self._refusing(index):
                self._entries[index.path] = unpacked(index.peek(0, index.size), self._kind)
        return self._entries[index.path]

    @contextmanager
    def _refusing(self, index: AnyFile) -> Iterator[None]:
        """In the `with` block, ignores an invalid index, or raises FormatError if the user passed that index."""
        try:
            yield
        except ValueError as error:
            if index is self._given:
                raise FormatError(f"{index.path} cannot be used as an index: {error}. Write it again.") from error

    def _index(self, file: AnyFile) -> AnyFile | None:
        return self._given or self._folders.get(folder_of(file))


def folder_of(file: AnyFile) -> str:
    return file.path.rpartition("/")[0]


def _name(file: AnyFile) -> str:
    return file.path.rpartition("/")[2]


def _folders(files: Sequence[AnyFile]) -> dict[str, AnyFile]:
    """Maps each folder that has an index to that index. Prefers a `penstock.index` to a wids index."""
    some = {folder_of(file): file for file in files}
    threads = IN_FLIGHT if any(isinstance(file, RemoteFile) for file in some.values()) else 1
    found = in_parallel(lambda file, _: _index_beside(file), some.values(), threads)
    return {folder: index for folder, index in zip(some, found, strict=True) if index is not None}


def _index_beside(file: AnyFile) -> AnyFile | None:
    return next(filter(None, (neighbour(file, name) for name in (NAME, *_WIDS))), None)


def neighbour(file: AnyFile, name: str) -> AnyFile | None:
    """Returns the file `name` in the folder of `file`, or None if that file is missing or cannot be trusted."""
    if isinstance(file, RemoteFile):
        try:
            return file.neighbour(name)
        except RemoteError as error:
            if isinstance(error, FileNotFoundError) or error.refused:
                return None
            raise  # an outage, in which other ranks may find the file
    with suppress(OSError, FormatError):
        path = os.path.join(os.path.dirname(file.path), name)
        found = File(path)
        if os.path.samestat(trust.check_beside(path, file.path), os.fstat(found.descriptor().number)):
            return found
    return None


def _shards(index: AnyFile, must: bool) -> dict[str, list[Any]]:
    """Returns the entries of a wids index by tar name. For an invalid index, raises if `must`, else returns {}."""
    found: dict[str, list[Any]] = {}
    try:
        if index.size > _MOST_WIDS:
            raise ValueError("it is too large")
        about = json.loads(index.peek(0, index.size))
        if not isinstance(about, dict) or "wids" not in f"{about.get('__kind__')} {' '.join(about)}":
            raise ValueError("it is no index of wids")
        for shard in about["shardlist"]:
            if type(shard["nsamples"]) is int and shard["nsamples"] >= 0:
                found.setdefault(shard["url"].partition("?")[0].rpartition("/")[2], []).append(shard)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if must:
            raise FormatError(f"{index.path} cannot be used as an index: {error!r}.") from error
        return {}
    return found


def _nearest(path: str, shards: list[Any]) -> Any:
    """Returns the shard whose URL has the most trailing components in common with `path`, or None for a tie."""

    def common(shard: Any) -> int:
        pairs = zip(reversed(path.split("/")), reversed(shard["url"].partition("?")[0].split("/")), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    lengths = [common(shard) for shard in shards]
    return shards[lengths.index(max(lengths))] if lengths and lengths.count(max(lengths)) == 1 else None


def dali_index(file: AnyFile) -> Arrays | None:
    """Returns the index of a tar, converted from its DALI index, or None if no DALI index describes this tar."""
    name = _name(file)
    for stem in dict.fromkeys((name.rpartition(".")[0], name[:1] + name[1:].partition(".")[0])):
        index = neighbour(file, f"{stem}.idx") if stem else None
        if index is not None and index.peek(0, min(3, index.size)) == b"v1.":
            with suppress(ValueError, IndexError):
                return _from_dali(file, index.peek(0, index.size).decode())
    return None


def _from_dali(file: AnyFile, text: str) -> Arrays:
    """Converts the text of a DALI index. Raises ValueError or IndexError if the text does not fit this tar."""
    head, *lines = text.splitlines()
    version, count = head.split()
    width = {"v1.1": 3, "v1.2": 4}[version] if version in ("v1.1", "v1.2") else 0
    if not width or int(count) != len(lines):
        raise ValueError(version)
    samples, at, members = TarSamples(), 0, list[Member]()
    for number, line in enumerate(lines):
        words = line.split(" ")
        for end, data, size, *name in (words[each : each + width] for each in range(0, len(words), width)):
            member = plain_member(name[0] if name else f"{number}.{end}", at, int(data), int(size))
            if member.data % HEADER or member.data < at + HEADER or member.size < 0:
                raise ValueError(line)
            samples.add(member)
            members.append(member)
            at = member.stop
    # The zeros at the end fill up a record of 10 kB.
    if not members or not HEADER <= file.size - at <= _MOST_ZEROS or any(file.peek(at, HEADER)):
        raise ValueError(f"the last member does not end at byte {at:,}")
    # The last member shows whether this is the same tar. If DALI got the offsets from GNU tar, the offsets before a
    # member with several headers are wrong. Then the first member that seems to have several headers has only one,
    # and the check of that member fails.
    wide = next((member for member in members if member.data - member.start > HEADER), members[0])
    for member in dict.fromkeys((members[0], wide, members[-1])):
        if member.data - member.start > _MOST_HEADERS:
            raise ValueError(f"too many headers at byte {member.start:,}")
        headers = file.peek(member.start, member.data - member.start)
        found = member_at(TarPart(file, headers, member.start), member.start)
        if found is None or found[width < 4 :] != member[width < 4 :]:
            raise ValueError(f"{found} is not {member}")
    return samples.index(at, False, file.size)
