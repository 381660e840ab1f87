"""Reads the rows of Parquet files by key. Row groups are decoded as a whole."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._cache.lru import LruCache
from penstock._files.access import FileOptions
from penstock._files.index import cached, for_each
from penstock._files.local import AnyFile, File
from penstock._files.paths import Paths
from penstock._files.remote import RemoteFile
from penstock._files.too_large import AT_ONCE, check_block
from penstock.errors import FormatError
from penstock.formats._blocks import KEEP
from penstock.formats._chunks import ByteRange, ColumnChunk, Fetched, RowGroups, chunks, edges, places
from penstock.formats._decoders import Decoder
from penstock.formats._format import FileRows, Format
from penstock.formats._table import Table, need_pyarrow, unreadable

_WIDTHS = {"BOOLEAN": 0, "INT64": 8, "DOUBLE": 8, "INT96": 8}
_THREADS = 8
_LARGE = 1 << 20  # bytes: only larger footers have stored indexes, because a smaller footer is parsed as fast
_METADATA = 64 << 20  # bytes of parsed footers that a process keeps
_SENT = 256 << 20  # the maximum size in bytes of the footers that are sent to workers
_TAIL = 64 << 10  # bytes at the end of a file that are read first, because most footers are smaller
_LENGTH, _MAGIC = struct.Struct("<I"), b"PAR1"  # the last eight bytes: the length of the footer, and the magic
_DIVIDED = 1 << 30  # bytes: a row group of this size may be too large to be read at once
_COUNTED = 1 << 16  # rows whose strings are counted at once
_NOTHING = np.empty(0, np.uint8)


class Parquet(Table):
    """A dataset of the rows of Parquet files, in the order of the files' paths. A sample is a dict with the columns.

    `paths` is a file, a folder, a pattern or a list of these. `columns` names the columns to read; by default, all
    columns are read. Creating the dataset reads only the footers. A row group is decoded as a whole, once for all
    workers of a machine. The workers keep the most recently used row groups, up to `keep` bytes of decoded columns;
    with `shuffle="blocks"`, they keep the row groups of the window. docs/tables.md describes the types of values, and
    the row groups that suit a random order. Needs `pip install ".[parquet]"`.

    `decode={"image": function}` decodes a column of encoded files, such as JPEGs, by a function of bytes, for example
    a `penstock.image.Transform`.

    `storage`, `cache`, `cache_bytes` and `cache_shared` apply to remote files: see `penstock.formats`.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet
    >>> path = tempfile.mkdtemp() + "/some.parquet"
    >>> pa.parquet.write_table(pa.table({"ids": [[1, 2], [3, 4]], "text": ["a", "b"]}), path)
    >>> data = Parquet(path)
    >>> data[1]
    {'ids': array([3, 4]), 'text': 'b'}
    """

    suffixes = (".parquet", ".pq")
    _part = "row group"

    def __init__(
        self,
        paths: Paths,
        columns: Iterable[str] | None = None,
        *,
        keep: int = KEEP,
        decode: Mapping[str, Decoder | None] | None = None,
        **files: Unpack[FileOptions],
    ) -> None:
        need_pyarrow("Parquet")
        from penstock.formats._schema import common_schema

        Format.__init__(self, paths, **files)
        super().__init__(keep)
        footers = list(for_each(_footer, self.files, _THREADS))
        self._set_schema(common_schema(self.paths, [footer["schema"].tobytes() for footer in footers], columns))
        self._set_decode(decode)
        self.set_rows([footer["rows"] for footer in footers])
        self._footers = [int(footer["check"][0]) for footer in footers]
        self._ends = _Ends([footer.get("end", _NOTHING) for footer in footers])
        self._metadata: LruCache[int, Any] = LruCache(_METADATA)
        self._chunks: LruCache[int, RowGroups] = LruCache(_METADATA)
        self._places: dict[int, NDArray[np.int64]] = {}

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        return first_bytes.startswith(_MAGIC)

    def checks(self) -> Sequence[object]:
        return self._footers

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_places": {}, "_chunks": LruCache(_METADATA)}

    def _read(self, block: int) -> list[Any]:
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile

        number, part = self._file_of.item(block), self._part_of.item(block)
        metadata, name, text = self._metadata.get(number, self._parsed), self._place(block), None
        if self.max_sample_bytes is not None:
            found = self._chunks.get(number, self._find_chunks)[part]
            _check_size(found, metadata.row_group(part).num_rows, name, self.max_sample_bytes)
            text = _Text(found, metadata.row_group(part).num_rows, part, self.max_sample_bytes)
        file = self.files[number]
        if isinstance(file, RemoteFile):  # all columns at once, which pyarrow would request one by one
            file = Fetched(file, self.ranges(self.file_rows(block)))
        # pyarrow must not start threads, because a process with threads cannot be forked safely.
        opened = partial(ParquetFile, metadata=metadata, pre_buffer=False, page_checksum_verification=True)
        if text is not None and text.may_exceed:
            text.check(opened(pa.PythonFile(file.open(), "r"), read_dictionary=text.paths), name)
        return _batches(opened(pa.PythonFile(file.open(), "r")), part, self.columns)

    def ranges(self, rows: FileRows) -> list[ByteRange]:
        if not isinstance(self.files[rows.file], RemoteFile):
            return [(0, self.files[rows.file].size)]
        found = self._places.get(rows.file)
        if found is None:
            found = self._places[rows.file] = self._find_columns(rows.file)
        begin, end = found[:, 0].searchsorted([rows.part, rows.part + 1])
        return [(start, stop) for start, stop in found[begin:end, 1:].tolist()]

    def _find_columns(self, number: int) -> NDArray[np.int64]:
        """Returns the byte ranges of a remote file's columns, and divides the file at the edges of these ranges."""
        file = self.files[number]
        assert isinstance(file, RemoteFile)
        try:
            found = places(self._chunks.get(number, self._find_chunks))
        except (ValueError, OverflowError):  # `_read` will raise an error when it reads the row group
            return np.empty((0, 3), np.int64)
        file.edges = edges(found, file.size)
        return found

    def _find_chunks(self, number: int) -> tuple[RowGroups, int]:
        footer = (self._ends[number] or _end(self.files[number]))[:-8]
        return chunks(footer, self.columns), 3 * len(footer)

    def _parsed(self, number: int) -> tuple[Any, int]:
        file = self.files[number]
        metadata = _metadata(file, self._ends[number] or _end(file))
        return metadata, metadata.serialized_size


def _check_size(chunks: Sequence[ColumnChunk], rows: int, name: str, limit: int) -> None:
    """Raises SampleTooLarge if the footer shows that a row group is too large (see `check_block`)."""
    # Values are counted too, because a long run of equal values takes only a few bytes in the file. A value of text
    # or binary data has an offset of at least 4 bytes.
    nbytes = sum(max(chunk.nbytes, chunk.values * _WIDTHS.get(chunk.type, 4)) for chunk in chunks)
    check_block(name, rows, nbytes, limit)


class _Text:
    """Checks the decoded size of the dictionary-encoded strings in a row group.

    For example, a row group of 46 KB may contain the same 1 KB string 200,000 times. The footer does not show this,
    but the dictionaries do.
    """

    def __init__(self, chunks: Sequence[ColumnChunk], rows: int, part: int, limit: int) -> None:
        self._rows, self._part, self._limit = rows, part, limit
        self._allowed = limit * min(max(rows, 1), AT_ONCE)
        found = [chunk for chunk in chunks if chunk.type == "BYTE_ARRAY" and chunk.has_dictionary]
        self.paths, self._values = [chunk.path for chunk in found], sum(chunk.values for chunk in found)
        self.may_exceed = sum(chunk.values * chunk.nbytes for chunk in found) > self._allowed
        """False if the strings would fit within the limit even if each string were as large as its whole column."""

    def check(self, opened: Any, name: str) -> None:
        """Raises SampleTooLarge if the decoded strings are too large. `opened` needs `read_dictionary`."""
        check_block(name, self._rows, self._nbytes(opened), self._limit)

    def _nbytes(self, opened: Any) -> int:
        """Returns the total size of the decoded strings, or an upper bound that is within the limit."""
        first = next(opened.iter_batches(1, [self._part], self.paths, use_threads=False), None)
        longest = [_longest(column) for column in first.columns] if first is not None else []
        most: int = max(longest, default=0) * self._values
        if longest and all(longest) and most <= self._allowed:
            return most  # the usual case, in which the rows need not be read
        batches = opened.iter_batches(_COUNTED, [self._part], self.paths, use_threads=False)
        return sum(_text_bytes(column) for batch in batches for column in batch.columns)


def _dictionaries(column: Any) -> Iterator[Any]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        yield column
    elif pa.types.is_nested(column.type):
        inner = column.flatten()
        for each in inner if isinstance(inner, list) else [inner]:
            yield from _dictionaries(each)


def _longest(column: Any) -> int:
    """Returns the size in bytes of the longest entry in all dictionaries of a column.

    Returns 0 if the column has no dictionary, or if any dictionary has no entries or only empty ones.
    """
    import pyarrow.compute as pc

    found = [pc.max(pc.binary_length(each.dictionary)).as_py() or 0 for each in _dictionaries(column)]
    return max(found) if found and all(found) else 0


def _text_bytes(column: Any) -> int:
    import pyarrow.compute as pc

    lengths = ((pc.binary_length(each.dictionary), each.indices) for each in _dictionaries(column))
    return sum(pc.sum(pc.take(length, indices)).as_py() or 0 for length, indices in lengths)


def _batches(opened: Any, part: int, columns: Sequence[str]) -> list[Any]:
    """Reads a row group as one record batch, or as several if a column has more than 2 GB (Arrow's limit)."""
    import pyarrow as pa

    too_large = pa.ArrowNotImplementedError, pa.ArrowCapacityError, pa.ArrowInvalid
    try:
        batches: list[Any] = opened.read_row_group(part, columns, use_threads=False).combine_chunks().to_batches()
        return batches
    except too_large as error:
        # pyarrow does not split columns of lists and structs, so read them in smaller and smaller batches.
        about = opened.metadata.row_group(part)
        size, problem = about.num_rows, error
        if about.total_byte_size < _DIVIDED:
            raise
    while size > 1:
        size = -(-size // 4)
        try:
            return list(opened.iter_batches(size, [part], columns, use_threads=False))
        except too_large as error:
            problem = error
    raise problem


class _Ends:
    """The final bytes of remote files, which contain the footers. Sending them to the workers saves requests."""

    def __init__(self, ends: Sequence[NDArray[np.uint8]]) -> None:
        sizes = np.array([len(end) for end in ends], np.int64)
        sizes[sizes.cumsum() > _SENT] = 0
        self._all = np.concatenate([end[:size] for end, size in zip(ends, sizes, strict=True)])
        self._edges = np.concatenate([[0], sizes.cumsum()])

    def __getitem__(self, number: int) -> bytes:
        """Returns the final bytes of a file, or b"" if they are not stored. At most `_SENT` bytes are stored."""
        return self._all[self._edges[number] : self._edges[number + 1]].tobytes()


def _footer(file: AnyFile) -> Mapping[str, NDArray[Any]]:
    """Returns the result of `_described`, which is cached for a local file with a large footer.

    For a remote file, the result also contains the file's final bytes, as `end`.
    """
    if not isinstance(file, RemoteFile):
        (length,) = _LENGTH.unpack(_checked(file, file.read(max(0, file.size - 8), min(8, file.size)))[-8:-4])
        return cached(file, "parquet-2", _described) if length > _LARGE else _described(file)
    end = _end(file)
    return {**_described(file, end), "end": np.frombuffer(end, np.uint8)}


def _end(file: AnyFile) -> bytes:
    """Reads the footer and the eight bytes after it. This takes one request unless the footer is large."""
    some = min(file.size, _TAIL)
    end = _checked(file, file.peek(file.size - some, some))
    (length,) = _LENGTH.unpack(end[-8:-4])
    if length + 8 > file.size:
        raise FormatError(
            f"the footer of {file.path} cannot be read: it should have {length:,} bytes, but the file has "
            f"{file.size:,}. The file is damaged or cut off: copy it or write it again."
        )
    return end[-length - 8 :] if length + 8 <= some else file.peek(file.size - length - 8, length + 8)


def _checked(file: AnyFile, end: bytes) -> bytes:
    """Returns `end`, the final bytes of a file. Raises FormatError if the file is not a Parquet file."""
    if file.size < 12:
        _not_parquet(file, f"it has only {file.size:,} bytes")
    if end.endswith(b"PARE"):
        raise FormatError(f"{file.path} is an encrypted Parquet file, which cannot be read.")
    if not end.endswith(_MAGIC):
        _not_parquet(file, f"its {file.size:,} bytes end in {end[-4:]!r}, not in PAR1")
    if isinstance(file, File) and (begin := file.read(0, 4)) != _MAGIC:
        _not_parquet(file, f"it begins with {begin!r}, not with PAR1")
    return end


def _not_parquet(file: AnyFile, why: str) -> NoReturn:
    raise FormatError(
        f"{file.path} is not a Parquet file, or it is cut off: {why}. Copy it or write it again, or use the class "
        "that reads its format."
    )


def _described(file: AnyFile, end: bytes = b"") -> dict[str, NDArray[Any]]:
    """Returns the row count of each row group, the schema, and the footer's CRC-32, which reveals changed data."""
    end = end or _end(file)
    metadata = _metadata(file, end)
    try:
        rows = np.array([metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)], np.int64)
        schema = np.frombuffer(_schema(metadata).serialize(), np.uint8)
    except Exception as error:
        unreadable(f"the footer of {file.path}", error)
    if (rows < 0).any() or rows.sum() != metadata.num_rows:
        counts = f"{metadata.num_rows:,} rows, but {rows.sum():,} in its {len(rows):,} row groups"
        raise FormatError(f"{file.path}: the footer says that it has {counts}. The file is damaged: write it again.")
    return {"rows": rows, "schema": schema, "check": np.array([zlib.crc32(end)], np.uint32)}


def _schema(metadata: Any) -> Any:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    # Refused: metadata.schema, which makes a cycle with the footer. Footers would stay in memory until the garbage
    # collector runs (100 MB for 1,000 files with 100 row groups each).
    return ParquetFile(pa.BufferReader(b""), metadata=metadata).schema_arrow


def _metadata(file: AnyFile, end: bytes) -> Any:
    import pyarrow as pa
    from pyarrow.parquet import read_metadata

    try:
        return read_metadata(pa.BufferReader(end))
    except Exception as error:
        unreadable(f"the footer of {file.path}", error)
