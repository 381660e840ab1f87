"""The base of all formats: samples of one or more files, by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from operator import index as as_int
from typing import Any, ClassVar, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock._cache.lookout import Wanted
from penstock._cache.scout import Scout
from penstock._wire.failure import shown
from penstock.formats._access import Access, PiecesOnDisk
from penstock.formats._files import AnyFile
from penstock.formats._identity import fingerprint
from penstock.formats._inspection import FieldInfo, Inspection, fields_of
from penstock.formats._paths import Paths, find_files
from penstock.formats._remotefile import RemoteFile
from penstock.plan._forecast import Forecast
from penstock.random import each
from penstock.source._array import checked_keys
from penstock.source._dataset import Dataset, Subset


class Format(Dataset[Any]):
    """The samples of files, in the order of the files' paths.

    A subclass sets `_edges`, the first row of each file and the end, and defines `_sample(row)`; a row is a key of 0
    or more. It may define `_samples(keys, rows)`, which reads many at once.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Ends of the names of files that are read if a folder is given."""

    _edges: NDArray[np.int64]
    _files: list[AnyFile]

    def __init__(self, paths: Paths, access: Access) -> None:
        self._files = find_files(paths, self.suffixes, type(self).__name__, access)

    @property
    def paths(self) -> list[str]:
        """The files, as absolute paths, or as URLs without credentials."""
        return [file.path for file in self._files]

    @cached_property
    def blocks(self) -> NDArray[np.int64]:
        """The first row of each block, and the end. A block is what is best read together: here, a file."""
        return np.unique(self._edges)

    def __len__(self) -> int:
        return int(self._edges[-1])

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        """The sample of a key, an int as in a list; of a slice, a `Subset` with those samples."""
        n = len(self)
        if isinstance(key, slice):
            return Subset(self, np.arange(*key.indices(n)))
        try:
            row = as_int(key)
        except TypeError:
            self._not_a_key(key)
        if not -n <= row < n:
            raise IndexError(f"key {row} is not in a {type(self).__name__} of {n:,} samples.")
        return self._sample(row % n)

    def _not_a_key(self, key: object) -> NoReturn:
        last = f"{len(self) - 1:,}"
        what = f"A key of a {type(self).__name__} is the number of a sample, an int from 0 to {last}, or a slice"
        if isinstance(key, str):
            what += f". If {key!r} is a field, it is data[0][{key!r}] of the first sample"
            what += ", and columns=[...] reads some fields only" if hasattr(self, "columns") else ""
        elif isinstance(key, (list, tuple, np.ndarray)):
            what += ". For several keys use penstock.Subset(data, keys)"
        raise TypeError(f"{what}; got {shown(key, repr)}, of type {type(key).__name__}.") from None

    def __getitems__(self, keys: Sequence[int]) -> list[Any]:
        return self._samples(keys, checked_keys(keys, len(self)))

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def _sample(self, row: int) -> Any:
        raise NotImplementedError

    def _samples(self, keys: Sequence[int], rows: NDArray[np.int64]) -> list[Any]:
        return [self._sample(row) for _, row in zip(each(keys), rows.tolist(), strict=True)]

    def _located(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """The number of the file of each row, and the row in that file."""
        numbers = self._edges.searchsorted(rows, "right") - 1
        return numbers, rows - self._edges[numbers]

    def _ranges_of(self, block: int, number: int, first: int, stop: int) -> list[tuple[int, int]]:
        """The bytes that a block is read from: here, all of its file.

        They are given as ranges of the file `number`, in which the block has the rows from `first` to before `stop`.
        """
        return [(0, self._files[number].size)]

    def __foresee__(self, forecast: Forecast) -> Any:
        """Called by a loader: fetches pieces of remote files before workers ask for them, if they are cached."""
        for file in self._files:
            if isinstance(file, RemoteFile) and isinstance(file.pieces, PiecesOnDisk):
                return Scout(forecast, FilesInPieces(self), file.pieces.cache)
        return None

    def __fingerprint__(self) -> str | None:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str | None:
        if not self._files:
            return None
        checks = self._checks()
        return fingerprint((file.path, file.size, check) for file, check in zip(self._files, checks, strict=True))

    def _checks(self) -> Sequence[object]:
        """For each file a check of its content that costs nothing more. Copies of a file have the same."""
        return [None] * len(self._files)

    def inspect(self, samples: int = 3) -> Inspection:
        """What the files hold, with the first samples."""
        first = tuple(self[row] for row in range(min(samples, len(self))))
        size = sum(file.size for file in self._files)
        lengths = np.diff(self.blocks)
        some = (int(lengths.min()), int(lengths.max())) if len(lengths) else None
        about = type(self).__name__, len(self._files), len(self), size, self._fields()
        return Inspection(*about, len(lengths), first, some)

    def _fields(self) -> tuple[FieldInfo, ...]:
        return tuple(fields_of(self[0])) if len(self) else ()

    def __repr__(self) -> str:
        files = repr(self._files[0].path) if len(self._files) == 1 else f"{len(self._files):,} files"
        return f"{type(self).__name__}({files}, {len(self):,} samples)"


class FilesInPieces:
    """The blocks of a format, and the pieces of its files that have them: see `InPieces`."""

    def __init__(self, samples: Format) -> None:
        self.blocks = samples.blocks
        self._samples = samples

    def pieces_of(self, block: int) -> list[Wanted]:
        first, stop = self.blocks[block : block + 2].tolist()
        samples = self._samples
        number = int(samples._edges.searchsorted(first, "right")) - 1
        row = int(samples._edges[number])
        file = samples._files[number]
        if not isinstance(file, RemoteFile) or not isinstance(file.pieces, PiecesOnDisk):
            return []
        ranges = samples._ranges_of(block, number, first - row, stop - row)
        pieces = [piece for some in ranges for piece in file.pieces_of(*some)]
        return [Wanted(piece.name, piece.stop - piece.start, partial(file.fetch, piece)) for piece in pieces]
