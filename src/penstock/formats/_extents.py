"""The base class of formats in which each sample is one extent (a byte range) of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, NoReturn, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._files.access import Access, FileOptions
from penstock._files.index import Arrays, Index
from penstock._files.local import AnyFile
from penstock._files.paths import Paths
from penstock._files.too_large import refuse_large
from penstock._remote.urls import is_url
from penstock.errors import FormatError
from penstock.formats._format import BLOCK, FileRows, Format
from penstock.random import each

# The first bytes of compressed files, the name of the compression, and the command that decompresses.
_COMPRESSED = (
    (b"\x1f\x8b", "gzip", "gzip -dk"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    (b"BZh", "bzip2", "bzip2 -dk"),
    (b"\xfd7zXZ\0", "xz", "xz -dk"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
    (b"PK\x03\x04", "zip", "unzip"),
)


class Extents(Format):
    """The base class of formats in which each sample is one extent (a byte range) of a file, found by an index.

    A subclass defines two methods. `decoded(raw, number, row)` converts the bytes of an extent to a sample.
    `find(file)` returns the index of a file as a dict of arrays. The array `starts` holds the offset of each sample
    and the end of the last one; a format may add other arrays. Indexes are built once and then stored, so `kind` must
    identify what `find` does, with a version. `self.indexes` holds the index of each file. A block is about 8 MB of a
    file.

    >>> import tempfile
    >>> from pathlib import Path
    >>> class Words(Extents):
    ...     kind = "words-1"
    ...     @staticmethod
    ...     def find(file):
    ...         spaces = np.frombuffer(file.read(0, file.size), np.uint8) == ord(" ")
    ...         return {"starts": np.concatenate([[0], np.flatnonzero(spaces) + 1, [file.size]])}
    ...     def decoded(self, raw, number, row):
    ...         return raw.decode().strip()
    >>> path = Path(tempfile.mkdtemp(), "some.words")
    >>> _ = path.write_text("one two three")
    >>> list(Words(path))
    ['one', 'two', 'three']
    """

    kind: ClassVar[str] = ""
    """Identifies what `find` does, with a version, such as "tar-2". Change it whenever `find` changes."""

    indexes: list[Index]

    def __init__(self, paths: Paths, **files: Unpack[FileOptions]) -> None:
        super().__init__(paths, **files)
        self._set_indexes(self._find_indexes(self.access(files)))

    @staticmethod
    def find(file: AnyFile) -> Arrays:
        """Returns the index of a file. This must be a static method, because it is called in other processes."""
        raise NotImplementedError("a format of extents must define find(file).")

    def decoded(self, raw: bytes, number: int, row: int) -> Any:
        """Decodes a sample. `raw` holds the bytes of the row `row` in the file `self.files[number]`."""
        raise NotImplementedError(f"{type(self).__name__} must define decoded(raw, number, row).")

    def extent(self, number: int, row: int) -> tuple[int, int]:
        """Returns the offset and the length of a sample in its file, in bytes."""
        place = self._place(number, row)
        start, stop = self.indexes[number]["starts"][place : place + 2].tolist()
        return start, stop - start

    def _extents(self, number: int, rows: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """Returns two lists: the offsets and the lengths of these rows of a file."""
        if type(self).extent is not Extents.extent or type(self)._place is not Extents._place:
            firsts, lengths = zip(*(self.extent(number, row) for row in rows.tolist()), strict=True)
            return list(firsts), list(lengths)
        starts = self.indexes[number]["starts"]
        begins = starts[rows]
        return begins.tolist(), (starts[rows + 1] - begins).tolist()

    def _find_indexes(self, access: Access) -> list[Index]:
        return self.index(self.kind, self.find)

    def _set_indexes(self, indexes: list[Index]) -> None:
        self.indexes = indexes
        self.set_rows([self._count(index) for index in indexes])

    @cached_property
    def blocks(self) -> NDArray[np.int64]:
        """The index of the first row of each block, followed by the total number of rows.

        A block is about 8 MB of one file.
        """
        inside = [first + self._firsts(number) for number, first in enumerate(self.edges[:-1].tolist())]
        return np.unique(np.concatenate([*inside, self.edges]))

    def _firsts(self, number: int) -> NDArray[np.int64]:
        """Returns the index of the first row of each block in a file, except for the first block."""
        starts = self.indexes[number]["starts"]
        # Convert to the same dtype, because numpy would otherwise read and convert the whole index.
        begins = np.arange(BLOCK, self.files[number].size, BLOCK).astype(starts.dtype)
        return starts[:-1].searchsorted(begins)

    def _count(self, index: Index) -> int:
        """Returns the number of samples in a file, without reading the whole index."""
        starts = index.get("starts")
        if starts is None or starts.ndim != 1 or not len(starts) or starts.dtype.kind not in "iu":
            raise FormatError(
                f"The index that is kept for {index.path} has no positions of samples: it was not written by "
                "penstock. Delete the index (*.penstock-*, beside the file or in the cache folder)."
            )
        return len(starts) - 1

    def _place(self, number: int, row: int) -> int:
        """Returns the index of the extent that holds a row."""
        return row

    def sample(self, row: int) -> Any:
        return self._sample_at(*self.locate(row))

    def _sample_at(self, number: int, row: int) -> Any:
        start, length = self.extent(number, row)
        if self.max_sample_bytes is not None and length > self.max_sample_bytes:
            self._refuse_large(number, start, length)
        return self.decoded(self.files[number].read(start, length), number, row)

    def samples(self, keys: Sequence[int], rows: NDArray[np.int64]) -> list[Any]:
        return [self.decoded(*found) for found in self._raw_samples(keys, rows)]

    def _raw_samples(
        self, keys: Sequence[int] | NDArray[Any], rows: NDArray[np.int64]
    ) -> Iterator[tuple[bytes, int, int]]:
        """Yields (bytes of the sample, index of the file, row within the file) for each key."""
        numbers, inside = self.locate_each(rows)
        limit = self.max_sample_bytes or 1 << 62
        large = False
        raws: dict[int, Iterator[bytes]] = {}
        for number in np.unique(numbers).tolist():
            starts, lengths = self._extents(number, inside[numbers == number])
            large = large or max(lengths) > limit
            raws[number] = iter(self.files[number].read_each(starts, lengths))
        # One by one, so that the bytes are still in the processor's cache when decoded, and soon freed.
        for _, number, row in zip(each(keys), numbers.tolist(), inside.tolist(), strict=True):
            if large and self.extent(number, row)[1] > limit:
                self._refuse_large(number, *self.extent(number, row))
            yield next(raws[number]), number, row

    def _refuse_large(self, number: int, start: int, length: int) -> NoReturn:
        assert self.max_sample_bytes is not None
        refuse_large(f"{self.files[number].path}, byte {start:,}", length, self.max_sample_bytes)

    def ranges(self, rows: FileRows) -> Iterable[tuple[int, int]]:
        start, length = self.extent(rows.file, rows.stop - 1)
        return [(self.extent(rows.file, rows.first)[0], start + length)]


def compact(starts: NDArray[np.int64], size: int) -> NDArray[Any]:
    """Returns the offsets as 4-byte integers if the file is smaller than 4 GiB, otherwise unchanged."""
    return starts.astype(np.uint32) if size < 1 << 32 else starts


def refuse_compressed(file: AnyFile) -> None:
    begin = file.peek(0, min(file.size, 8))
    for magic, name, command in _COMPRESSED:
        if begin.startswith(magic):
            what = f"{command} {file.path!r}"
            if is_url(file.path):
                what = f"download it, run {command}, and upload the result"
            file.refused(
                0,
                f"the file is compressed by {name}, so a sample cannot be read without decompressing everything "
                f"before it. Decompress the file first: {what}",
            )
