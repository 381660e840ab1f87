"""`Tar`: WebDataset's shards, by key."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock._fill.cast import Empty, Into
from penstock._fill.collate import collate
from penstock._remote.store import Storage
from penstock.errors import FormatError
from penstock.formats._access import Access, CachePath
from penstock.formats._archive import Member, member_at
from penstock.formats._decoders import Decoder, Room, decoded, decoders, fixed_shape
from penstock.formats._extents import Extents, compact, refuse_compressed
from penstock.formats._files import AnyFile
from penstock.formats._index import Arrays
from penstock.formats._paths import Paths
from penstock.source._array import checked_keys

_PIECE = 1 << 20


class Tar(Extents):
    """The samples of tar files in WebDataset's convention; each is a dict such as `{"__key__": "0001", "jpg": ...}`.

    Consecutive members whose names are equal up to the first dot of the file name form a sample. What follows the
    dot, in lower case, is the name of a field. `__key__` is what precedes it, folders included. Folders, members
    without a dot, hidden ones and those in folders like `__meta__` are left out. The members of a sample must be
    beside each other: a tar in which a key comes again later is refused.

    With `decode=True` a member is decoded by the end of its name: images by `penstock.image` to RGB pixels, json,
    npy, npz (a dict), txt to str, cls and index to int; others stay bytes. A dict of functions of bytes replaces or
    adds some: `decode={"jpg": Transform(crop=224), "txt": None}`; None keeps the bytes. `decode=False` keeps all
    bytes. Pickles are an error unless there is a function for them.

    The index of a tar is made once from its headers, and kept (docs/formats.md); a sample is then one read. Paths may
    be URLs (docs/remote.md). Compressed tars are refused. Links, sparse files and fields that come twice are errors
    of their sample.

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
        storage: Storage | None = None,
        cache: CachePath = None,
        cache_bytes: int | None = None,
    ) -> None:
        self.decode = decode  # first: it raises for what is no function, before files are read
        super().__init__(paths, "tar-1", find_samples, Access(storage, cache, cache_bytes))

    @property
    def decode(self) -> bool | Mapping[str, Decoder | None]:
        return self._decode

    @decode.setter
    def decode(self, decode: bool | Mapping[str, Decoder | None]) -> None:
        self._decode, self._decoders = decode, decoders(decode)

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
        file = self._files[number]
        start, _ = self._extent(number, row)
        part = _Part(file, raw, start)
        sample: dict[str, Any] = {}
        at = start
        while at < part.size:
            member = member_at(part, at)
            at = part.size if member is None else member.stop
            if member is None or (split := split_name(member)) is None:
                continue
            key, field = split
            name = f"{file.path}, member {member.name!r}, byte {member.data:,}"
            if sample.setdefault("__key__", key) != key:
                part.damaged(member.start, f"member {member.name!r} is not part of sample {sample['__key__']!r}")
            if not member.is_file:
                remedy = "Write the tar with --dereference and --hard-dereference, and without --sparse"
                _refuse(name, f"it is {member.kind}, and only plain files can be read. {remedy}")
            if field in sample:
                _refuse(name, f"the sample {key!r} has a second member {field!r}. Rename one of the two")
            sample[field] = decoded(self._decoders, field, part.read(member.data, member.size), name, room)
        return sample


class _Part:
    """The bytes of a file from `start` on that were read at once. `size` is that of the file up to their end."""

    def __init__(self, file: AnyFile, raw: bytes, start: int) -> None:
        self._file, self._raw, self._start = file, raw, start
        self.size = start + len(raw)

    def read(self, start: int, length: int) -> bytes:
        return self._raw[start - self._start : start - self._start + length]

    def refused(self, place: int, what: str) -> NoReturn:
        self._file.refused(place, what)

    def damaged(self, place: int, what: str) -> NoReturn:
        self._file.damaged(place, what)


def split_name(member: Member) -> tuple[str, str] | None:
    """The key of the member's sample and the name of its field; None if it belongs to no sample."""
    folder, slash, file = member.name.rpartition("/")
    stem, _, field = file.partition(".")
    first = member.name.partition("/")[0]
    if member.is_folder or not stem or not field or (first[:2] == first[-2:] == "__" and len(first) > 3):
        return None
    return folder + slash + stem, field.lower()


def find_samples(file: AnyFile) -> Arrays:
    """The first byte of each sample, and the end of the last."""
    refuse_compressed(file)
    starts, at, current = array("q"), 0, None
    known: set[str] = set()
    while (member := member_at(file, at)) is not None:
        split = split_name(member)
        if split is not None and split[0] != current:
            current = split[0]
            if current in known:
                file.refused(
                    member.start,
                    f"member {member.name!r} belongs to sample {current!r}, whose other members are further up. "
                    "Write the tar with the members of a sample beside each other, for example with --sort=name",
                )
            known.add(current)
            starts.append(member.start)
        at = member.stop
    _check_rest(file, at)
    starts.append(at)
    return {"starts": compact(np.array(starts, np.int64), file.size)}


def _check_rest(file: AnyFile, end: int) -> None:
    """Raises FormatError unless only zeros follow the end of the archive."""
    for at in range(end, file.size, _PIECE):
        piece = file.read(at, min(_PIECE, file.size - at))
        if piece.count(0) != len(piece):
            remedy = "If tar files were joined by cat, join them by tar --concatenate"
            file.refused(end, f"the archive ends here, but more follows. {remedy}")


def _refuse(name: str, what: str) -> NoReturn:
    raise FormatError(f"{name}: {what}.")
