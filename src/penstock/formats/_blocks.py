"""The base class of formats that read whole blocks of samples, such as compressed chunks."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._cache.lru import LruCache
from penstock._files.access import FileOptions, check_bytes
from penstock._files.paths import Paths
from penstock._fill.cast import Empty
from penstock._printable import counted
from penstock.formats._format import FileRows, Format
from penstock.source._nested import gathers_numpy

KEEP = 256 << 20
"""How many bytes of decoded blocks a process keeps for one dataset, unless a limit is given."""


class Blocks(Format):
    """The base class of formats that decode whole blocks of samples, and keep the decoded blocks in memory.

    A subclass calls `set_rows` with the number of rows in each block. It defines `read(rows)`, which returns the
    samples of a block in one of three forms: an array whose first axis is the rows; a dict of such arrays, so that a
    sample is a dict of values; or a list of samples. Arrays are copied directly into the batch. Each process keeps
    its most recently used blocks, up to `keep` bytes. With more data than that, a random order decodes a whole block
    for each sample, so use `shuffle="blocks"`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> class Bytes(Blocks):
    ...     def __init__(self, paths, **files):
    ...         super().__init__(paths, **files)
    ...         self.set_rows([[2] * (file.size // 2) for file in self.files])
    ...     def ranges(self, rows):
    ...         return [(rows.first, rows.stop)]
    ...     def read(self, rows):
    ...         return np.frombuffer(self.files[rows.file].read(rows.first, rows.stop - rows.first), np.uint8)
    >>> path = Path(tempfile.mkdtemp(), "some.bytes")
    >>> _ = path.write_bytes(bytes([5, 6, 7, 8]))
    >>> Bytes(path).__gather__([3, 0], np.empty)
    array([8, 5], dtype=uint8)
    """

    def __init__(self, paths: Paths, *, keep: int = KEEP, **files: Unpack[FileOptions]) -> None:
        check_bytes("keep", keep)
        super().__init__(paths, **files)
        self.keep = keep
        self._kept: LruCache[int, Any] = LruCache(keep)

    def read(self, rows: FileRows) -> Any:
        """Returns the samples of a block as an array, a dict of arrays, or a list."""
        raise NotImplementedError(f"{type(self).__name__} must define read(rows).")

    def sample(self, row: int) -> Any:
        number = bisect_right(self._starts.data, row) - 1
        return _taken(self._kept.get(number, self._read), row - self._starts.item(number))

    def samples(self, keys: Sequence[int], rows: NDArray[np.int64]) -> list[Any]:
        found: list[Any] = [None] * len(rows)
        for block, places, local in self._groups(rows):
            for place, row in zip(places, local, strict=True):
                found[place] = _taken(block, row)
        return found

    @gathers_numpy
    def __gather__(self, keys: Sequence[int] | NDArray[Any], empty: Empty) -> Any:
        """Returns the batch, or NotImplemented if blocks are not numeric or differ in dtype or row shape."""
        rows = self.checked(keys)
        outs: dict[str | None, NDArray[Any]] = {}
        is_dict = False
        if not len(rows):
            return NotImplemented  # `collate` reports the empty step
        for block, places, local in self._groups(rows):
            columns = block if isinstance(block, dict) else {None: block}
            is_dict = isinstance(block, dict)
            if outs and outs.keys() != columns.keys():
                return NotImplemented
            for name, column in columns.items():
                if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
                    return NotImplemented
                if name not in outs:
                    outs[name] = empty((len(rows), *column.shape[1:]), column.dtype)
                if (outs[name].dtype, outs[name].shape[1:]) != (column.dtype, column.shape[1:]):
                    return NotImplemented
                outs[name][places] = column[local]
        return outs if is_dict else outs[None]

    def _groups(self, rows: NDArray[np.int64]) -> Iterator[tuple[Any, list[int], list[int]]]:
        """Yields (block, places, local) for each block: `rows[places[i]]` is row `local[i]` of the decoded block."""
        numbers = self._starts.searchsorted(rows, "right") - 1
        # Cached blocks come first, because reading another block may drop one of them.
        for number in sorted(np.unique(numbers).tolist(), key=lambda number: number not in self._kept):
            places = np.flatnonzero(numbers == number)
            local = (rows[places] - self._starts[number]).tolist()
            yield self._kept.get(number, self._read), places.tolist(), local

    def _read(self, number: int) -> tuple[Any, int]:
        rows = self.file_rows(number)
        block = self.read(rows)
        columns = list(block.values()) if isinstance(block, dict) else [block]
        for column in columns:
            if len(column) != rows.stop - rows.first:
                found = counted(len(column), "row")
                self.files[rows.file].damaged(
                    0, f"block {rows.part:,} has {found}, but {rows.stop - rows.first:,} were expected"
                )
        return block, sum(getattr(column, "nbytes", None) or _size(column) for column in columns)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._kept = LruCache(self.keep)


def _taken(block: Any, row: int) -> Any:
    if isinstance(block, dict):
        return {name: _taken(column, row) for name, column in block.items()}
    found = block[row]
    return found.copy() if isinstance(found, np.ndarray) else found  # a view would keep the whole block


def _size(samples: Sequence[Any]) -> int:
    return sum(len(one) if isinstance(one, (bytes, str)) else sys.getsizeof(one) for one in samples)
