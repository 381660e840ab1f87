"""MXNet's `.rec` files: images, or anything else, with an id and a label each."""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from functools import cached_property
from operator import index as as_int
from typing import Any, Literal, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock.records import framing
from penstock.records.index import read_index, write_index
from penstock.records.raw import RawFile
from penstock.source.dataset import Dataset

HEAD = struct.Struct("<IfQQ")  # how many labels follow; the label where none do; the id; its upper half


class Record(NamedTuple):
    """A record of a `.rec` file. `label` is a float, or a float32 array where the file has several."""

    id: int
    label: float | NDArray[np.float32]
    data: bytes


class RecordFile(Dataset[Any]):
    """The records of MXNet's `.rec` file, in the order of the file.

    Its `.idx` is taken from beside it, or from where `idx` says. Where there is none, or with `idx=False`, the records
    are found by one pass over their heads, about 2 s for a million; `save_idx()` writes the index for the next time.
    """

    def __init__(self, path: str | os.PathLike[str], idx: str | os.PathLike[str] | Literal[False] | None = None) -> None:
        self.path = os.fspath(path)
        self._file = RawFile(self.path)
        self._keys: NDArray[np.uint64] | None = None
        if idx is None and os.path.exists(idx_path(self.path)):
            idx = idx_path(self.path)
        if idx is None or idx is False:
            starts = np.array(array("q", (start for start, _ in framing.records(self._file))), np.int64)
        else:
            starts, self._keys = read_index(os.fspath(idx), self._file)
        self._edges = np.append(starts, self._file.size)

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __getitem__(self, index: SupportsIndex) -> Any:
        return self._record(as_int(index))

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def by_id(self, id: int) -> Any:
        """The record with this key in the index, or, where there is no index, with this id in its head."""
        key = as_int(id)
        hits: list[int] = []
        if 0 <= key < 1 << 64:
            ends = [np.searchsorted(self.ids, np.uint64(key), side, self._by_id) for side in ("left", "right")]
            hits = self._by_id[slice(*ends)].tolist()
        if len(hits) != 1:
            raise KeyError(f"id {key} is that of {len(hits)} records of {self.path}, {hits[:5]}, not of one.")
        return self[hits[0]]

    @cached_property
    def ids(self) -> NDArray[np.uint64]:
        """The ids of all records, in the order of the file: the keys of the index, or else those in the records."""
        if self._keys is not None:
            return self._keys
        extents = zip(self._edges[:-1].tolist(), self._edges[1:].tolist(), strict=True)
        return np.array(array("Q", (_id(self._file, *extent) for extent in extents)), np.uint64)

    @cached_property
    def _by_id(self) -> NDArray[np.int64]:
        return self.ids.argsort(kind="stable")

    def save_idx(self, path: str | os.PathLike[str] | None = None) -> None:
        """Writes the index, beside the file or to `path`, so that nobody has to look for the records again."""
        write_index(idx_path(self.path) if path is None else os.fspath(path), self._edges[:-1], self.ids)

    def _record(self, at: int) -> Record:
        n = len(self)
        if not -n <= at < n:
            raise IndexError(f"record {at} of {self.path}, which has {n:,}.")
        start, stop = self._edges[at % n : at % n + 2].tolist()
        return read_record(self._file, start, stop)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {len(self)} records)"


def read_record(file: RawFile, start: int, stop: int) -> Record:
    content = framing.record(file, start, stop)
    if len(content) < HEAD.size:
        file.damaged(start, f"a record of {len(content)} bytes is too short for the {HEAD.size} with its id and label")
    count, label, id_, _ = HEAD.unpack_from(content)
    begin = HEAD.size + 4 * count
    if begin > len(content):
        file.damaged(start, f"a record of {len(content):,} bytes cannot have the {count:,} labels that it names")
    if count:
        label = np.frombuffer(content, "<f4", count, HEAD.size).astype(np.float32)
    return Record(id_, label, bytes(content[begin:]))


def idx_path(path: str) -> str:
    return os.path.splitext(path)[0] + ".idx"


def _id(file: RawFile, start: int, stop: int) -> int:
    head = file.read(start, min(stop - start, 8 + HEAD.size))
    content = framing.beginning(head)
    if content is None or len(content) < HEAD.size:
        return read_record(file, start, stop).id  # of several parts, or damaged
    id_: int = HEAD.unpack(content)[2]
    return id_
