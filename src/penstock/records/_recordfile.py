"""Reads and writes MXNet's `.rec` files. Their records hold images or any other data, each with an id and a label."""

from __future__ import annotations

import os
import secrets
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import pairwise
from operator import index as as_int
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, SupportsIndex, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._files.access import Access, FileOptions, RemoteOptions
from penstock._files.index import Arrays, Index, cached_each, for_each
from penstock._files.local import AnyFile, File
from penstock._files.paths import FilePath, Paths, find_files
from penstock._files.remote import FromTheStart, RemoteFile
from penstock._files.too_large import LIMIT, checked_limit, refuse_large
from penstock._system import trust
from penstock._system.interrupts import interrupts_deferred
from penstock.errors import FormatError, RemoteError
from penstock.formats._extents import compact
from penstock.records import _framing as framing
from penstock.records._index import read_index, write_index
from penstock.records._samples import RecordSamples, as_images
from penstock.source._dataset import IterableDataset

if TYPE_CHECKING:
    from penstock.image import Transform
    from penstock.image._dataset import StoredImage

_HEAD = struct.Struct("<IfQQ")  # number of labels that follow; the label if none do; the id; its upper half


class Record(NamedTuple):
    """A record of a `.rec` file. `label` is a float, or a float32 array if there are several labels.

    >>> Record(id=7, label=1.0, data=b"...").label
    1.0
    """

    id: int
    label: float | NDArray[np.float32]
    data: bytes


class RecordFile(RecordSamples):
    """The records of MXNet's `.rec` files, in the order of the files. Each sample is a `Record(id, label, data)`.

    With a `transform` from `penstock.image`, a sample is `(image, label)`, or only the image with `labels=False`.

    `path` is a path or URL, a list of these, a pattern or a folder. The index of a file is the `.idx` file next to
    it, or the file given as `idx`. Without an index, or with `idx=False`, the records are found by following their
    headers, and their positions are kept (docs/formats.md). In both cases each header is read, which takes about 2 s
    for a million records if the file is in the page cache. For a remote file with an `.idx`, only the records that
    are needed are read. `save_idx()` writes the index for the next time. Any number of threads and processes may read
    at once.

    RecordIO has no checksums, so a wrong byte in a record's label or data cannot be detected. Any other damage raises
    `RecordError`, at the latest when the record is read.

    `storage`, `cache`, `cache_bytes` and `cache_shared` are for remote files, and are explained in
    `penstock.formats`. If a record is larger than `max_sample_bytes` bytes, its sample fails. A `transform` has its
    own limit.
    """

    suffixes = (".rec",)
    kind = "rec-1"

    def __init__(
        self,
        path: Paths,
        idx: FilePath | Literal[False] | None = None,
        transform: Transform | None = None,
        labels: bool = True,
        **files: Unpack[FileOptions],
    ) -> None:
        _check_labels(transform, labels)
        if idx is not None and idx is not False and not isinstance(idx, (str, os.PathLike)):
            raise TypeError(
                f"idx must be the path of an index, or False, but it is of type {type(idx).__name__}. To get "
                "images, pass transform= by name."
            )
        self._idx = idx
        super().__init__(path, transform, labels, **files)

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        """True if a file that begins with these bytes is a RecordIO file."""
        return first_bytes.startswith(framing.MARK.to_bytes(4, "little"))

    @staticmethod
    def find(file: AnyFile) -> Arrays:
        starts = array("q", (start for start, _ in framing.records(file)))
        return {"starts": _edges(np.array(starts, np.int64), file)}

    def _find_indexes(self, access: Access) -> list[Index]:
        if self._idx and len(self.files) > 1:
            raise ValueError(
                f"idx= names the index of one file, but there are {len(self.files):,} files. Without idx=, the .idx "
                "beside each is used."
            )
        found = list(for_each(partial(self._by_idx, access=access), self.files))
        self._idx_paths = [None if each is None else each[0] for each in found]
        missing = [file for file, each in zip(self.files, found, strict=True) if each is None]
        others = iter(cached_each(missing, self.kind, self.find))
        return [next(others) if each is None else each[1] for each in found]

    def _by_idx(self, file: AnyFile, access: Access) -> tuple[str, Index] | None:
        """Returns (path of the `.idx` file, index read from the `.idx` file), or None if there is no `.idx` file."""
        index = self._idx_of(file, access)
        if index is None:
            return None
        starts, keys = read_index(index, file)
        arrays = {"starts": _edges(starts, file), "keys": keys}
        return index.path, Index(file, self.kind, self.find, arrays, False)

    def _idx_of(self, file: AnyFile, access: Access) -> AnyFile | None:
        """Returns the `.idx` file to use, or None. Ignores a file that an untrusted user could have written."""
        if self._idx is False:
            return None
        if self._idx is not None:
            return find_files(self._idx, (".idx",), "the index of RecordFile", access)[0]
        if isinstance(file, RemoteFile):
            try:
                return file.beside(".idx")
            except RemoteError as error:
                if isinstance(error, FileNotFoundError) or error.refused:  # some stores deny access to a missing file
                    return None
                raise
        with suppress(OSError):
            trust.check_beside(idx_path(file.path), file.path)
            return File(idx_path(file.path))
        return None

    def checks(self) -> Sequence[object]:
        return [index.check("starts") for index in self.indexes]  # these differ if the records do

    def stored(self, raw: bytes, number: int, row: int) -> Record:
        try:
            return _record(raw)
        except framing.NotARecord as error:
            index, start = self._idx_paths[number], self.extent(number, row)[0]
            _damaged(self.files[number], start, error, index)

    def image(self, raw: bytes, number: int, row: int) -> StoredImage:
        record = self.stored(raw, number, row)
        start = self.extent(number, row)[0]
        return record.data, record.label, f"{self.files[number].path}, record {row}, byte {start:,}"

    def by_id(self, id: int) -> Any:
        """Returns the sample with this id.

        The id is the record's key in the index or, if there is no index, the id in the record's header.
        """
        number, hits = _as_id(id), []
        if 0 <= number < 1 << 64:
            order, wanted = self._by_id, np.uint64(number)
            ends = (np.searchsorted(self.ids, wanted, side, order) for side in ("left", "right"))
            hits = order[slice(*ends)].tolist()
        files = self.path if len(self.files) == 1 else f"{len(self.files):,} files"
        if not hits:
            raise KeyError(f"no record of {files} has the id {id}.")
        if len(hits) > 1:
            raise KeyError(f"id {id} is not unique in {files}: {len(hits)} records have it, {hits[:5]}.")
        return self[hits[0]]

    @cached_property
    def _by_id(self) -> NDArray[np.int64]:
        return self.ids.argsort(kind="stable")

    @cached_property
    def ids(self) -> NDArray[np.uint64]:
        """The ids that `by_id` accepts, in the order of the samples.

        Without an index, they are read from the records.
        """
        return np.concatenate([self._ids(number) for number in range(len(self.files))])

    def _ids(self, number: int) -> NDArray[np.uint64]:
        index, file = self.indexes[number], self.files[number]
        if "keys" in index:
            return index["keys"]
        starts = index["starts"]
        heads = framing.read_heads(file, starts[:-1], 8 + _HEAD.size)
        ids = (_id(file, head, *ends) for head, ends in zip(heads, pairwise(map(int, starts)), strict=True))
        return np.array(array("Q", ids), np.uint64)

    def save_idx(self, path: FilePath | None = None) -> None:
        """Writes the index to `path`, or by default next to each record file."""
        if path is not None and len(self.files) > 1:
            raise ValueError(
                f"path= is for the index of one file, but there are {len(self.files):,} files. Without a path, the "
                "index of each file is written beside it."
            )
        for number, file in enumerate(self.files):
            if path is None and not isinstance(file, File):
                raise ValueError(
                    f"{file.path} is remote. Pass the path of a local file for its index: save_idx(path)."
                )
            index = idx_path(file.path) if path is None else os.fspath(path)
            if os.path.exists(index) and isinstance(file, File) and os.path.samefile(index, file.path):
                raise ValueError(f"{index} is the record file itself. Give the index another name.")
            write_index(index, self.indexes[number]["starts"][:-1], self._ids(number))


class RecordStream(IterableDataset[Any]):
    """The samples of a `.rec` file as a stream for a `DataLoader`, without building an index first.

    Choose it for a huge file that has no index and is read in file order. One reader follows the headers, and the
    workers read and transform the records. (Without a loader, iterate over a `RecordFile` instead.) `path` may be a
    URL. The keyword arguments are the same as those of `RecordFile`.

    >>> import tempfile, penstock
    >>> from penstock.records import RecordWriter
    >>> path = tempfile.mkdtemp() + "/a.rec"
    >>> with RecordWriter(path) as writer:
    ...     for label in range(4):
    ...         writer.write(b"data", label=label)
    >>> loader = penstock.DataLoader(RecordStream(path), batch_size=2, num_workers=2)
    >>> [batch.label.tolist() for batch in loader]
    [[0.0, 1.0], [2.0, 3.0]]
    >>> loader.close()
    """

    def __init__(
        self,
        path: FilePath,
        transform: Transform | None = None,
        labels: bool = True,
        *,
        max_sample_bytes: int | None = LIMIT,
        **files: Unpack[RemoteOptions],
    ) -> None:
        _check_labels(transform, labels)
        if transform is not None:
            as_images(transform, labels)
        self.max_sample_bytes = checked_limit(max_sample_bytes)
        found = find_files(path, RecordFile.suffixes, "RecordStream", Access.of("RecordStream", files))
        if len(found) > 1:
            raise ValueError(f"RecordStream reads one file, but there are {len(found):,}. RecordFile reads several.")
        (self._file,) = found
        self.path, self.transform, self.labels = self._file.path, transform, labels

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return framing.records(FromTheStart(self._file) if isinstance(self._file, RemoteFile) else self._file)

    def load(self, extent: tuple[int, int]) -> Any:
        """Returns the sample in this byte range (start, stop) of the file."""
        start, stop = extent
        name = f"{self.path}, byte {start:,}"
        if self.max_sample_bytes is not None and stop - start > self.max_sample_bytes:
            refuse_large(name, stop - start, self.max_sample_bytes)
        try:
            record = _record(self._file.read(start, stop - start))
        except framing.NotARecord as error:
            _damaged(self._file, start, error)
        if self.transform is None:
            return record
        return as_images(self.transform, self.labels)._made(record.data, record.label, name)


def _edges(starts: NDArray[np.int64], file: AnyFile) -> NDArray[Any]:
    """Returns the byte offset at which each record begins, followed by the size of the file."""
    return compact(np.append(starts, file.size), file.size)


def _record(raw: bytes) -> Record:
    content = framing.record(raw)
    if len(content) < _HEAD.size:
        what = f"a record of {len(content)} bytes is too short for the header of {_HEAD.size} with its id and label"
        raise framing.NotARecord(0, what)
    count, label, id_, _ = _HEAD.unpack_from(content)
    begin = _HEAD.size + 4 * count
    if begin > len(content):
        what = f"a record of {len(content):,} bytes cannot hold the {count:,} labels that its header names"
        raise framing.NotARecord(0, what)
    if count:
        label = np.frombuffer(content, "<f4", count, _HEAD.size).astype(np.float32)
    return Record(id_, label, bytes(content[begin:]))


def _damaged(file: AnyFile, start: int, error: framing.NotARecord, index: str | None = None) -> NoReturn:
    """Raises FormatError for the record at `start`. `index` is the `.idx` file that gave this offset, if any."""
    try:
        file.damaged(start + error.at, error.what)
    except FormatError as damage:
        hint = f" Or {index} is not the index of this file: pass idx=False to read without an index."
        text = f"{damage}{hint if index else ''}"
    raise FormatError(text) from None


def idx_path(path: str) -> str:
    return os.path.splitext(path)[0] + ".idx"


def _as_id(id: SupportsIndex) -> int:
    try:
        return as_int(id)
    except TypeError:
        raise TypeError(f"the id of a record must be an integer, but it is {id!r}.") from None


def _id(file: AnyFile, head: bytes, start: int, stop: int) -> int:
    content = framing.beginning(head[: stop - start])
    if content is None or len(content) < _HEAD.size:
        try:  # the record has several parts, or is damaged
            return _record(file.read(start, stop - start)).id
        except framing.NotARecord as error:
            _damaged(file, start, error)
    id_: int = _HEAD.unpack(content)[2]
    return id_


def _check_labels(transform: Transform | None, labels: bool) -> None:
    if transform is None and not labels:
        raise ValueError(
            "labels=False needs a transform: without one a sample is a Record, which always has its label."
        )


class RecordWriter:
    """Writes a `.rec` file and its `.idx`. Both files get their final names when all records have been written.

    Use it in a `with` statement. An exception inside the block leaves existing files unchanged. If a write fails (for
    example, on a full disk), everything is discarded, and later calls raise too. While the files are being written,
    their names end in `.part`. Such a file may be deleted if its writer was killed or never closed.

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
        """Returns the number of records written so far."""
        return len(self._ids)

    def write(self, data: bytes, label: Any = 0.0, id: int | None = None) -> None:
        """Writes a record. `label` is a number or a vector of numbers.

        By default, `id` is the number of records written before.
        """
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
        """Gives the files their final names, or removes them if that fails. A second call does nothing.

        Ctrl-C is deferred during the renaming, so it never leaves only one of the files with its final name.
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
        """Removes the files that were written so far."""
        if not self._file.closed:
            self._remove()

    def _check(self) -> None:
        if self._failed:
            raise OSError(f"{self.path}: {self._failed}, so all records were discarded. Write them again.")

    def _remove(self) -> None:
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
