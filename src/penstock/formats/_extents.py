"""The base of formats in which a sample is one extent of bytes of a file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock._remote.urls import is_url
from penstock._too_large import checked_limit, refuse_large
from penstock.errors import FormatError
from penstock.formats._access import Access
from penstock.formats._files import AnyFile
from penstock.formats._format import Format
from penstock.formats._index import Index, Make, cached_each
from penstock.formats._paths import Paths
from penstock.random import each

# The first bytes of compressed files, what compressed them, and the command that undoes it.
_COMPRESSED = (
    (b"\x1f\x8b", "gzip", "gzip -dk"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    (b"BZh", "bzip2", "bzip2 -dk"),
    (b"\xfd7zXZ\0", "xz", "xz -dk"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
    (b"PK\x03\x04", "zip", "unzip"),
)


_BLOCK = 8 << 20  # bytes of a block of samples


class Extents(Format):
    """The samples of files by the positions that an index has.

    The index has `starts`: the first byte of each extent, and the end of the last. A subclass defines
    `_decoded(raw, number, row)`, which turns the bytes of an extent into a sample; `number` is that of the file.
    """

    max_sample_bytes: int | None = None

    def __init__(
        self, paths: Paths, kind: str, make: Make, access: Access, max_sample_bytes: int | None = None
    ) -> None:
        self.max_sample_bytes = checked_limit(max_sample_bytes)
        super().__init__(paths, access)
        self._set_indexes(self._find_indexes(kind, make, access))

    def _find_indexes(self, kind: str, make: Make, access: Access) -> list[Index]:
        return cached_each(self._files, kind, make)

    def _set_indexes(self, indexes: list[Index]) -> None:
        self._indexes = indexes
        self._edges = np.concatenate([[0], np.cumsum([self._count(index) for index in self._indexes])])

    @cached_property
    def blocks(self) -> NDArray[np.int64]:
        """The first row of each block, and the end. A block is some MB of one file."""
        inside = [first + self._firsts(number) for number, first in enumerate(self._edges[:-1].tolist())]
        return np.unique(np.concatenate([*inside, self._edges]))

    def _firsts(self, number: int) -> NDArray[np.int64]:
        """The first row of each block in a file but the first."""
        starts = self._indexes[number]["starts"]
        # Of the same dtype: else all of the index would be read and converted.
        begins = np.arange(_BLOCK, self._files[number].size, _BLOCK).astype(starts.dtype)
        return starts[:-1].searchsorted(begins)

    def _count(self, index: Index) -> int:
        """The number of samples in a file. Only its shape is checked: to read all positions would take long."""
        starts = index.get("starts")
        if starts is None or starts.ndim != 1 or not len(starts) or starts.dtype.kind not in "iu":
            raise FormatError(
                f"The index that is kept of {index.path} has no positions of samples: another program than penstock "
                "has written it. Delete the index (*.penstock-*, beside the file or in the cache folder)."
            )
        return len(starts) - 1

    def _place(self, number: int, row: int) -> int:
        """The number of the extent of a row of a file."""
        return row

    def _decoded(self, raw: bytes, number: int, row: int) -> Any:
        raise NotImplementedError

    def _sample(self, row: int) -> Any:
        number = bisect_right(self._edges, row) - 1
        row -= int(self._edges[number])
        start, length = self._extent(number, row)
        if self.max_sample_bytes is not None and length > self.max_sample_bytes:
            self._refuse_large(number, start, length)
        return self._decoded(self._files[number].read(start, length), number, row)

    def _samples(self, keys: Sequence[int], rows: NDArray[np.int64]) -> list[Any]:
        return [self._decoded(*found) for found in self._found(keys, rows)]

    def _found(
        self, keys: Sequence[int] | NDArray[Any], rows: NDArray[np.int64]
    ) -> Iterator[tuple[bytes, int, int]]:
        """For each key the bytes of its sample, the number of the file, and the row in it.

        The bytes are read when they are due, just before they are decoded: so they are in the processor's cache, and
        their memory is soon free again.
        """
        numbers, inside = (found.tolist() for found in self._located(rows))
        extents: dict[int, list[tuple[int, int]]] = {}
        limit = self.max_sample_bytes or 1 << 62
        large = False
        for number, row in zip(numbers, inside, strict=True):
            extent = self._extent(number, row)
            large |= extent[1] > limit
            extents.setdefault(number, []).append(extent)
        raws = {
            number: iter(self._files[number].read_each(*zip(*some, strict=True)))
            for number, some in extents.items()
        }
        for _, number, row in zip(each(keys), numbers, inside, strict=True):
            if large and self._extent(number, row)[1] > limit:
                self._refuse_large(number, *self._extent(number, row))
            yield next(raws[number]), number, row

    def _refuse_large(self, number: int, start: int, length: int) -> NoReturn:
        assert self.max_sample_bytes is not None
        refuse_large(f"{self._files[number].path}, byte {start:,}", length, self.max_sample_bytes)

    def _ranges_of(self, block: int, number: int, first: int, stop: int) -> list[tuple[int, int]]:
        start, length = self._extent(number, stop - 1)
        return [(self._extent(number, first)[0], start + length)]

    def _extent(self, number: int, row: int) -> tuple[int, int]:
        """The first byte of a sample, and the number of its bytes."""
        place, starts = self._place(number, row), self._indexes[number]["starts"]
        start = int(starts[place])
        return start, int(starts[place + 1]) - start


def compact(starts: NDArray[np.int64], size: int) -> NDArray[Any]:
    """Positions in a file of this size, in half of the memory if they fit."""
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
                f"the file is compressed by {name}, so a sample cannot be read without decompressing all that is "
                f"before it. Decompress the file first: {what}",
            )
