"""Where the columns of a Parquet file are, and which pieces of a remote file hold them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.formats._remotefile import PIECE, RemoteFile

_GAP = 1 << 20  # bytes between two extents that are read rather than asked around: 10 ms at 100 MB/s

Extent = tuple[int, int]
"""The first byte, and the end."""


def extents(metadata: Any, group: int, columns: Sequence[str] | None) -> list[Extent]:
    """The bytes of some columns in a row group; None for all. Extents with a small gap between them are joined."""
    found: list[Extent] = []
    for start, stop in sorted(_chunks(metadata.row_group(group), columns)):
        if found and start - found[-1][1] < _GAP:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


def _chunks(group: Any, columns: Sequence[str] | None) -> Iterator[Extent]:
    names = None if columns is None else tuple(f"{name}." for name in columns)
    for number in range(group.num_columns):
        chunk = group.column(number)
        if names is not None and not f"{chunk.path_in_schema}.".startswith(names):
            continue
        pages, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
        start = min(pages, dictionary) if dictionary else pages
        yield start, start + chunk.total_compressed_size


def places(metadata: Any, columns: Sequence[str] | None) -> NDArray[np.int64]:
    """The extents of each row group: number of the row group, first byte, and end."""
    groups = range(metadata.num_row_groups)
    found = [(group, *each) for group in groups for each in extents(metadata, group, columns)]
    return np.array(found, np.int64).reshape(-1, 3)


def edges(places: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The edges of pieces that begin and end with the columns of a row group, and are not longer than others."""
    cuts = {0, size, *places[:, 1:].reshape(-1).tolist()}
    inside = sorted(cut for cut in cuts if 0 <= cut <= size)
    parts = [np.arange(first, last, PIECE) for first, last in pairwise(inside)]
    return np.concatenate([*parts, [size]]).astype(np.int64)


class Fetched:
    """Extents of a remote file, read at once; other bytes are read when they are asked for."""

    def __init__(self, file: RemoteFile, extents: Sequence[Extent]) -> None:
        self._file, self.size = file, file.size
        inside = [(start, stop) for start, stop in extents if 0 <= start <= stop <= file.size]
        self._starts = [start for start, _ in inside]
        self._raws = file.read_each(self._starts, [stop - start for start, stop in inside])

    def read(self, start: int, length: int) -> bytes:
        number = bisect_right(self._starts, start) - 1
        if number >= 0:
            at = start - self._starts[number]
            if at + length <= len(self._raws[number]):
                return self._raws[number][at : at + length]
        return self._file.read(start, length)
