"""`Tar`: WebDataset's shards, by key."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock._fill.cast import Empty, Into
from penstock._fill.collate import collate
from penstock._remote.store import Storage
from penstock.errors import FormatError
from penstock.formats._access import Access, CachePath
from penstock.formats._archive import Bytes, Member, check_complete, member_at
from penstock.formats._decoders import Decoder, Room, decoded, decoders, fixed_shape, same_ends
from penstock.formats._extents import Extents, compact, refuse_compressed
from penstock.formats._files import AnyFile
from penstock.formats._index import Arrays, Index
from penstock.formats._paths import Paths
from penstock.source._array import checked_keys

_PIECE = 1 << 20


class Tar(Extents):
    """The samples of tar files in WebDataset's convention; each is a dict such as `{"__key__": "0001", "jpg": ...}`.

    Consecutive members whose names are equal up to the first dot of the file name form a sample. What follows the
    dot, in lower case, is the name of a field. `__key__` is what precedes it, folders included. Folders, members
    without a dot, hidden ones and those in folders like `__meta__` are left out.

    `fields=("jpg", "cls")` reads these fields only; a sample that lacks one of them is an error of that sample.
    `"jpg;png"` takes the first of the two that a sample has, and calls it jpg.

    With `decode=True` a member is decoded by the end of its name: images by `penstock.image` to RGB pixels, npy, npz
    (a dict), txt to str, cls and index to int; json if it is one of the `fields`; others stay bytes. A dict of
    functions of bytes replaces or adds some: `decode={"jpg": Transform(crop=224), "json": json.loads, "txt": None}`;
    None keeps the bytes. `decode=False` keeps all bytes. What is said of jpg holds for jpeg, too, unless that is
    named. Pickles are an error unless there is a function for them.

    The positions of samples are found beside the tars, in what `penstock index` has written or in indexes of wids or
    DALI, or in the file `index`. Otherwise they are made once from the headers, and kept (docs/formats.md). Paths may
    be URLs (docs/remote.md). Compressed tars are refused.

    Damage is an error of a sample, so that `on_error` of the loader applies: where a tar is cut off or has a wrong
    header, the sample there stands for the rest of the tar. So are links, sparse files, fields that come twice, and
    members of a sample that are not beside each other.

    `storage`, `cache` and `cache_bytes` are for files of URLs: see `penstock.formats`.

    >>> import io, tarfile, tempfile
    >>> path = tempfile.mkdtemp() + "/shard-000.tar"
    >>> with tarfile.open(path, "w") as tar:
    ...     for name, data in [("a.txt", b"one"), ("a.cls", b"1"), ("b.txt", b"two"), ("b.cls", b"2")]:
    ...         info = tarfile.TarInfo(name)
    ...         info.size = len(data)
    ...         tar.addfile(info, io.BytesIO(data))
    >>> Tar(path)[1]
    {'__key__': 'b', 'txt': 'two', 'cls': 2}
    """

    suffixes = (".tar",)

    def __init__(
        self,
        paths: Paths,
        decode: bool | Mapping[str, Decoder | None] = True,
        *,
        fields: str | Sequence[str] | None = None,
        storage: Storage | None = None,
        cache: CachePath = None,
        cache_bytes: int | None = None,
    ) -> None:
        self._wanted = None if fields is None else wanted_fields(fields)
        self.decode = decode  # first: it raises for what is no function, before files are read
        self._read = None if self._wanted is None else frozenset(chain.from_iterable(self._wanted.values()))
        super().__init__(paths, "tar-2", find_samples, Access(storage, cache, cache_bytes))

    def _set_indexes(self, indexes: list[Index]) -> None:
        super()._set_indexes(indexes)
        self._bad = [_Bad.of(index) for index in indexes]
        if len(self) and len(self) == sum(map(len, self._bad)):
            number = next(number for number, bad in enumerate(self._bad) if bad)
            self._refuse(number, self._bad[number].first)  # not one sample can be read: more likely, no tars

    @property
    def decode(self) -> bool | Mapping[str, Decoder | None]:
        return self._decode

    @decode.setter
    def decode(self, decode: bool | Mapping[str, Decoder | None]) -> None:
        self._decode, self._decoders = decode, decoders(decode, self._wanted is not None)

    def __gather__(self, keys: Sequence[int] | NDArray[Any], empty: Empty) -> Any:
        """The batch of these keys, equal to the collated samples; `empty(shape, dtype)` allocates its memory.

        A `Transform` with a fixed shape writes its images straight into the batch. NotImplemented if there is none,
        or if the samples have different fields: then the samples are collated, and an error names the rows.
        """
        if type(empty) is Into or not any(map(fixed_shape, self._decoders.values())):
            return NotImplemented
        rows = checked_keys(keys, len(self))
        outs: dict[str, NDArray[Any]] = {}
        samples: list[dict[str, Any]] = []

        def room(field: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
            if field not in outs:
                outs[field] = empty((len(rows), *shape), dtype)
            here: NDArray[Any] = outs[field][len(samples)]
            return here

        for found in self._found(keys, rows):
            samples.append(self._decoded(*found, room))  # noqa: PERF401 - `room` counts them
        if not samples or any(sample.keys() != samples[0].keys() for sample in samples):
            return NotImplemented
        others = [{field: value for field, value in sample.items() if field not in outs} for sample in samples]
        batch = collate(others, empty)
        return {field: outs[field] if field in outs else batch[field] for field in samples[0]}

    def _decoded(self, raw: bytes, number: int, row: int, room: Room | None = None) -> dict[str, Any]:
        if self._bad[number] and row in self._bad[number]:
            self._refuse(number, row)
        file = self._files[number]
        start, _ = self._extent(number, row)
        part = _Part(file, raw, start)
        key, members = self._members(part, start, self._read)
        sample: dict[str, Any] = {"__key__": key}
        if self._wanted is None:
            for field, member in members.items():
                where = _Where(file, member)
                sample[field] = decoded(self._decoders, field, _content(part, member, where), where, room)
            return sample
        for field, names in self._wanted.items():
            end = next((name for name in names if name in members), None)
            if end is None:
                has = ", ".join(map(repr, self._members(part, start, None)[1])) or "none"
                remedy = 'Name other fields=, or let the loader leave such samples out: on_error="skip"'
                file.refused(start, f"the sample {key!r} has no member {field!r}, but {has}. {remedy}")
            where = _Where(file, members[end])
            into = room if room is None or end == field else partial(_room_of, room, field)
            sample[field] = decoded(self._decoders, end, _content(part, members[end], where), where, into)
        return sample

    def _members(self, part: _Part, start: int, read: Set[str] | None) -> tuple[str, dict[str, Member]]:
        """The key of the sample that begins here, and its members by field: those in `read`."""
        key: str | None = None
        members: dict[str, Member] = {}
        at = start
        while at < part.size:
            member = member_at(part, at)
            if member is None:
                break
            at = member.stop
            split = split_name(member)
            if split is None:
                continue
            if key is None:
                key = split[0]
            elif split[0] != key:
                part.damaged(member.start, f"member {member.name!r} is not part of sample {key!r}")
            field = split[1]
            if read is not None and field not in read:
                continue
            if field in members or field == "__key__":
                what = f"the sample {key!r} has a second member {field!r}. Rename one of the two"
                _refuse(_Where(part.file, member), what)
            members[field] = member
        return key or "", members

    def _refuse(self, number: int, row: int) -> NoReturn:
        """Raises FormatError for a row of which the index knows that it cannot be read."""
        file, bad = self._files[number], self._bad[number]
        if row not in bad.others:
            try:
                follow(_Judged(file), bad.byte)
            except Fault as fault:
                raise FormatError(f"{fault} {_rest(row, file.size - bad.byte)}") from None
            file.has_changed()
        other = bad.others[row]
        start, there = self._extent(number, row)[0], self._extent(number, other)[0]
        member = member_at(file, start)
        if member is None or (split := split_name(member)) is None:
            file.has_changed()
        where = "further up" if other < row else "further down"
        file.refused(
            start,
            f"member {member.name!r} belongs to sample {split[0]!r}, whose other members are {where}, at byte "
            f"{there:,}. Write the tar with the members of a sample beside each other, for example with --sort=name",
        )


class _Bad:
    """The rows of a tar that cannot be read: from the row `lost` on because of a fault at `byte`, and `others`: rows
    of samples whose members are apart, with the row of their other members.
    """

    def __init__(self, rows: int, lost: int, byte: int, others: dict[int, int]) -> None:
        self._rows, self._lost, self.byte, self.others = rows, lost, byte, others

    @classmethod
    def of(cls, index: Mapping[str, NDArray[Any]]) -> _Bad:
        rows = len(index["starts"]) - 1
        fault = index.get("fault")
        lost, byte = (rows, 0) if fault is None else (rows - 1, int(fault[0]))
        apart: list[list[int]] = index["apart"].tolist() if "apart" in index else []
        return cls(rows, lost, byte, {row: other for row, other in apart if row < lost})

    def __contains__(self, row: int) -> bool:
        return row >= self._lost or row in self.others

    def __len__(self) -> int:
        return self._rows - self._lost + len(self.others)

    @property
    def first(self) -> int:
        return min([*self.others, self._lost])


def _rest(row: int, nbytes: int) -> str:
    samples = "sample" if row == 1 else "samples"
    before = f"The {row:,} {samples} before it can be read" if row else "No sample is before it"
    return f'{before}; the {max(0, nbytes):,} bytes from there on cannot: on_error="skip" leaves them out.'


class _Where:
    """Names a member in errors."""

    __slots__ = ("_file", "_member")

    def __init__(self, file: AnyFile, member: Member) -> None:
        self._file, self._member = file, member

    def __str__(self) -> str:
        return f"{self._file.path}, member {self._member.name!r}, byte {self._member.data:,}"


def _content(part: _Part, member: Member, where: _Where) -> bytes:
    if not member.is_file:
        remedy = "Write the tar with --dereference and --hard-dereference, and without --sparse"
        _refuse(where, f"it is {member.kind}, and only plain files can be read. {remedy}")
    if member.data + member.size > part.size:
        check_complete(part, member)
    return part.read(member.data, member.size)


def _room_of(room: Room, field: str, _: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    return room(field, shape, dtype)


class _Part:
    """The bytes of a file from `start` on that were read at once. `size` is that of the file up to their end."""

    def __init__(self, file: AnyFile, raw: bytes, start: int) -> None:
        self.file, self._raw, self._start = file, raw, start
        self.size = start + len(raw)

    def read(self, start: int, length: int) -> bytes:
        return self._raw[start - self._start : start - self._start + length]

    def refused(self, place: int, what: str) -> NoReturn:
        self.file.refused(place, what)

    def damaged(self, place: int, what: str) -> NoReturn:
        self.file.damaged(place, what)


def split_name(member: Member) -> tuple[str, str] | None:
    """The key of the member's sample and the name of its field; None if it belongs to no sample."""
    folder, slash, file = member.name.rpartition("/")
    stem, _, field = file.partition(".")
    first = member.name.partition("/")[0]
    if member.is_folder or not stem or not field or (first[:2] == first[-2:] == "__" and len(first) > 3):
        return None
    return folder + slash + stem, field.lower()


class Fault(FormatError):
    """What is wrong with a tar at some byte. Not for a disk or a network that fails, or a file that has changed."""


class _Judged:
    """A file in which what is wrong is a `Fault`."""

    def __init__(self, file: AnyFile) -> None:
        self._file, self.size, self.read = file, file.size, file.read

    def refused(self, place: int, what: str) -> NoReturn:
        self._raise(self._file.refused, place, what)

    def damaged(self, place: int, what: str) -> NoReturn:
        self._raise(self._file.damaged, place, what)

    def _raise(self, refuse: Callable[[int, str], NoReturn], place: int, what: str) -> NoReturn:
        try:
            refuse(place, what)
        except FormatError as error:
            said = str(error)
        raise Fault(said)


def find_samples(file: AnyFile) -> Arrays:
    """The index of a tar: `starts`, the first byte of each sample and the end of the last.

    `apart`, if there are such samples: rows whose members are not all beside each other, with the row of the others.
    `fault`, if the tar has one: the byte from which on it cannot be read; the last row stands for it.
    """
    refuse_compressed(file)
    archive, samples = _Judged(file), _Samples()
    at, fault = 0, False
    try:
        while (member := member_at(archive, at)) is not None:
            samples.add(member)
            check_complete(archive, member)
            at = member.stop
        samples.close()
        _check_rest(archive, at)
    except Fault:
        fault = True
    return samples.index(at, fault, file.size)


class _Samples:
    """The samples of a tar, whose members are added one by one."""

    def __init__(self) -> None:
        self._starts, self._apart = array("q"), array("q")
        self._key: str | None = None
        self._fields: list[str] = []
        self._known: dict[str, tuple[int, str]] = {}  # of each key the first row, and its fields

    def add(self, member: Member) -> None:
        split = split_name(member)
        if split is None:
            return
        if split[0] != self._key:
            self.close()
            self._key = split[0]
            self._starts.append(member.start)
        self._fields.append(split[1])

    def close(self) -> None:
        """The members of the last sample are complete."""
        key, fields, row = self._key, self._fields, len(self._starts) - 1
        self._key, self._fields = None, []
        if key is None:
            return
        if key not in self._known:
            self._known[key] = row, sys.intern("/".join(fields))  # no field has a slash
            return
        other, others = self._known[key]
        self._apart.extend((row, other))
        if not set(others.split("/")).intersection(fields):  # the parts of one sample, and not two of the same name
            self._apart.extend((other, row))

    def index(self, end: int, fault: bool, size: int) -> Arrays:
        starts = self._starts
        if fault and self._key is None:  # the fault is not in a sample: it gets a row of its own
            starts.append(end)
        self.close()
        starts.append(starts[-1] if fault else end)  # nothing is read of a row that cannot be
        found = {"starts": compact(np.array(starts, np.int64), size)}
        if self._apart:
            found["apart"] = np.array(self._apart, np.int64).reshape(-1, 2)
        if fault:
            found["fault"] = np.array([end], np.int64)
        return found


def follow(archive: Bytes, at: int) -> None:
    """Raises FormatError for the fault of a tar at this byte."""
    member = member_at(archive, at)
    if member is None:
        _check_rest(archive, at)
    else:
        check_complete(archive, member)


def _check_rest(archive: Bytes, end: int) -> None:
    """Raises FormatError unless only zeros follow the end of the archive."""
    for at in range(end, archive.size, _PIECE):
        piece = archive.read(at, min(_PIECE, archive.size - at))
        if piece.count(0) != len(piece):
            remedy = "If tar files were joined by cat, join them by tar --concatenate"
            archive.refused(end, f"the archive ends here, but more follows. {remedy}")


def wanted_fields(fields: str | Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The names of members that may be each field, the preferred first. A str has names with spaces between them."""
    given = fields.split() if isinstance(fields, str) else list(fields)
    if not given or not all(isinstance(each, str) and each.strip(" .;") for each in given):
        raise TypeError(f"fields must be the names of members, such as ('jpg', 'cls'), but it is {fields!r}.")
    wanted: dict[str, tuple[str, ...]] = {}
    for each in given:
        names = [name.strip().lower().lstrip(".") for name in each.split(";") if name.strip(" .")]
        if names[0] in wanted:
            raise ValueError(f"fields has {names[0]!r} twice: {fields!r}.")
        if names[0] != "__key__":  # every sample has it
            wanted[names[0]] = tuple(dict.fromkeys(other for name in names for other in same_ends(name)))
    return wanted


def _refuse(where: _Where, what: str) -> NoReturn:
    raise FormatError(f"{where}: {what}.")
