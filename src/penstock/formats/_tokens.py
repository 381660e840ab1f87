"""`Tokens` memory-maps flat files of token ids and copies samples directly into the batch."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, TypeVar, Unpack

import numpy as np
from numpy.typing import DTypeLike, NDArray

from penstock._files.access import Access, RemoteOptions
from penstock._files.index import for_each
from penstock._files.local import AnyFile, File
from penstock._files.mapping import mapped
from penstock._files.paths import Paths
from penstock._files.remote import RemoteFile
from penstock._files.span import Span, span_of
from penstock._fill.cast import Empty, FieldMemory
from penstock._memory.mapping import CAN_PLACE
from penstock.errors import FormatError
from penstock.formats._archive import HEADER
from penstock.formats._format import BLOCK, FileRows, Format
from penstock.formats._inspection import FieldInfo
from penstock.formats._megatron import dtype_beside
from penstock.formats._tfrecord import TFRecord
from penstock.source._array import checked_keys
from penstock.source._nested import gathers_numpy

T = TypeVar("T")

# The dtype of ids by the first number of llm.c's header.
_LLMC: dict[int, np.dtype[Any]] = {20240520: np.dtype(np.uint16), 20240801: np.dtype(np.uint32)}
_LLMC_HEADER = 1024  # bytes: 256 int32 values, the third is the number of ids
_NPY = "Write the ids alone: np.load(path).astype({dtype!r}).tofile('ids.bin')."
_INDEX = "Pass the .bin beside it, or read both files with penstock.formats.Megatron(prefix)."
_READ = "Read it with penstock.{}(path)."
# Other formats, by the bytes at an offset, which are enough to rule out a file of ids.
_NO_IDS = (
    (0, b"\x93NUMPY", "a .npy file", _NPY),
    (0, b"MMIDIDX\0\0", "Megatron's index, the .idx of a .bin", _INDEX),
    (0, b"TNTIDX\0\0", "Megatron's older index, the .idx of a .bin", _INDEX),
    (0, b"ARROW1\0\0", "an Arrow file", _READ.format("formats.Arrow")),
    (0, b"PAR1", "a Parquet file", _READ.format("formats.Parquet")),
    (257, b"ustar", "a tar file", _READ.format("formats.Tar")),
    (0, b"\x0a\x23\xd7\xce", "a RecordIO file", _READ.format("records.RecordFile")),
    (16, b"\xde\xc0\xef\xbe", "an LMDB file", _READ.format("records.CaffeLMDB")),
    (
        0,
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file",
        "Write the ids alone: file['x'][:].astype({dtype!r}).tofile('ids.bin').",
    ),
)
_RECORDS = ((0, b"", "a TFRecord file", _READ.format("formats.TFRecord")),)  # if the checksum of its length is there
_LEAST = 512  # from this many bytes on, `take` is faster than a copy of windows
_LOOK = 64  # first bytes of a file, which distinguish it from another file of the same name and size
_SCRATCH = 512 << 10  # bytes per step if samples are copied twice, so that they stay in the processor's cache


class Tokens(Format):
    """A dataset of flat files of token ids, such as nanoGPT's `train.bin`.

    Sample i consists of the `length` ids that begin at the index `i * stride`. `dtype` is the dtype of the ids in the
    file, such as "uint16" for GPT-2's tokens. `stride` is `length` by default. With `length=1025, stride=1024`, each
    sample has the inputs and, shifted by one, the targets. A sample never extends from one file into the next. Ids at
    the end of a file that do not fill a sample are left out. Files with llm.c's header are recognised, and the header
    is skipped.

    Choose this class for pretraining on tokens. A batch costs about as much as `np.take` of its rows. Files are
    memory-mapped when the first sample is read. They must not be truncated while they are in use, because the system
    kills a process that reads beyond the end of a mapped file. For torch, which cannot compute with uint16, pass
    `dtype="int64"` to the loader.

    `storage`, `cache`, `cache_bytes` and `cache_shared` apply to remote files: see `penstock.formats`.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/train.bin"
    >>> np.arange(10, dtype=np.uint16).tofile(path)
    >>> data = Tokens(path, "uint16", length=4, stride=3)
    >>> len(data), data[1], data[-1]
    (3, array([3, 4, 5, 6], dtype=uint16), array([6, 7, 8, 9], dtype=uint16))
    """

    suffixes = (".bin",)
    _samples: _MappedSamples | _PartlyMappedSamples | _ReadSamples | None = None

    def __init__(
        self,
        paths: Paths,
        dtype: DTypeLike,
        length: int,
        stride: int | None = None,
        **files: Unpack[RemoteOptions],
    ) -> None:
        Access.of(type(self).__name__, files)  # refuses max_sample_bytes, because `length` sets the size of a sample
        super().__init__(paths, max_sample_bytes=None, **files)
        self.dtype = _checked_dtype(dtype)
        self.length, self.stride = length, length if stride is None else stride
        for name, value in (("length", self.length), ("stride", self.stride)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name} must be 1 or more ids, but it is {value!r}.")
            setattr(self, name, int(value))  # numpy's numbers may overflow
        found = list(for_each(self._header, self.files))
        self._headers, self._begins = (
            np.array([header for header, _ in found], np.int64),
            [begin for _, begin in found],
        )
        sizes = np.array([file.size for file in self.files], np.int64)
        ids = (sizes - self._headers) // self.dtype.itemsize
        self.set_rows(np.maximum(0, (ids - self.length) // self.stride + 1).tolist())
        if not len(self):
            raise ValueError(
                f"no file has a sample of {self.length:,} ids: the longest of {len(ids)} has {ids.max():,}. Choose a "
                "smaller length."
            )

    @cached_property
    def blocks(self) -> NDArray[np.int64]:
        """The index of the first row of each block, followed by the total number of rows.

        A block is about 8 MB of one file.
        """
        rows = max(1, BLOCK // (self.stride * self.dtype.itemsize))
        edges = self.edges.tolist()
        inside = [np.arange(first, last, rows) for first, last in pairwise(edges)]
        return np.concatenate([*inside, self.edges[-1:]])

    def ranges(self, rows: FileRows) -> list[tuple[int, int]]:
        begin, end = rows.first * self.stride, (rows.stop - 1) * self.stride + self.length
        header, width = int(self._headers[rows.file]), self.dtype.itemsize
        return [(header + begin * width, header + end * width)]

    def __lengths__(self) -> NDArray[np.int64]:
        return np.full(len(self), self.length)

    def sample(self, row: int) -> NDArray[Any]:
        sample: NDArray[Any] = self._gathered(np.array([row]), np.empty)[0]
        return sample

    def samples(self, keys: Sequence[int], rows: NDArray[np.int64]) -> list[Any]:
        return list(self._gathered(rows, np.empty))

    @gathers_numpy
    def __gather__(self, keys: Sequence[int] | NDArray[Any], empty: Empty) -> NDArray[Any]:
        return self._gathered(checked_keys(keys, len(self)), empty)

    def _gathered(self, rows: NDArray[np.int64], empty: Empty) -> NDArray[Any]:
        view, shape = self._mapped(), (len(rows), self.length)
        if type(empty) is not FieldMemory or empty.field.target(self.dtype) is None:
            out = empty(shape, self.dtype)
            view.copy(rows, out)
            return out
        out, size = empty.allocate(shape, self.dtype), max(1, _SCRATCH // view.width)
        for at in range(0, len(rows), size):
            empty.field.write(out[at : at + size], view.taken(rows[at : at + size]), at)
        return out

    def _mapped(self) -> _MappedSamples | _PartlyMappedSamples | _ReadSamples:
        if self._samples is None:
            local = [file for file in self.files if isinstance(file, File)]
            if len(local) == len(self.files) and CAN_PLACE:
                self._samples = _MappedSamples(self, *mapped(local))
            else:
                span = span_of(self.files, self.length * self.dtype.itemsize)
                self._samples = _ReadSamples(self) if span is None else _PartlyMappedSamples(self, span)
        return self._samples

    def _header(self, file: AnyFile) -> tuple[int, int]:
        """Returns the size of a file's header (0 if there is none), and the CRC-32 of the file's first bytes."""
        begin = file.peek(0, min(file.size, HEADER))
        return _header(file, begin, self.dtype), zlib.crc32(begin[:_LOOK])

    def checks(self) -> Sequence[object]:
        return self._begins

    def fields(self) -> tuple[FieldInfo, ...]:
        return (FieldInfo("", str(self.dtype), (self.length,)),)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_samples"}


class _MappedSamples:
    """Samples from files that are memory-mapped into one region of memory.

    The region is divided into units of equal size, and each sample begins at the start of a unit. If each sample
    consists of whole units (usually one), numpy's `take` copies the samples directly to their destination. Otherwise,
    samples usually overlap, and numpy cannot copy them directly. They are copied to a temporary array, and from
    there to their destination. The second copy is cheap: the data is still in the processor's cache.
    """

    def __init__(self, tokens: Tokens, memory: NDArray[np.uint8], begins: NDArray[np.int64]) -> None:
        begins = begins + tokens._headers
        self._first = 0  # the offset of the first unit
        if len(begins) == 1:  # then sample i begins at unit i
            self._first = int(begins[0])
            memory, begins = memory[self._first :], np.zeros_like(begins)
        self._dtype, size = tokens.dtype, tokens.dtype.itemsize
        self.width, step = tokens.length * size, tokens.stride * size
        unit = math.gcd(step, *begins.tolist())
        self._units: NDArray[Any] | None = None
        if math.gcd(unit, self.width) >= _LEAST:
            unit = math.gcd(unit, self.width)
            self._units = memory[: len(memory) // unit * unit].view(self._dtype).reshape(-1, unit // size)
        self._unit, self._parts = unit, np.arange(self.width // unit)
        kind = np.dtype((np.void, self.width))
        count = (len(memory) - self.width) // unit + 1
        self._at_units = np.ndarray((count,), kind, memory.data, strides=(unit,))
        self._step, self._edges = step // unit, tokens.edges
        # For each file, the unit at which row 0 would begin if all earlier rows were in this file.
        self._firsts = begins // unit - self._edges[:-1] * self._step

    def copy(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        self.copy_from(self.starts(rows), out)

    def taken(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self.taken_from(self.starts(rows))

    def starts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns, for each sample number in `rows`, the index of the unit at which the sample begins."""
        starts = rows if self._step == 1 else rows * self._step
        if len(self._firsts) > 1:
            starts = starts + self._firsts[self._edges.searchsorted(rows, "right") - 1]
        return starts

    def positions(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        return starts * self._unit + self._first

    def copy_from(self, starts: NDArray[np.int64], out: NDArray[Any]) -> None:
        if self._units is None:
            size = max(1, _SCRATCH // self.width)
            for at in range(0, len(starts), size):
                out[at : at + size] = self.taken_from(starts[at : at + size])
            return
        parts = self._all_parts(starts)
        # No index is out of range, so "clip" changes nothing. Refused: "raise", which copies through a buffer.
        self._units.take(parts, 0, out if len(parts) == len(out) else out.reshape(len(parts), -1), "clip")

    def taken_from(self, starts: NDArray[np.int64]) -> NDArray[Any]:
        if self._units is None:
            found = self._at_units[starts]
        else:
            found = self._units.take(self._all_parts(starts), 0, None, "clip")
        return found.view(self._dtype).reshape(len(starts), -1)

    def _all_parts(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the indices of all units in the samples that begin at the units `starts`."""
        return starts if len(self._parts) == 1 else (starts[:, np.newaxis] + self._parts).reshape(-1)


class _PartlyMappedSamples:
    """Samples from several files, some of them remote. Reads a batch from the files unless all of it is mapped."""

    def __init__(self, tokens: Tokens, span: Span) -> None:
        self._span, self._read = span, _ReadSamples(tokens)
        self._mapped = _MappedSamples(tokens, span.memory, span.begins)
        self.width = self._mapped.width

    def taken(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self._got(rows, self._mapped.taken_from, self._read.taken)

    def copy(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        self._got(rows, partial(self._mapped.copy_from, out=out), partial(self._read.copy, out=out))

    def _got(self, rows: NDArray[np.int64], copied: Callable[..., T], read: Callable[..., T]) -> T:
        mark, starts = self._span.mark, self._mapped.starts(rows)
        at = self._mapped.positions(starts)
        if self._span.has(at, self.width):
            found = copied(starts)
            if self._span.mark is mark:
                return found
        found = read(rows)
        self._span.map(at, self.width)
        return found


class _ReadSamples:
    """Samples from files that are read instead of memory-mapped."""

    def __init__(self, tokens: Tokens) -> None:
        self._files, self._headers, self._edges = tokens.files, tokens._headers, tokens.edges
        size = tokens.dtype.itemsize
        self.width, self._step = tokens.length * size, tokens.stride * size
        self._dtype, self._length = tokens.dtype, tokens.length

    def taken(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        out = np.empty((len(rows), self._length), self._dtype)
        self.copy(rows, out)
        return out

    def copy(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        numbers = self._edges.searchsorted(rows, "right") - 1
        starts = (rows - self._edges[numbers]) * self._step + self._headers[numbers]
        batch = out.view(np.uint8).reshape(len(rows), self.width)
        for number in np.unique(numbers).tolist():
            file, places = self._files[number], np.flatnonzero(numbers == number)
            if isinstance(file, RemoteFile):
                file.read_rows(starts[places], batch, places)
                continue
            raws = file.read_each(starts[places].tolist(), [self.width] * len(places))
            for place, raw in zip(places.tolist(), raws, strict=True):
                batch[place] = np.frombuffer(raw, np.uint8)


def _checked_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(np.void)
    if found.kind not in "iu" or not found.isnative:
        raise ValueError(f"dtype must be an integer type of this machine, such as 'uint16', but it is {dtype!r}.")
    return found


def _header(file: AnyFile, begin: bytes, dtype: np.dtype[Any]) -> int:
    """Returns the size of a file's header, or 0. Raises FormatError if the file cannot contain ids of this dtype."""
    for at, magic, what, remedy in (*_NO_IDS, *_RECORDS * TFRecord.matches(begin)):
        if begin.startswith(magic, at):
            raise FormatError(
                f"{file.path}, byte 0: this is {what}, which would be read as ids. {remedy.format(dtype=str(dtype))}"
            )
    named = dtype_beside(file)
    if named is not None and named != dtype:
        raise FormatError(
            f"{file.path}: the .idx beside it is Megatron's, and says that the ids are {named}, but dtype is "
            f"{dtype}. Pass dtype={str(named)!r}, or read both files with penstock.formats.Megatron."
        )
    if file.size >= _LLMC_HEADER:
        magic, _, ids = np.frombuffer(begin, "<i4", 3).tolist()
        own = _LLMC.get(magic)
        if own is not None and ids * own.itemsize == file.size - _LLMC_HEADER:
            if own != dtype:
                raise FormatError(
                    f"{file.path}, byte 0: the header says that the ids are {own}, but dtype is {dtype}. Pass "
                    f"dtype={str(own)!r}."
                )
            return _LLMC_HEADER
    if file.size % dtype.itemsize:
        raise FormatError(
            f"{file.path} has {file.size:,} bytes, not a multiple of the {dtype.itemsize} bytes of a {dtype}. "
            "The file is cut off, or its ids have another dtype."
        )
    return 0
