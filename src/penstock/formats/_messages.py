"""Where the record batches are in a file of Arrow's IPC format: file, stream and Feather V2.

    file:     "ARROW1\\0\\0" | stream | footer | length of the footer | "ARROW1"
    stream:   message with the schema | messages with dictionaries or record batches | end
    message:  ffffffff | length of the metadata (4 bytes) | metadata | body
              (before Arrow 0.15 without ffffffff; a length of 0 is the end)

The metadata is a FlatBuffer of the table `Message`: version, type of the header, header, length of the body. The
first field of a header of the type RecordBatch is the number of rows; it has a fourth if its buffers are compressed.
pyarrow has no function for this that does not also decompress the batches.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock.formats._files import File

_CONTINUED = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_MOST_METADATA = 256 << 20

Extent = tuple[int, int]
"""The first byte of a message, and its end."""


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of a file: of each record batch where it is, its rows, and whether it is compressed."""

    schema: Extent
    dictionaries: tuple[Extent, ...]
    extents: NDArray[np.int64]
    rows: NDArray[np.int64]
    compressed: NDArray[np.bool_]
    is_file: bool


def find_messages(file: File, content: memoryview) -> Messages:
    """Follows the messages from the first to the last, and reads the metadata of each."""
    start = bytes(content[:8])
    is_file = start[:6] == b"ARROW1"
    if start[:4] == b"FEA1":
        file.damaged(0, "this is Feather V1, which is not read. Write it again as Feather V2 or Arrow IPC")
    if is_file and bytes(content[-6:]) != b"ARROW1":
        file.damaged(file.size, "an Arrow file ends with ARROW1, and this one does not: it was cut off")
    schema: Extent | None = None
    dictionaries: list[Extent] = []
    extents: list[Extent] = []
    rows: list[int] = []
    compressed: list[bool] = []
    at = 8 if is_file else 0
    while (found := _message(file, content, at)) is not None:
        kind, count, packed, end = found
        if (kind == _SCHEMA) != (schema is None):
            file.damaged(at, "an Arrow file or stream begins with its schema, and has only one")
        if kind == _SCHEMA:
            schema = at, end
        elif kind == _DICTIONARY:
            dictionaries.append((at, end))
        elif kind == _BATCH:
            extents.append((at, end))
            rows.append(count)
            compressed.append(packed)
        else:
            file.damaged(at, f"a message of type {kind} is neither a record batch nor a dictionary")
        at = end
    if schema is None:
        file.damaged(0, "there is no schema of Arrow")
    where = np.array(extents, np.int64).reshape(-1, 2)
    return Messages(
        schema, tuple(dictionaries), where, np.array(rows, np.int64), np.array(compressed, bool), is_file
    )


def _message(file: File, content: memoryview, at: int) -> tuple[int, int, bool, int] | None:
    """Type, rows, whether it is compressed, and end of the message at a position; None at the end of the stream."""
    if at == len(content):
        return None  # the end is optional in a stream
    try:
        (length,) = struct.unpack_from("<I", content, at)
        begin = at + 4
        if length == _CONTINUED:
            (length,) = struct.unpack_from("<I", content, begin)
            begin += 4
        if length == 0:
            return None
        if not 8 < length < _MOST_METADATA or begin + length > len(content):
            raise struct.error
        message = content[begin : begin + length]
        table = _Table(message, *struct.unpack_from("<I", message))
        kind, body = table.number(1, "<B"), table.number(3, "<q")
        header = _Table(message, table.below(2))
        rows, packed = (header.number(0, "<q"), header.has(3)) if kind == _BATCH else (0, False)
    except struct.error:
        _unreadable(file, at)
    end = begin + length + body
    if body < 0 or rows < 0:
        _unreadable(file, at)
    if end > len(content):
        file.damaged(at, f"a message of {end - at:,} bytes begins here, but the file ends at byte {len(content):,}")
    return kind, rows, packed, end


def _unreadable(file: File, at: int) -> NoReturn:
    file.damaged(at, "a message of Arrow was expected here, and cannot be read")


class _Table:
    """A table of a FlatBuffer: fields are found by their number. Raises struct.error outside of the buffer."""

    def __init__(self, content: memoryview, at: int) -> None:
        self._content, self._at = content, at
        (back,) = self._unpack("<i", at)
        self._fields = at - back
        (self._size,) = self._unpack("<H", self._fields)

    def _unpack(self, form: str, at: int) -> tuple[int, ...]:
        if at < 0:
            raise struct.error
        return struct.unpack_from(form, self._content, at)

    def _offset(self, field: int) -> int:
        place = 4 + 2 * field
        return self._unpack("<H", self._fields + place)[0] if place + 2 <= self._size else 0

    def has(self, field: int) -> bool:
        return self._offset(field) != 0

    def number(self, field: int, form: str) -> int:
        offset = self._offset(field)
        return self._unpack(form, self._at + offset)[0] if offset else 0

    def below(self, field: int) -> int:
        """The position of the table that a field refers to."""
        offset = self._offset(field)
        if not offset:
            raise struct.error
        return self._at + offset + self._unpack("<I", self._at + offset)[0]
