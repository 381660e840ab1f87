"""Parquet files: rows by key, row group by row group."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError
from penstock.formats._files import File
from penstock.formats._format import Format
from penstock.formats._index import cached, shown
from penstock.formats._kept import Kept
from penstock.formats._paths import Paths
from penstock.formats._table import KEEP, Table, need_pyarrow, unreadable

_THREADS = 8
_LARGE = 1 << 20  # bytes of a footer whose index is kept: a smaller one is parsed as fast as an index is read
_METADATA = 64 << 20  # bytes of parsed footers that a process keeps
_END = struct.Struct("<I4s")  # length of the footer, and the magic


class Parquet(Table):
    """The rows of Parquet files, in the order of the files' paths; a sample is a dict with the columns.

    `paths` is a file, a folder, a pattern or a list of these; `columns` names the columns to read, by default all. At
    first only the footers are read. A row group is decoded as a whole, by the worker that needs one of its rows; each
    worker keeps the row groups it used last, up to `keep` bytes of decoded columns. See docs/tables.md for the types,
    and for row groups that suit a random order. Needs `pip install ".[parquet]"`.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet
    >>> path = tempfile.mkdtemp() + "/some.parquet"
    >>> pa.parquet.write_table(pa.table({"ids": [[1, 2], [3, 4]], "text": ["a", "b"]}), path)
    >>> data = Parquet(path)
    >>> data[1]
    {'ids': array([3, 4]), 'text': 'b'}
    """

    suffixes = (".parquet", ".pq")
    _part = "row group"

    def __init__(self, paths: Paths, columns: Iterable[str] | None = None, *, keep: int = KEEP) -> None:
        need_pyarrow("Parquet")
        from penstock.formats._schema import common_schema

        Format.__init__(self, paths)
        super().__init__(keep)
        footers = list(shown(_footers(self._files), len(self._files)))
        self._set_schema(common_schema(self.paths, [footer["schema"].tobytes() for footer in footers], columns))
        self._set_blocks([footer["rows"] for footer in footers])

    def _set_kept(self) -> None:
        super()._set_kept()
        self._metadata: Kept[Any] = Kept(_METADATA)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_metadata"]
        return state

    def _read(self, block: int) -> Any:
        from pyarrow.parquet import ParquetFile

        number = self._file_of.item(block)
        metadata = self._metadata.get(number, self._parsed)
        # Without threads of pyarrow's: a process that has some cannot be forked safely.
        file = ParquetFile(
            _Reader.of(self._files[number]),
            metadata=metadata,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        table = file.read_row_group(self._part_of.item(block), self.columns, use_threads=False)
        batches = table.combine_chunks().to_batches()
        if len(batches) != 1:
            raise ValueError(f"its columns cannot be joined: {len(batches)} parts, of at most 2 GB of text each")
        return batches[0]

    def _parsed(self, number: int) -> tuple[Any, int]:
        metadata = _metadata(self._files[number])
        return metadata, metadata.serialized_size


def _footers(files: Sequence[File]) -> Iterator[dict[str, NDArray[Any]]]:
    """The index of each file: rows of its row groups, and its schema."""
    if len(files) < _THREADS:
        yield from map(_footer, files)
        return
    with ThreadPoolExecutor(_THREADS) as threads:  # they have ended when workers are forked
        yield from threads.map(_footer, files)


def _footer(file: File) -> Any:
    if file.size < 12:
        raise FormatError(f"{file.path} is not a Parquet file: it has only {file.size:,} bytes.")
    length, magic = _END.unpack(file.read(file.size - 8, 8))
    if magic == b"PARE":
        raise FormatError(f"{file.path} is an encrypted Parquet file, which cannot be read.")
    if magic != b"PAR1" or file.read(0, 4) != magic:
        raise FormatError(
            f"{file.path} is not a Parquet file, or it is cut off: it does not begin and end with PAR1."
        )
    return cached(file, "parquet-1", _index) if length > _LARGE else _index(file)


def _index(file: File) -> dict[str, NDArray[Any]]:
    metadata = _metadata(file)
    try:
        rows = np.array([metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)], np.int64)
        schema = np.frombuffer(_schema(metadata).serialize(), np.uint8)
    except Exception as error:
        unreadable(f"the footer of {file.path}", error)
    if (rows < 0).any() or rows.sum() != metadata.num_rows:
        counts = f"{metadata.num_rows:,} rows, but {rows.sum():,} in its {len(rows):,} row groups"
        raise FormatError(f"{file.path}: the footer says that it has {counts}. The file is damaged: write it again.")
    return {"rows": rows, "schema": schema}


def _schema(metadata: Any) -> Any:
    """The schema of a footer, as Arrow has it.

    Refused: `metadata.schema`. It and the footer refer to each other, so footers would stay in memory until the
    garbage collector runs: 100 MB for 1,000 files of 100 row groups.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    return ParquetFile(pa.BufferReader(b""), metadata=metadata).schema_arrow


def _metadata(file: File) -> Any:
    from pyarrow.parquet import read_metadata

    try:
        return read_metadata(_Reader.of(file))
    except FormatError:
        raise
    except Exception as error:
        unreadable(f"the footer of {file.path}", error)


class _Reader:
    """A file as pyarrow reads it: with a position. Each reading has its own, so threads do not share one."""

    closed = False

    def __init__(self, file: File) -> None:
        self._file, self._at = file, 0

    @classmethod
    def of(cls, file: File) -> Any:
        import pyarrow as pa

        return pa.PythonFile(cls(file), "r")

    def read(self, size: int = -1) -> bytes:
        rest = max(0, self._file.size - self._at)
        found = self._file.read(self._at, rest if size < 0 else min(size, rest))
        self._at += len(found)
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        """Does nothing: the file stays open for others."""
