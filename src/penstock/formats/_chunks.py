"""Finds the columns in a Parquet file, and divides a remote file into pieces at the edges of the columns.

The footer is not parsed by pyarrow, because pyarrow's `RowGroupMetaData.column` crashes on a damaged footer. The
footer uses Thrift's compact protocol:

    struct:  for each field, a byte (step from the previous field's number << 4 | type) and the value; then a zero
    list:    a byte (length << 4 | type; 15 if the length follows), then the values
    number:  seven bits in each byte, lowest bits first; 0, 1, 2, 3, ... encode the signed numbers 0, -1, 1, -2, ...
    bytes:   the length as a number, then the bytes
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._files.local import AnyFile
from penstock._files.remote import PIECE, RemoteFile

_GAP = 1 << 20  # bytes: reading a smaller gap takes 10 ms at 100 MB/s, and saves a request

ByteRange = tuple[int, int]
"""The offset of the first byte, and the offset after the last byte."""


class ColumnChunk(NamedTuple):
    """The footer's description of a column in a row group. A nested column has one chunk for each leaf."""

    path: str
    type: str
    values: int
    nbytes: int  # uncompressed
    has_dictionary: bool
    extent: ByteRange


def chunks(footer: bytes, columns: Iterable[str]) -> RowGroups:
    """Returns the columns' chunks by row group, parsed on demand. Raises ValueError if the footer is damaged."""
    try:
        about = _struct(footer, 0, _OF_FILE, last=_ROW_GROUPS)[0]
        leaves = _leaves(about[_SCHEMA])
        _, length, at = _head(footer, about[_ROW_GROUPS])
    except _DAMAGE as error:
        raise ValueError(f"the footer is damaged: {error!r}") from error
    names = set(columns)
    wanted = {number: (path, kind) for number, (name, path, kind) in enumerate(leaves) if name in names}
    return RowGroups(footer, at, length, wanted)


class RowGroups(Sequence[list[ColumnChunk]]):
    """The chunks of the wanted columns, by row group.

    A row group is parsed when it is first requested. Other columns are skipped, in 3 µs each. As in pyarrow, a chunk
    is identified by its position in the row group. `wanted` maps the position of each wanted column to the column's
    path and type.
    """

    def __init__(self, footer: bytes, at: int, length: int, wanted: Mapping[int, tuple[str, str]]) -> None:
        self._footer, self._length, self._wanted = footer, length, wanted
        # Threads may share this object: two of them may find the same entry, and both write the same.
        self._starts = {0: at}  # the offsets of the row groups that were reached so far
        self._found: dict[int, list[ColumnChunk]] = {}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: Any) -> Any:
        if not 0 <= part < self._length:
            raise IndexError(part)
        if part not in self._found:
            try:
                self._found[part] = self._read(part)
            except _DAMAGE as error:
                raise ValueError(f"the footer is damaged: {error!r}") from error
        return self._found[part]

    def _read(self, part: int) -> list[ColumnChunk]:
        for number in range(min(part, len(self._starts) - 1), part):
            self._starts[number + 1] = _after_struct(self._footer, self._starts[number])
        wanted: dict[int, Wanted] = {_COLUMNS: (_LIST, self._columns)}
        group, self._starts[part + 1] = _struct(self._footer, self._starts[part], wanted)
        return [_chunk(about[_ABOUT], *leaf) for about, leaf in group[_COLUMNS]]

    def _columns(self, footer: bytes, at: int) -> tuple[list[Any], int]:
        _, length, at = _head(footer, at)
        found = []
        for number in range(length):
            if (leaf := self._wanted.get(number)) is None:
                at = _after_struct(footer, at)
            else:
                about, at = _struct(footer, at, _OF_CHUNK)
                found.append((about, leaf))
        return found, at


def _leaves(schema: list[dict[int, Any]]) -> list[tuple[str, str, str]]:
    """Returns (column, path, type) for each leaf. `schema` lists all nodes depth-first, beginning with the root."""
    found = []
    path: list[str] = []
    left: list[int] = []  # for the root and each element in `path`, how many children are still to come
    for element in schema:
        path.append(element[_NAME].decode())
        left.append(element.get(_CHILDREN, 0))
        if len(path) > 1 and left[-1] <= 0:
            found.append((path[1], ".".join(path[1:]), _TYPES[element[_LEAF_TYPE]]))
        while left and left[-1] <= 0:
            path.pop()
            left.pop()
            if left:
                left[-1] -= 1
    return found


def _chunk(about: dict[int, Any], path: str, kind: str) -> ColumnChunk:
    pages, dictionary = about[_PAGES], about.get(_DICTIONARY)
    start = min(pages, dictionary or pages)
    extent = start, start + about[_SIZE]
    return ColumnChunk(path, kind, about[_VALUES], about[_UNCOMPRESSED], dictionary is not None, extent)


def places(chunks: Sequence[Sequence[ColumnChunk]]) -> NDArray[np.int64]:
    """Returns the byte ranges of the chunks as rows of (row group, start, end). Nearby ranges are joined."""
    found: list[tuple[int, int, int]] = []
    for number, group in enumerate(chunks):
        found += [(number, *extent) for extent in joined((chunk.extent for chunk in group), _GAP)]
    return np.array(found, np.int64).reshape(-1, 3)  # OverflowError: an offset is too large for any file


def joined(extents: Iterable[ByteRange], gap: int, most: int = sys.maxsize) -> list[ByteRange]:
    """Joins byte ranges that are less than `gap` bytes apart, unless the result would have `most` bytes or more."""
    found: list[ByteRange] = []
    for start, stop in sorted(extents):
        if found and start - found[-1][1] < gap and stop - found[-1][0] < most:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


def edges(places: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Returns offsets, including the edges of `places`, that divide a file into pieces of at most `PIECE` bytes."""
    cuts = {0, size, *places[:, 1:].reshape(-1).tolist()}
    inside = sorted(cut for cut in cuts if 0 <= cut <= size)
    parts = [np.arange(first, last, PIECE) for first, last in pairwise(inside)]
    return np.concatenate([*parts, [size]]).astype(np.int64)


class Fetched(AnyFile):
    """A remote file. The given byte ranges are fetched together in advance. Other bytes are fetched when needed."""

    def __init__(self, file: RemoteFile, extents: Sequence[ByteRange]) -> None:
        self._file, self.path, self.size = file, file.path, file.size
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


ReadValue = Callable[[bytes, int], tuple[Any, int]]
"""Returns the value at an offset, and the offset after the value."""

Wanted = tuple[int, ReadValue]
"""The type of a Thrift field, and the function that reads its value."""


def _number(footer: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while (byte := footer[at]) > 127:
        found |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
    return found | byte << shift, at + 1


def _signed(footer: bytes, at: int) -> tuple[int, int]:
    found, at = _number(footer, at)
    return found >> 1 ^ -(found & 1), at


def _bytes(footer: bytes, at: int) -> tuple[bytes, int]:
    length, at = _number(footer, at)
    return footer[at : at + length], at + length


def _list(footer: bytes, at: int, read: ReadValue) -> tuple[list[Any], int]:
    _, length, at = _head(footer, at)
    found = []
    for _ in range(length):
        value, at = read(footer, at)
        found.append(value)
    return found, at


def _struct(footer: bytes, at: int, wanted: Mapping[int, Wanted], last: int = -1) -> tuple[dict[int, Any], int]:
    """Parses a struct. Returns the wanted fields by field number, and the offset after the struct.

    If the struct has the field `last`, parsing stops there. Both the entry of this field and the second result are
    then the offset of its value.
    """
    found: dict[int, Any] = {}
    number = 0
    while head := footer[at]:
        at += 1
        if head > 15:
            number += head >> 4
        else:
            number, at = _signed(footer, at)
        kind = head & 15
        if number == last:
            return {**found, last: at}, at
        if number in wanted and wanted[number][0] == kind:  # pyarrow also skips a field of another type
            found[number], at = wanted[number][1](footer, at)
        elif 4 <= kind <= 6:  # integers, the most frequent fields, are skipped without a function call
            while footer[at] > 127:
                at += 1
            at += 1
        elif kind > 2:  # true and false are types, and have no bytes
            at = _skipped(footer, at, kind)
    return found, at + 1


def _after_struct(footer: bytes, at: int) -> int:
    simple = _simple_fields().match
    while True:
        at = simple(footer, at).end()  # type: ignore[union-attr]  # it always matches
        if not (head := footer[at]):
            return at + 1
        at += 1
        if head <= 15:
            at = _number(footer, at)[1]
        if (kind := head & 15) > 2:
            at = _skipped(footer, at, kind)


@cache
def _simple_fields() -> re.Pattern[bytes]:
    """Returns a pattern that skips consecutive fields of a struct.

    Matching is three times as fast as a loop over the fields. A match ends before a long string or list, and before
    a value of an unusual type. Compiling the pattern takes 2 ms. Every repetition is possessive, so the pattern never
    backtracks.
    """

    def fields(*kinds: int) -> bytes:
        return b"[%s]" % b"".join(b"\\x%02x" % (step << 4 | kind) for kind in kinds for step in range(1, 16))

    number = rb"[\x80-\xff]*+[\x00-\x7f]"
    string = b"(?>%s)" % b"|".join(b"\\x%02x.{%d}" % (length, length) for length in range(24))
    numbers = b"%s|%s%s" % (fields(1, 2), fields(4, 5, 6), number)
    values = b"%s|%s%s" % (numbers, fields(8), string)
    listed = b"|".join(b"[\\x%02x\\x%02x](?:%s){%d}" % (n << 4 | 5, n << 4 | 6, number, n) for n in range(7))
    structs = b"|".join(b"\\x%02x(?:(?:%s)*+\\x00){%d}" % (n << 4 | 12, numbers, n) for n in range(5))
    lists = fields(9)
    struct = rb"%s(?:%s|%s(?>%s))*+\x00" % (fields(12), values, lists, listed)
    parts = values, struct, lists, string, listed, structs
    return re.compile(rb"(?:%s|%s|%s(?>\x18%s|%s|%s))*+" % parts, re.DOTALL)


def _skipped(footer: bytes, at: int, kind: int) -> int:
    if kind == 8:
        length, at = _number(footer, at)
        return at + length
    if kind == 12:
        return _after_struct(footer, at)
    if kind in (9, 10):
        inner, length, at = _head(footer, at)
        for _ in range(length):
            at = _skipped(footer, at, inner)
        return at
    if kind in (4, 5, 6):
        return _number(footer, at)[1]
    return at + _FIXED[kind]


def _head(footer: bytes, at: int) -> tuple[int, int, int]:
    """Returns (type of a list's values, number of values, offset of the first value)."""
    head = footer[at]
    length, at = (head >> 4, at + 1) if head >> 4 < 15 else _number(footer, at + 1)
    if length > len(footer):
        raise ValueError(f"a list of {length:,} values at byte {at:,}")
    return head & 15, length, at


_FIXED = {1: 1, 2: 1, 3: 1, 7: 8}
"""The sizes in bytes of the fixed-size types: true and false (in a list), byte, double."""

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12

# The parts of parquet.thrift that are read: FileMetaData, SchemaElement, RowGroup, ColumnChunk, ColumnMetaData.
_SCHEMA, _ROW_GROUPS, _COLUMNS, _ABOUT = 2, 4, 1, 3
_LEAF_TYPE, _NAME, _CHILDREN = 1, 4, 5
_VALUES, _UNCOMPRESSED, _SIZE, _PAGES, _DICTIONARY = 5, 6, 7, 9, 11
_NUMBERS = _VALUES, _UNCOMPRESSED, _SIZE, _PAGES, _DICTIONARY
_TYPES = "BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"
_OF_ABOUT: dict[int, Wanted] = dict.fromkeys(_NUMBERS, (_I64, _signed))
_OF_CHUNK: dict[int, Wanted] = {_ABOUT: (_STRUCT, partial(_struct, wanted=_OF_ABOUT))}
_OF_ELEMENT: dict[int, Wanted] = {_LEAF_TYPE: (_I32, _signed), _NAME: (_BINARY, _bytes), _CHILDREN: (_I32, _signed)}
_OF_FILE: dict[int, Wanted] = {_SCHEMA: (_LIST, partial(_list, read=partial(_struct, wanted=_OF_ELEMENT)))}
_DAMAGE = IndexError, KeyError, OverflowError, RecursionError, UnicodeDecodeError
