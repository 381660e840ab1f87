"""`Tar` reads the tar shards of WebDataset by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import chain
from typing import Any, NoReturn, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._files.access import Access, FileOptions
from penstock._files.index import Index, cached_each
from penstock._files.local import AnyFile, File
from penstock._files.paths import FilePath, Paths, find_files
from penstock._files.too_large import refuse_large
from penstock._fill.cast import Empty
from penstock._system.warnings import warn_caller
from penstock.errors import FormatError
from penstock.formats._archive import Member, TarPart, check_complete, is_archive, member_at
from penstock.formats._beside import Beside, LateIndex
from penstock.formats._decoders import (
    SIZED,
    Allocate,
    Decoder,
    decoded,
    decoders,
    gathered,
    is_known,
    nbytes_of,
    same_ends,
    unused_ends,
    writes_directly,
)
from penstock.formats._extents import Extents
from penstock.formats._format import FileRows
from penstock.formats._samples import KIND, FaultRaisingFile, TarFault, find_samples, follow, split_name

_LOOKED_AT = 300  # members at the beginning of the first tar


class Tar(Extents):
    """A dataset of tar files that follow the WebDataset convention.

    A sample is a dict such as `{"__key__": "0001", "jpg": ...}`. Consecutive members whose names are equal up to the
    first dot of the file name form a sample. The part after that dot, in lower case, is the name of a field.
    `__key__` is the part before the dot, including folders. Folders, members without a dot, hidden members and
    members of folders like `__meta__` are ignored.

    `fields=("jpg", "cls")` reads only these fields; a sample that lacks one of them raises an error. `"jpg;png"`
    takes the first of the two that a sample has, and names the field jpg.

    With `decode=True`, a member is decoded according to its extension: images to RGB pixels (by
    `penstock.image`), npy to an array, npz to a dict of arrays, txt to str, cls and index to int, and json if it is
    one of the `fields`. Other members stay bytes. To replace or add decoders, pass a dict of functions that take
    bytes: `decode={"jpg": Transform(crop=224), "json": json.loads, "txt": None}`. None keeps the bytes.
    `decode=False` keeps the bytes of all members. The function for jpg is also used for jpeg, unless the dict has an
    entry for jpeg. A pickle raises an error unless the dict has a function for it.

    The positions of samples come from the file `index`, or from an index in the folder of the tars, which
    `penstock index`, wids or DALI has written. Otherwise the headers are read once, and the positions are stored
    (docs/formats.md). Paths may be URLs (docs/remote.md). Compressed tars raise an error.

    Damage raises an error for a single sample, so that the loader's `on_error` applies. If a tar is cut off or has an
    invalid header, the sample at that position stands for the rest of the tar. Links, sparse files, fields that occur
    twice, and members that are not adjacent to the other members of their sample also raise an error for a single
    sample.

    A sample that would decode to more than `max_sample_bytes` raises an error before memory is allocated for it. Your
    own functions in `decode` are not limited; a `Transform` has its own limit.

    `storage`, `cache`, `cache_bytes` and `cache_shared` apply to remote files: see `penstock.formats`.

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
    kind = KIND
    find = staticmethod(find_samples)

    def __init__(
        self,
        paths: Paths,
        decode: bool | Mapping[str, Decoder | None] = True,
        *,
        fields: str | Sequence[str] | None = None,
        index: FilePath | None = None,
        **files: Unpack[FileOptions],
    ) -> None:
        self._wanted = None if fields is None else wanted_fields(fields)
        self.decode = decode  # first, so that a TypeError is raised before files are read
        self._read = None if self._wanted is None else frozenset(chain.from_iterable(self._wanted.values()))
        self._given = index
        super().__init__(paths, **files)
        if isinstance(decode, Mapping):
            self._warn_of_unused(decode)

    def _warn_of_unused(self, decode: Mapping[str, Any]) -> None:
        """Warns if `decode` has an extension that the samples do not seem to have.

        If `fields` is given, compares the extensions with the fields. Otherwise compares them with the first members
        of the first tar, if this tar is local, and does not warn about extensions that penstock knows: the
        same `decode` may serve tars that contain jpg or png, and tars that contain only jpg.
        """
        if self._read is not None:
            unused = unused_ends(decode, self._read)
            where = f"none of the fields {', '.join(map(repr, self._wanted or ()))} has"
        else:
            unused = [end for end in unused_ends(decode, ()) if not is_known(end)]
            if unused and isinstance(self.files[0], File):
                found = _first_fields(self.files[0])
                unused = unused_ends(unused, found)
                where = (
                    f"the first members of {self.files[0].path} have {', '.join(map(repr, found)) or 'none'} and not"
                )
            else:
                unused = []
        if unused:
            warn_caller(
                f"decode has a function for {unused[0]!r}, but {where} this extension, so the function may never be "
                "called. Check its spelling, or leave it out.",
                UserWarning,
            )

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        return is_archive(first_bytes)

    def _find_indexes(self, access: Access) -> list[Index]:
        kind, make, beside = self.kind, self.find, self._beside(access)
        counts = [beside.count(file) for file in self.files]
        others = [file for file, count in zip(self.files, counts, strict=True) if count is None]
        known = iter(cached_each(others, kind, make, beside))
        return [
            next(known) if count is None else LateIndex(file, kind, make, count)
            for file, count in zip(self.files, counts, strict=True)
        ]

    def _beside(self, access: Access, warns: bool = True) -> Beside:
        given = None if self._given is None else find_files(self._given, (), "the index of Tar", access)[0]
        return Beside(self.files, given, self.kind, warns)

    def _set_indexes(self, indexes: list[Index]) -> None:
        super()._set_indexes(indexes)
        self._bad: list[BadRows | None] = [
            None if isinstance(each, LateIndex) else BadRows.of(each) for each in indexes
        ]
        bad = [(number, each) for number, each in enumerate(self._bad) if each]
        if len(self) and len(self) == sum(len(each) for _, each in bad):
            self._refuse(bad[0][0], bad[0][1].first)  # no sample can be read: most likely, these are not tars

    def _count(self, index: Index) -> int:
        return index.count if isinstance(index, LateIndex) else super()._count(index)

    def _firsts(self, number: int) -> NDArray[np.int64]:
        if isinstance(self.indexes[number], LateIndex):  # read as a whole, so that its index can be made
            return np.empty(0, np.int64)
        return super()._firsts(number)

    def ranges(self, rows: FileRows) -> Iterable[tuple[int, int]]:
        if isinstance(self.indexes[rows.file], LateIndex):
            return [(0, self.files[rows.file].size)]
        return super().ranges(rows)

    @property
    def decode(self) -> bool | Mapping[str, Decoder | None]:
        return self._decode

    @decode.setter
    def decode(self, decode: bool | Mapping[str, Decoder | None]) -> None:
        self._decode, self._decoders = decode, decoders(decode, self._wanted is not None)

    def __gather__(self, keys: Sequence[int] | NDArray[Any], empty: Empty) -> Any:
        """Returns the batch if a `ShapedDecoder` can write into it directly, otherwise NotImplemented."""
        if not writes_directly(self._decoders, empty):
            return NotImplemented
        rows = self.checked(keys)
        return gathered(
            lambda allocate: (self.decoded(*found, allocate) for found in self._raw_samples(keys, rows)),
            len(rows),
            empty,
        )

    def decoded(self, raw: bytes, number: int, row: int, allocate: Allocate | None = None) -> dict[str, Any]:
        bad = self._bad[number]
        if bad is None:
            bad = self._bad[number] = BadRows.of(self.indexes[number])
        if bad and row in bad:
            self._refuse(number, row)
        file = self.files[number]
        start, _ = self.extent(number, row)
        part = TarPart(file, raw, start)
        key, members = self._members(part, start, self._read)
        sample: dict[str, Any] = {"__key__": key}
        left, wanted = self.max_sample_bytes, self._wanted
        for field in members if wanted is None else wanted:
            end = field if wanted is None else next((name for name in wanted[field] if name in members), None)
            if end is None:
                has = ", ".join(map(repr, self._members(part, start, None)[1])) or "none"
                remedy = 'Name other fields=, or let the loader leave such samples out: on_error="skip"'
                file.refused(start, f"the sample {key!r} has no member {field!r}, but {has}. {remedy}")
            where = _Where(file, members[end])
            into = allocate if allocate is None or end == field else partial(_allocate_as, allocate, field)
            value = decoded(self._decoders, end, _content(part, members[end], where), where, into, left)
            sample[field] = value
            if left is not None and type(value) in SIZED:
                left = self._left(left, value, where)
        return sample

    def _left(self, left: int, value: Any, where: _Where) -> int:
        """Returns how many of the `left` bytes remain after `value`. Raises SampleTooLarge if none do."""
        left -= nbytes_of(value)
        if left <= 0:
            assert self.max_sample_bytes is not None
            refuse_large(where, self.max_sample_bytes - left + 1, self.max_sample_bytes)
        return left

    def _members(self, part: TarPart, start: int, read: Set[str] | None) -> tuple[str, dict[str, Member]]:
        """Returns the key and the members of the sample at offset `start`. `read` names the fields to include."""
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
                _refuse(_Where(part, member), what)
            members[field] = member
        return key or "", members

    def _refuse(self, number: int, row: int) -> NoReturn:
        file, bad = self.files[number], self._bad[number]
        assert bad is not None
        if row not in bad.others:
            try:
                follow(FaultRaisingFile(file), bad.byte)
            except TarFault as fault:
                raise FormatError(f"{fault} {_rest(bad.lost, file.size - bad.byte)}") from None
            file.has_changed()
        other = bad.others[row]
        start, there = self.extent(number, row)[0], self.extent(number, other)[0]
        member = member_at(file, start)
        if member is None or (split := split_name(member)) is None:
            file.has_changed()
        where = "further up" if other < row else "further down"
        file.refused(
            start,
            f"member {member.name!r} belongs to sample {split[0]!r}, whose other members are {where}, at byte "
            f"{there:,}. Write the tar with the members of a sample beside each other, for example with --sort=name",
        )


class BadRows:
    """The unreadable rows of a tar.

    If the tar is damaged at the offset `byte`, no row from `lost` on can be read. A row in `others` cannot be
    read because the members of its sample are not adjacent: `others` maps it to another row of the same sample.
    """

    def __init__(self, rows: int, lost: int, byte: int, others: dict[int, int]) -> None:
        self._rows, self.lost, self.byte, self.others = rows, lost, byte, others

    @classmethod
    def of(cls, index: Mapping[str, NDArray[Any]]) -> BadRows:
        if "fault" not in index and "apart" not in index:
            return _SOUND  # one object for all intact tars, which keeps a pickled dataset small
        rows = len(index["starts"]) - 1
        byte, lost = index["fault"].tolist() if "fault" in index else (0, rows)
        apart: list[list[int]] = index["apart"].tolist() if "apart" in index else []
        return cls(rows, lost, byte, {row: other for row, other in apart if row < lost})

    def __contains__(self, row: int) -> bool:
        return row >= self.lost or row in self.others

    def __len__(self) -> int:
        return self._rows - self.lost + len(self.others)

    @property
    def first(self) -> int:
        return min([*self.others, self.lost])


_SOUND = BadRows(1 << 62, 1 << 62, 0, {})


def _rest(row: int, nbytes: int) -> str:
    if not row:
        return "No sample is before it."
    samples = "sample" if row == 1 else "samples"
    cannot = f'the {max(0, nbytes):,} bytes from there on cannot: on_error="skip" leaves them out'
    return f"The {row:,} {samples} before it can be read; {cannot}."


def _first_fields(file: AnyFile) -> list[str]:
    """Returns the field names of a tar's first members. Stops where the tar is damaged."""
    found: dict[str, None] = {}
    at = 0
    try:
        for _ in range(_LOOKED_AT):
            if (member := member_at(file, at)) is None:
                break
            if (split := split_name(member)) is not None:
                found[split[1]] = None
            at = member.stop
    except (FormatError, OSError):
        pass  # the dataset reports damage when it reads samples
    return list(found)


class _Where:
    """The description of a tar member in error messages. It is formatted only when an error occurs."""

    __slots__ = ("_file", "_member")

    def __init__(self, file: AnyFile, member: Member) -> None:
        self._file, self._member = file, member

    def __str__(self) -> str:
        return f"{self._file.path}, member {self._member.name!r}, byte {self._member.data:,}"


def _content(part: TarPart, member: Member, where: _Where) -> bytes:
    if not member.is_file:
        remedy = "Write the tar with --dereference and --hard-dereference, and without --sparse"
        _refuse(where, f"it is {member.kind}, and only plain files can be read. {remedy}")
    if member.data + member.size > part.size:
        check_complete(part, member)
    return part.read(member.data, member.size)


def _allocate_as(
    allocate: Allocate, field: str, _: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    return allocate(field, shape, dtype)


def wanted_fields(fields: str | Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Maps each field to the names of the members that may provide it, preferred ones first."""
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
