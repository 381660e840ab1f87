"""MXNet's `.rec` files: images, or anything else, with an id and a label each."""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from functools import cached_property
from operator import index as as_int
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock.records import _framing as framing
from penstock.records._index import read_index, write_index
from penstock.records._raw import RawFile
from penstock.records._samples import FilePath, Samples, StoredImage, check_transform, position
from penstock.source._dataset import IterableDataset

if TYPE_CHECKING:
    from penstock.image import Transform

HEAD = struct.Struct("<IfQQ")  # number of labels that follow; the label if none do; the id; its upper half


class Record(NamedTuple):
    """A record of a `.rec` file. `label` is a float, or a float32 array if there are several labels."""

    id: int
    label: float | NDArray[np.float32]
    data: bytes


class RecordFile(Samples):
    """The records of MXNet's `.rec` file, in the order of the file; each is a `Record(id, label, data)`.

    With a `transform` of `penstock.image` a sample is `(image, label)`, or the image alone with `labels=False`.

    The index is the `.idx` beside the file, or the file that `idx` names. Without one, or with `idx=False`, the
    records are found by following their headers. Both read each header: about 2 s for a million records if the file
    is in the page cache. `save_idx()` writes the index for the next time. Any number of threads and processes may
    read at once.

    RecordIO has no checksums: a wrong byte in a record's label or data cannot be noticed. Any other damage raises
    `RecordError`, at the latest when the record is read.
    """

    def __init__(
        self,
        path: FilePath,
        idx: FilePath | Literal[False] | None = None,
        transform: Transform | None = None,
        labels: bool = True,
    ) -> None:
        _check_labels(transform, labels)
        if idx is not None and idx is not False and not isinstance(idx, (str, os.PathLike)):
            raise TypeError(
                f"idx must be the path of an index, or False, but it is of type {type(idx).__name__}. To get "
                "images, pass transform= by name."
            )
        self.path = os.fspath(path)
        self._stored: StoredRecords = StoredRecords(self.path, idx)
        super().__init__(self._stored, transform, labels)

    def by_id(self, id: int) -> Any:
        """The sample with this key in the index or, without an index, with this id in its header."""
        hits = self._stored.positions(as_id(id))
        if not hits:
            raise KeyError(f"no record of {self.path} has the id {id}.")
        if len(hits) > 1:
            raise KeyError(f"id {id} is not unique in {self.path}: {len(hits)} records have it, {hits[:5]}.")
        return self[hits[0]]

    @property
    def ids(self) -> NDArray[np.uint64]:
        """The ids that `by_id` takes, in the order of the file. Without an index they are read from the records."""
        return self._stored.ids

    def save_idx(self, path: FilePath | None = None) -> None:
        """Writes the index to `path`, or beside the file by default."""
        index = idx_path(self.path) if path is None else os.fspath(path)
        if os.path.exists(index) and os.path.samefile(index, self.path):
            raise ValueError(f"{index} is the file of the records. Give the index another name.")
        write_index(index, self._stored.starts, self.ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {len(self)} records)"


class RecordStream(IterableDataset[Any]):
    """The samples of a `.rec` file as a stream, for a `DataLoader`, without building an index first.

    Choose it for a huge file without an index that is read in file order. One reader follows the headers, and the
    workers read and transform the records. (Without a loader iterate over a `RecordFile`.)
    """

    def __init__(self, path: FilePath, transform: Transform | None = None, labels: bool = True) -> None:
        _check_labels(transform, labels)
        check_transform(transform, labels)
        self.path = os.fspath(path)
        self._file = RawFile(self.path)
        self.transform = transform
        self.labels = labels

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return framing.records(self._file)

    def load(self, extent: tuple[int, int]) -> Any:
        """The sample at these bytes (start, stop) of the file."""
        record = read_record(self._file, *extent)
        if self.transform is None:
            return record
        image = self.transform(record.data, name=f"{self.path}, byte {extent[0]:,}")
        return (image, record.label) if self.labels else image


class StoredRecords:
    """The records of a `.rec` file, by position."""

    def __init__(self, path: str, idx: FilePath | Literal[False] | None) -> None:
        self._file = RawFile(path)
        self._keys: NDArray[np.uint64] | None = None
        if idx is None and os.path.exists(idx_path(path)):
            idx = idx_path(path)
        if idx is None or idx is False:
            starts = np.array(array("q", (start for start, _ in framing.records(self._file))), np.int64)
        else:
            starts, self._keys = read_index(os.fspath(idx), self._file)
        self._edges = np.append(starts, self._file.size)

    def __len__(self) -> int:
        return len(self._edges) - 1

    def sample(self, at: int) -> Record:
        return read_record(self._file, *self._extent(at))

    def image(self, at: int) -> StoredImage:
        start, stop = self._extent(at)
        record = read_record(self._file, start, stop)
        return record.data, record.label, f"{self._file.path}, record {at}, byte {start:,}"

    @property
    def starts(self) -> NDArray[np.int64]:
        return self._edges[:-1]

    @cached_property
    def ids(self) -> NDArray[np.uint64]:
        if self._keys is not None:
            return self._keys
        return np.array(
            array("Q", (_id(self._file, *self._extent(at)) for at in range(len(self)))), np.uint64
        )

    def positions(self, id: int) -> list[int]:
        """The positions of the records with this id."""
        if not 0 <= id < 1 << 64:
            return []
        ends = [np.searchsorted(self.ids, np.uint64(id), side, self._by_id) for side in ("left", "right")]
        hits: list[int] = self._by_id[slice(*ends)].tolist()
        return hits

    @cached_property
    def _by_id(self) -> NDArray[np.int64]:
        return self.ids.argsort(kind="stable")

    def _extent(self, at: int) -> tuple[int, int]:
        at = position(at, len(self), self._file.path)
        start, stop = self._edges[at : at + 2].tolist()
        return start, stop


def read_record(file: RawFile, start: int, stop: int) -> Record:
    content = framing.record(file, start, stop)
    if len(content) < HEAD.size:
        file.damaged(
            start,
            f"a record of {len(content)} bytes is too short for the header of {HEAD.size} with its id and label",
        )
    count, label, id_, _ = HEAD.unpack_from(content)
    begin = HEAD.size + 4 * count
    if begin > len(content):
        file.damaged(
            start,
            f"a record of {len(content):,} bytes cannot hold the {count:,} labels that its header names",
        )
    if count:
        label = np.frombuffer(content, "<f4", count, HEAD.size).astype(np.float32)
    return Record(id_, label, bytes(content[begin:]))


def idx_path(path: str) -> str:
    return os.path.splitext(path)[0] + ".idx"


def as_id(id: SupportsIndex) -> int:
    try:
        return as_int(id)
    except TypeError:
        raise TypeError(f"the id of a record must be an integer, but it is {id!r}.") from None


def _id(file: RawFile, start: int, stop: int) -> int:
    content = framing.beginning(file.read(start, min(stop - start, 8 + HEAD.size)))
    if content is None or len(content) < HEAD.size:
        return read_record(file, start, stop).id  # of several parts, or damaged
    id_: int = HEAD.unpack(content)[2]
    return id_


def _check_labels(transform: Transform | None, labels: bool) -> None:
    if transform is None and not labels:
        raise ValueError(
            "labels=False needs a transform: without one a sample is a Record, which always has its label."
        )
