"""The base class of all formats. docs/own-format.md shows how to write a format."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from inspect import Parameter, signature
from operator import index as as_int
from typing import Any, ClassVar, NamedTuple, NoReturn, SupportsIndex, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock._cache.lookout import WantedPiece
from penstock._cache.scout import Scout
from penstock._files.access import Access, FileOptions, PiecesOnDisk, RemoteOptions
from penstock._files.identity import fingerprint
from penstock._files.index import Index, MakeIndex, cached_each
from penstock._files.local import AnyFile
from penstock._files.paths import Paths, find_files
from penstock._files.remote import RemoteFile
from penstock._files.too_large import LIMIT, checked_limit
from penstock._printable import counted
from penstock._wire.failure import safe_text
from penstock.formats._inspection import FieldInfo, Inspection, fields_of
from penstock.plan._forecast import Forecast
from penstock.random import each
from penstock.source._array import checked_keys
from penstock.source._dataset import Dataset, remove_bypass, sliced

BLOCK = 8 << 20
"""The approximate size in bytes of a block, in formats whose files have no blocks of their own.

It is the size of the pieces in which remote files are fetched (`PIECE`).
"""


class FileRows(NamedTuple):
    """The rows of one block: rows `first` to `stop - 1` of the file `files[file]`.

    `part` is the index of the block within its file. Empty blocks that were passed to `set_rows` are counted too.

    >>> FileRows(file=0, part=1, first=1000, stop=2000).stop
    2000
    """

    file: int
    part: int
    first: int
    stop: int


class Format(Dataset[Any]):
    """The base class of all formats, including your own. A format reads samples from files by key.

    Samples are in the order of the files' paths. `paths` is a path or URL, a list of these, a pattern or a folder.
    `files` stands for the keyword arguments for remote files, such as `cache=`, which `penstock.formats` describes.

    A subclass calls `super().__init__(paths, **files)`, which sets `self.files`, and then `self.set_rows(...)` with
    the number of samples in each file. It must define `sample(row)`. It may also define `suffixes` and `matches`, so
    that `penstock.open` recognises the format once it is registered; `ranges`, so that only the bytes that a block
    needs are fetched ahead of time; and `samples` and `__gather__`, which read many samples at once. Instances are
    pickled and sent to workers, so no attribute may be an open file handle.

    >>> import tempfile
    >>> from pathlib import Path
    >>> class Pairs(Format):
    ...     def __init__(self, paths, **files):
    ...         super().__init__(paths, **files)
    ...         self.set_rows([file.size // 2 for file in self.files])
    ...     def sample(self, row):
    ...         number, row = self.locate(row)
    ...         return tuple(self.files[number].read(2 * row, 2))
    >>> path = Path(tempfile.mkdtemp(), "some.pairs")
    >>> _ = path.write_bytes(bytes([1, 2, 3, 4]))
    >>> Pairs(path)[-1]
    (3, 4)
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    """File name suffixes in lower case, such as `(".parquet", ".pq")`.

    If `paths` is a folder, the files with these suffixes are read.
    """

    companions: ClassVar[tuple[str, ...]] = ()
    """Name patterns of files that are read along with a file of this format, such as `("chunk-*.bin",)`.

    The files must be in the same folder. `penstock.open` treats a file with such a name as part of this format.
    """

    files: list[AnyFile]
    """The files, sorted by path."""

    max_sample_bytes: int | None = None
    """The maximum size of a sample in memory, in bytes. None means no limit."""

    def __init__(self, paths: Paths, *, max_sample_bytes: int | None = LIMIT, **files: Unpack[RemoteOptions]) -> None:
        self.max_sample_bytes = checked_limit(max_sample_bytes)
        name = type(self).__name__
        self.files = find_files(paths, self.suffixes, name, Access.of(name, files))

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Lists the keywords of `**files` in a subclass's signature, for `help`, completion and `penstock.open`."""
        super().__init_subclass__(**keywords)
        for name in ("__views__", "__gather__"):
            remove_bypass(cls, name, ("sample", "samples"))
        if "__init__" in vars(cls):
            cls.__signature__ = _spelt_out(cls)  # type: ignore[attr-defined]

    # Methods that a format defines.

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        """True if a file with these first bytes has this format.

        `first_bytes` holds the first 512 bytes of the file, or the whole file if it is shorter.
        """
        return False

    def sample(self, row: int) -> Any:
        """Returns the sample at the index `row`, from 0 to `len(self) - 1`.

        Every format must define this method. `locate(row)` returns the file that contains the row.
        """
        raise NotImplementedError(f"{type(self).__name__} must define sample(row).")

    def samples(self, keys: Sequence[int], rows: NDArray[np.int64]) -> list[Any]:
        """Returns the samples of several rows.

        Override this method if reading many samples at once is faster than reading them one by one. `keys` are the
        loader's keys for these rows. Loop over `zip(penstock.each(keys), rows)` to tell the loader which sample is
        being computed, so that `penstock.rng()` and error messages refer to that sample.
        """
        return [self.sample(row) for _, row in zip(each(keys), rows.tolist(), strict=True)]

    def ranges(self, rows: FileRows) -> Iterable[tuple[int, int]]:
        """Returns the byte ranges of a file that a block needs, each as a pair (start, stop).

        `start` is the offset of the first byte, and `stop` is the offset after the last byte. If the file is remote,
        these ranges are fetched before the block is needed. By default, there is one range, which covers the whole
        file.
        """
        return [(0, self.files[rows.file].size)]

    def checks(self) -> Sequence[object]:
        """Returns, for each file, a value that changes when the content of the file changes.

        The value must be cheap to obtain, for example a checksum in the file's header. A resume state stores these
        values, so that the state cannot be resumed with different files. Copies of a file have the same value.
        """
        return [None] * len(self.files)

    def fields(self) -> tuple[FieldInfo, ...]:
        """Returns the fields of the samples, for `inspect()`. By default, they are the fields of the first sample."""
        return tuple(fields_of(self[0])) if len(self) else ()

    # Methods that the code of a format calls.

    @classmethod
    def access(cls, files: FileOptions) -> Access:
        """Returns the keyword arguments for remote files as one `Access` object.

        Raises TypeError for a keyword that no format accepts.
        """
        remote = {name: value for name, value in files.items() if name != "max_sample_bytes"}
        return Access.of(cls.__name__, cast(RemoteOptions, remote))

    def index(self, kind: str, find: MakeIndex) -> list[Index]:
        """Returns the index of each file, which consists of the named arrays that `find(file)` returns.

        Indexes are built once and then stored (docs/formats.md). `kind` identifies what `find` does, with a version,
        such as "tar-2"; change it whenever `find` changes. `find` must be a module-level function, or a
        `functools.partial` of one, because it is sent to other processes.
        """
        return cached_each(self.files, kind, find)

    def set_rows(self, rows: Sequence[ArrayLike]) -> None:
        """Sets the number of rows in each file, such as `[120, 80]`, or in each block of each file.

        To set the rows of blocks, pass one list per file, such as `[[50, 50, 20], [80]]`. A block is a group of rows
        that are best read together, such as a compressed chunk. A file with a single number is one block.
        """
        counts = [np.atleast_1d(np.asarray(one, np.int64)) for one in rows]
        every = np.concatenate([np.empty(0, np.int64), *counts])
        filled = every > 0
        self._starts = np.concatenate([[0], every[filled].cumsum()])
        self.edges = np.concatenate([[0], np.cumsum([one.sum() for one in counts])]).astype(np.int64)
        # For each non-empty block, its file and its index within that file.
        self._file_of = np.repeat(np.arange(len(counts), dtype=np.int32), list(map(len, counts)))[filled]
        parts = (np.arange(len(one), dtype=np.int32) for one in counts)
        self._part_of = np.concatenate([np.empty(0, np.int32), *parts])[filled]
        self.__dict__.pop("blocks", None)

    def locate(self, row: int) -> tuple[int, int]:
        """Returns the index of the file that contains this row, and the row's index within that file."""
        number = bisect_right(self.edges.data, row) - 1
        return number, row - self.edges.item(number)

    def locate_each(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Like `locate`, but for an array of rows. Returns two arrays."""
        numbers = self.edges.searchsorted(rows, "right") - 1
        return numbers, rows - self.edges[numbers]

    def checked(self, keys: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """Converts keys, which may be negative, to row indices, for use in `__gather__`.

        Raises IndexError if a key is out of range.
        """
        return checked_keys(keys, len(self))

    def file_rows(self, block: int) -> FileRows:
        """Returns the file that contains a block, and the block's rows within that file."""
        first, stop = self.blocks[block : block + 2].tolist()
        number, row = self.locate(first)
        if self.blocks is self._starts:
            part = self._part_of.item(block)
        else:
            part = block - int(self.blocks.searchsorted(self.edges[number]))
        return FileRows(number, part, row, row + stop - first)

    # Methods that users and loaders call.

    @property
    def paths(self) -> list[str]:
        """The absolute paths of the files, or their URLs without credentials."""
        return [file.path for file in self.files]

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """The index of the first row of each file, followed by the total number of rows."""
        raise AttributeError(
            f"{type(self).__name__} has no rows yet: call self.set_rows(...) in its __init__, with the number of "
            "samples in each file."
        )

    @cached_property
    def blocks(self) -> NDArray[np.int64]:
        """The index of the first row of each block, followed by the total number of rows."""
        return self._starts

    def __len__(self) -> int:
        return int(self.edges[-1])

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        """Returns one sample for an int, which may be negative as in a list, or a `Subset` for a slice."""
        n = len(self)
        if isinstance(key, slice):
            return sliced(self, key)
        try:
            row = as_int(key)
        except TypeError:
            self._not_a_key(key)
        if not -n <= row < n:
            raise IndexError(f"key {row} is not in a {type(self).__name__} of {counted(n, 'sample')}.")
        return self.sample(row % n)

    def _not_a_key(self, key: object) -> NoReturn:
        last = f"{len(self) - 1:,}"
        what = f"A key of a {type(self).__name__} is the number of a sample, an int from 0 to {last}, or a slice"
        if isinstance(key, str):
            what += f". If {key!r} is a field, it is data[0][{key!r}] of the first sample"
            what += ", and columns=[...] reads some fields only" if hasattr(self, "columns") else ""
        elif isinstance(key, (list, tuple, np.ndarray)):
            what += ". For several keys use data.select(keys)"
        raise TypeError(f"{what}; got {safe_text(key, repr)}, of type {type(key).__name__}.") from None

    def __getitems__(self, keys: Sequence[int]) -> list[Any]:
        return self.samples(keys, self.checked(keys))

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __foresee__(self, forecast: Forecast) -> Any:
        """Returns an object that fetches remote files ahead of time, or None if there is no disk cache."""
        for file in self.files:
            if isinstance(file, RemoteFile) and isinstance(file.pieces, PiecesOnDisk):
                return Scout(forecast, FilesInPieces(self), file.pieces.cache)
        return None

    def __fingerprint__(self) -> str | None:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str | None:
        if not self.files:
            return None
        checks = self.checks()
        return fingerprint((file.path, file.size, check) for file, check in zip(self.files, checks, strict=True))

    def inspect(self, samples: int = 3) -> Inspection:
        """Returns a description of the files and their samples, with the first few samples."""
        first = tuple(self[row] for row in range(min(samples, len(self))))
        size = sum(file.size for file in self.files)
        lengths = np.diff(self.blocks)
        some = (int(lengths.min()), int(lengths.max())) if len(lengths) else None
        about = type(self).__name__, len(self.files), len(self), size, self.fields()
        return Inspection(*about, len(lengths), first, some)

    def __repr__(self) -> str:
        files = repr(self.files[0].path) if len(self.files) == 1 else f"{len(self.files):,} files"
        return f"{type(self).__name__}({files}, {counted(len(self), 'sample')})"


class FilesInPieces:
    """Finds the pieces of remote files that a block of samples needs. Implements the protocol `InPieces`."""

    def __init__(self, samples: Format) -> None:
        self.blocks = samples.blocks
        self._samples = samples

    def pieces_of(self, block: int) -> list[WantedPiece]:
        rows = self._samples.file_rows(block)
        file = self._samples.files[rows.file]
        if not isinstance(file, RemoteFile) or not isinstance(file.pieces, PiecesOnDisk):
            return []
        pieces = [piece for some in self._samples.ranges(rows) for piece in file.pieces_of(*some)]
        return [WantedPiece(piece.name, piece.stop - piece.start, partial(file.fetch, piece)) for piece in pieces]


def _spelt_out(made: type[Format]) -> Any:
    found = signature(made.__init__)
    *given, files = list(found.parameters.values())[1:]
    if files.kind is not Parameter.VAR_KEYWORD:
        return found.replace(parameters=[*given, files], return_annotation=None)
    # Annotations are strings. Any annotation other than RemoteOptions means all keyword arguments.
    options = RemoteOptions if "RemoteOptions" in str(files.annotation) else FileOptions
    defaults = {**Access._field_defaults, "max_sample_bytes": LIMIT}
    types = {name: kind for each in (RemoteOptions, options) for name, kind in each.__annotations__.items()}
    more = [Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=types[name]) for name in types]
    return found.replace(parameters=[*given, *more], return_annotation=None)


Format.__signature__ = _spelt_out(Format)  # type: ignore[attr-defined]
