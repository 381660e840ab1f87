"""Finds the record batches in Arrow IPC files, Arrow IPC streams and Feather V2 files.

    file:     "ARROW1\\0\\0" | stream | footer | length of the footer | "ARROW1"
    stream:   message with the schema | messages with dictionaries or record batches | end
    message:  ffffffff | length of the metadata (4 bytes) | metadata | body
              (a length of 0 marks the end; before Arrow 0.15, there was no ffffffff)

The metadata is a FlatBuffer with the table `Message`, whose fields are version, header type, header, and body length.
If the header type is RecordBatch, the first field of the header is the number of rows, and the fourth field exists
only if the buffers are compressed. pyarrow is not used here, because it would also decompress the batches.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._files.local import AnyFile
from penstock._remote.parallel import in_parallel
from penstock._remote.store import IN_FLIGHT
from penstock.formats._chunks import joined

_CONTINUED = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_MOST_METADATA = 256 << 20
_LOOK, _MOST_JOINED = 64 << 10, 4 << 20  # bytes that are read at once from a remote file

MessageRange = tuple[int, int]
"""The offset of a message's first byte, and the offset after its last byte."""


@dataclass(frozen=True, slots=True)
class Messages:
    """The positions of the messages in an Arrow file. The arrays have one item for each record batch."""

    schema: MessageRange
    dictionaries: tuple[MessageRange, ...]
    extents: NDArray[np.int64]
    rows: NDArray[np.int64]
    compressed: NDArray[np.bool_]
    is_file: bool
    held: bytes = b""
    """The bytes of the schema message if the file is remote, otherwise empty."""


Look = Callable[[int, int], Any]
"""Returns the bytes between two offsets of a file, as a buffer."""


def find_messages(file: AnyFile, look: Look) -> Messages:
    start = bytes(look(0, min(8, file.size)))
    is_file = start[:6] == b"ARROW1"
    if start[:4] == b"FEA1":
        file.refused(0, "this is Feather V1, which penstock does not read. Write it again as Feather V2 or Arrow IPC")
    if is_file and bytes(look(file.size - 6, file.size)) != b"ARROW1":
        file.damaged(file.size, "an Arrow file ends with ARROW1, and this one does not: it was cut off")
    schema: MessageRange | None = None
    dictionaries: list[MessageRange] = []
    extents: list[MessageRange] = []
    rows: list[int] = []
    compressed: list[bool] = []
    at = 8 if is_file else 0
    while (found := _message(file, look, at)) is not None:
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
    return Messages(schema, tuple(dictionaries), where, np.array(rows, np.int64), np.array(compressed, bool), is_file)


def _message(file: AnyFile, look: Look, at: int) -> tuple[int, int, bool, int] | None:
    """Returns (type, number of rows, is compressed, end) of the message at `at`, or None at the stream's end."""
    if at == file.size:
        return None  # a stream may omit its end marker
    try:
        head = look(at, min(at + 8, file.size))
        length, size = _head(head)
        if length == 0:
            return None
        begin = at + size
        if not 8 < length < _MOST_METADATA or begin + length > file.size:
            raise struct.error
        message = look(begin, begin + length)
        table = _FlatBufferTable(message, *struct.unpack_from("<I", message))
        kind, body = table.number(1, "<B"), table.number(3, "<q")
        header = _FlatBufferTable(message, table.below(2))
        rows, packed = (header.number(0, "<q"), header.has(3)) if kind == _BATCH else (0, False)
        if body < 0 or rows < 0:
            raise struct.error
    except struct.error:
        file.damaged(at, "a message of Arrow was expected here, and cannot be read")
    end = begin + length + body
    if end > file.size:
        file.damaged(at, f"a message of {end - at:,} bytes begins here, but the file ends at byte {file.size:,}")
    return kind, rows, packed, end


def _head(content: Any) -> tuple[int, int]:
    """Returns the length of a message's metadata, and the offset at which the metadata begins."""
    (length,) = struct.unpack_from("<I", content)
    return (struct.unpack_from("<I", content, 4)[0], 8) if length == _CONTINUED else (length, 4)


def unpacked_bytes(content: Any) -> int:
    """Returns the decompressed size of a message in bytes, or 0 if it is uncompressed or unreadable."""
    try:
        length, begin = _head(content)
        message, body = content[begin : begin + length], begin + length
        table = _FlatBufferTable(message, *struct.unpack_from("<I", message))
        header = _FlatBufferTable(message, table.below(2))
        if table.number(1, "<B") == _DICTIONARY:
            header = _FlatBufferTable(message, header.below(1))
        if not header.has(3):
            return 0
        at, total = header.below(2), 0
        for number in range(*struct.unpack_from("<I", message, at)):
            start, packed = struct.unpack_from("<qq", message, at + 4 + 16 * number)
            if packed >= 8 and start >= 0:
                (size,) = struct.unpack_from("<q", content, body + start)  # -1 if the buffer is not compressed
                total += packed if size < 0 else size
        return total
    except struct.error:
        return 0  # pyarrow will raise an error for it


def count_batches(file: AnyFile, look: Look) -> int:
    return len(_named(file, look)[1])


def _named(file: AnyFile, look: Look) -> tuple[list[MessageRange], list[MessageRange]]:
    """Returns (dictionaries, record batches): the byte ranges of their metadata, as listed in the footer."""
    (length,) = struct.unpack("<i", look(file.size - 10, file.size - 6))
    if not 8 < length <= file.size - 10:
        raise struct.error
    footer = look(file.size - 10 - length, file.size - 10)
    table = _FlatBufferTable(footer, *struct.unpack_from("<I", footer))
    return _blocks(footer, table, 2), _blocks(footer, table, 3)


def _blocks(footer: Any, table: _FlatBufferTable, field: int) -> list[MessageRange]:
    """Reads a list of messages from a footer. Returns the start of each message and the end of its metadata."""
    if not table.has(field):
        return []
    at = table.below(field)
    (count,) = struct.unpack_from("<I", footer, at)
    blocks = [struct.unpack_from("<qi", footer, at + 4 + 24 * number) for number in range(count)]
    return [(start, start + length) for start, length in blocks]


def look_ahead(file: AnyFile) -> Look:
    """Fetches the metadata that the footer (if any) lists. Returns a function that reads byte ranges of the file."""
    looks = _Looks(file)
    try:
        if looks(0, min(6, file.size)) == b"ARROW1":
            dictionaries, batches = _named(file, looks)
            looks.ask([*dictionaries, *batches])
    except struct.error:
        pass  # `find_messages` will find the damage
    return looks


class _Looks:
    """Reads small parts of a file and keeps them, together with adjacent bytes that are likely to be needed."""

    def __init__(self, file: AnyFile) -> None:
        self._file = file
        self._starts: list[int] = []
        self._parts: list[bytes] = []

    def __call__(self, start: int, stop: int) -> bytes:
        number = bisect_right(self._starts, start) - 1
        if number < 0 or self._starts[number] + len(self._parts[number]) < stop:
            first = max(0, min(start, self._file.size - _LOOK))  # near the end of the file, start earlier
            number = self._add(first, self._file.peek(first, min(max(stop - first, _LOOK), self._file.size - first)))
        at = start - self._starts[number]
        return self._parts[number][at : at + stop - start]

    def ask(self, extents: list[MessageRange]) -> None:
        """Reads these byte ranges in parallel. Ranges with a small gap between them are read together."""
        inside = [(start, stop) for start, stop in extents if 0 <= start < stop <= self._file.size]
        wanted = joined(inside, _LOOK, _MOST_JOINED)
        parts = in_parallel(lambda each, _: self._file.peek(each[0], each[1] - each[0]), wanted, IN_FLIGHT)
        for (start, _), part in zip(wanted, parts, strict=True):
            self._add(start, part)

    def _add(self, start: int, part: bytes) -> int:
        number = bisect_right(self._starts, start)
        self._starts.insert(number, start)
        self._parts.insert(number, part)
        return number


class _FlatBufferTable:
    """A table in a FlatBuffer. Methods raise struct.error if an offset is outside the buffer."""

    def __init__(self, content: Any, at: int) -> None:
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
        """Returns the offset of the table or list in a field. Raises struct.error if the field is missing."""
        offset = self._offset(field)
        if not offset:
            raise struct.error
        return self._at + offset + self._unpack("<I", self._at + offset)[0]
