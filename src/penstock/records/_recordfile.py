"""MXNet's `.rec` files, read and written: images, or anything else, with an id and a label each."""

from __future__ import annotations

import os
import secrets
import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from operator import index as as_int
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock._remote.urls import local
from penstock._system import trust
from penstock._system.interrupts import interrupts_deferred
from penstock.records import _framing as framing
from penstock.records._index import read_index, write_index
from penstock.records._raw import RawFile
from penstock.records._samples import FilePath, Samples, StoredImage, as_images, position
from penstock.source._dataset import IterableDataset

if TYPE_CHECKING:
    from penstock.image import Transform

_HEAD = struct.Struct("<IfQQ")  # number of labels that follow; the label if none do; the id; its upper half


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

    suffixes = (".rec",)

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
        super().__init__(local(os.fspath(path), "RecordFile"), transform, labels)
        self._file = RawFile(self.path)
        self._keys: NDArray[np.uint64] | None = None
        if idx is None:
            with suppress(OSError):  # there is none, or one of another user, who could not change the file
                trust.check_beside(idx_path(self.path), self.path)
                idx = idx_path(self.path)
        if idx is None or idx is False:
            starts = np.array(array("q", (start for start, _ in framing.records(self._file))), np.int64)
        else:
            starts, self._keys = read_index(local(os.fspath(idx), "the index of RecordFile"), self._file)
        self._edges = np.append(starts, self._file.size)

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        """True if a file that begins with these bytes is one of RecordIO."""
        return first_bytes.startswith(framing.MARK.to_bytes(4, "little"))

    def __len__(self) -> int:
        return len(self._edges) - 1

    def _sample(self, at: int) -> Record:
        return _read_record(self._file, *self._extent(at))

    def _source(self, at: int) -> StoredImage:
        start, stop = self._extent(at)
        record = _read_record(self._file, start, stop)
        return record.data, record.label, f"{self.path}, record {at}, byte {start:,}"

    def _extent(self, at: int) -> tuple[int, int]:
        at = position(at, len(self), self.path)
        start, stop = self._edges[at : at + 2].tolist()
        return start, stop

    def by_id(self, id: int) -> Any:
        """The sample with this key in the index or, without an index, with this id in its header."""
        number, hits = _as_id(id), []
        if 0 <= number < 1 << 64:
            order, wanted = self._by_id, np.uint64(number)
            ends = (np.searchsorted(self.ids, wanted, side, order) for side in ("left", "right"))
            hits = order[slice(*ends)].tolist()
        if not hits:
            raise KeyError(f"no record of {self.path} has the id {id}.")
        if len(hits) > 1:
            raise KeyError(f"id {id} is not unique in {self.path}: {len(hits)} records have it, {hits[:5]}.")
        return self[hits[0]]

    @cached_property
    def _by_id(self) -> NDArray[np.int64]:
        return self.ids.argsort(kind="stable")

    @property
    def ids(self) -> NDArray[np.uint64]:
        """The ids that `by_id` takes, in the order of the file. Without an index they are read from the records."""
        if self._keys is None:
            ids = (_id(self._file, *self._extent(at)) for at in range(len(self)))
            self._keys = np.array(array("Q", ids), np.uint64)
        return self._keys

    def save_idx(self, path: FilePath | None = None) -> None:
        """Writes the index to `path`, or beside the file by default."""
        index = idx_path(self.path) if path is None else os.fspath(path)
        if os.path.exists(index) and os.path.samefile(index, self.path):
            raise ValueError(f"{index} is the record file itself. Give the index another name.")
        write_index(index, self._edges[:-1], self.ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {len(self)} records)"


class RecordStream(IterableDataset[Any]):
    """The samples of a `.rec` file as a stream, for a `DataLoader`, without building an index first.

    Choose it for a huge file without an index that is read in file order. One reader follows the headers, and the
    workers read and transform the records. (Without a loader iterate over a `RecordFile`.)
    """

    def __init__(self, path: FilePath, transform: Transform | None = None, labels: bool = True) -> None:
        _check_labels(transform, labels)
        if transform is not None:
            as_images(transform, labels)
        self.path, self.transform, self.labels = os.fspath(path), transform, labels
        self._file = RawFile(self.path)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return framing.records(self._file)

    def load(self, extent: tuple[int, int]) -> Any:
        """The sample at these bytes (start, stop) of the file."""
        record = _read_record(self._file, *extent)
        if self.transform is None:
            return record
        name = f"{self.path}, byte {extent[0]:,}"
        return as_images(self.transform, self.labels)._made(record.data, record.label, name)


def _read_record(file: RawFile, start: int, stop: int) -> Record:
    content = framing.record(file, start, stop)
    if len(content) < _HEAD.size:
        file.damaged(
            start,
            f"a record of {len(content)} bytes is too short for the header of {_HEAD.size} with its id and label",
        )
    count, label, id_, _ = _HEAD.unpack_from(content)
    begin = _HEAD.size + 4 * count
    if begin > len(content):
        file.damaged(
            start,
            f"a record of {len(content):,} bytes cannot hold the {count:,} labels that its header names",
        )
    if count:
        label = np.frombuffer(content, "<f4", count, _HEAD.size).astype(np.float32)
    return Record(id_, label, bytes(content[begin:]))


def idx_path(path: str) -> str:
    return os.path.splitext(path)[0] + ".idx"


def _as_id(id: SupportsIndex) -> int:
    try:
        return as_int(id)
    except TypeError:
        raise TypeError(f"the id of a record must be an integer, but it is {id!r}.") from None


def _id(file: RawFile, start: int, stop: int) -> int:
    content = framing.beginning(file.read(start, min(stop - start, 8 + _HEAD.size)))
    if content is None or len(content) < _HEAD.size:
        return _read_record(file, start, stop).id  # of several parts, or damaged
    id_: int = _HEAD.unpack(content)[2]
    return id_


def _check_labels(transform: Transform | None, labels: bool) -> None:
    if transform is None and not labels:
        raise ValueError(
            "labels=False needs a transform: without one a sample is a Record, which always has its label."
        )


class RecordWriter:
    """Writes a `.rec` file and, beside it, its `.idx`; both get their names when all records are written.

    Use it in a `with` statement: an exception inside it leaves existing files unchanged. If a write fails (on a full
    disk, say), everything is discarded, and later calls raise too. Until the end the files have names that end in
    `.part`; such a file may be deleted if its writer was killed or never closed.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/two.rec"
    >>> with RecordWriter(path) as writer:
    ...     writer.write(b"a picture", 3)
    ...     writer.write(b"another", [0.5, 2], id=77)
    >>> from penstock.records import RecordFile
    >>> file = RecordFile(path)
    >>> file[0], file.by_id(77).label
    (Record(id=0, label=3.0, data=b'a picture'), array([0.5, 2. ], dtype=float32))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        if idx_path(self.path) == self.path:
            raise ValueError(
                f"{self.path} is the name of an index. Give the name of the record file, which usually ends in .rec; "
                "its index is written beside it."
            )
        # Two writers of the same file, in one process or on two machines, must not use the same names.
        suffix = f".{secrets.token_hex(4)}.part"
        self._part, self._index_part = self.path + suffix, idx_path(self.path) + suffix
        self._file = open(self._part, "xb", buffering=1 << 20)  # noqa: SIM115 - closed by close() and discard()
        self._starts, self._ids = array("q"), array("Q")
        self._size = 0
        self._failed = ""

    def __len__(self) -> int:
        """The number of records written so far."""
        return len(self._ids)

    def write(self, data: bytes, label: Any = 0.0, id: int | None = None) -> None:
        """Writes a record. `label` is a number or a vector of numbers; `id` is the record's number by default."""
        self._check()
        if self._file.closed:
            raise ValueError(f"the writer of {self.path} is closed: it takes no more records.")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"the data of a record must be bytes, but it is a {type(data).__name__}.")
        id = len(self) if id is None else _as_id(id)
        if not 0 <= id < 1 << 64:
            raise ValueError(f"the id of a record must be 0 to 2**64 - 1, but it is {id}.")
        content = _head(label, id) + bytes(data)
        if len(content) > framing.LONGEST:
            raise ValueError(
                f"record {len(self)} has {len(content):,} bytes, but RecordIO allows only {framing.LONGEST:,}."
            )
        pieces = framing.framed(content)
        try:
            self._file.writelines(pieces)
            self._starts.append(self._size)
            self._ids.append(id)
            self._size += sum(map(len, pieces))
        except BaseException as error:  # a part of the record may be in the file
            self._failed = f"record {len(self)} could not be written ({error!r})"
            self.discard()
            raise

    def close(self) -> None:
        """Gives the files their names; if that fails, removes them. A second call does nothing.

        A Ctrl-C is raised when both files have their names, or neither has.
        """
        self._check()
        if self._file.closed:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            write_index(self._index_part, self._starts, self._ids)
            # There must never be an old index beside the new file. Without an index the file can be read.
            index = idx_path(self.path)
            with interrupts_deferred():
                Path(index).unlink(missing_ok=True)
                os.replace(self._part, self.path)
                os.replace(self._index_part, index)
        finally:
            self._remove()

    def discard(self) -> None:
        """Removes what was written."""
        if not self._file.closed:
            self._remove()

    def _check(self) -> None:
        if self._failed:
            raise OSError(f"{self.path}: {self._failed}, so all records were discarded. Write them again.")

    def _remove(self) -> None:
        """Removes the files that do not have their final names yet."""
        try:
            with suppress(OSError):  # on a full disk the last bytes cannot be written: they are not needed
                self._file.close()
        finally:
            Path(self._part).unlink(missing_ok=True)
            Path(self._index_part).unlink(missing_ok=True)

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def _head(label: Any, id: int) -> bytes:
    values = np.asarray(label)
    if values.ndim > 1 or values.dtype.kind not in "biuf":
        raise TypeError(f"a label must be a number or a vector of numbers, but it is {label!r}.")
    with np.errstate(over="ignore"):
        stored = values.astype("<f4")
    if (np.isfinite(values) & ~np.isfinite(stored)).any():
        raise ValueError(f"labels are stored as float32, which cannot hold {label!r}.")
    if values.dtype.kind in "iu" and (stored.astype(np.float64) != values).any():
        raise ValueError(f"labels are stored as float32, which cannot represent {label!r} exactly.")
    if values.ndim == 0:
        return _HEAD.pack(0, float(stored), id, 0)
    return _HEAD.pack(stored.size, 0.0, id, 0) + stored.tobytes()
