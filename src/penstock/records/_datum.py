"""Caffe's Datum: an array or an encoded image, and its label, as a protobuf message.

A message is a sequence of fields. Each begins with a tag: the number of the field and its wire type, which is an
integer with 7 bits in a byte, 8 bytes, 4 bytes, or a length and as many bytes. Datum has seven fields, so no library
is needed; fields that others have added (NVCaffe's record_id) are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)
_NUMBERS = (_CHANNELS, _HEIGHT, _WIDTH, _LABEL, _ENCODED)
_NO_FLOATS = np.empty(0, np.float32)


class Datum(NamedTuple):
    """The fields of a Datum, before an image is decoded."""

    shape: tuple[int, int, int]  # channels, height, width
    data: memoryview
    floats: NDArray[np.float32]
    label: int
    encoded: bool

    def array(self) -> NDArray[np.uint8] | NDArray[np.float32]:
        """The array, channels first. Only for a Datum that is not encoded."""
        values = np.frombuffer(self.data, np.uint8) if len(self.data) else self.floats
        return values.reshape(self.shape)


class DatumError(ValueError):
    """The bytes are not a valid Datum."""


def parse(message: memoryview) -> Datum:
    """The Datum of a message; raises DatumError if it is invalid or contradicts itself."""
    numbers: dict[int, int] = {}
    data: memoryview | None = None
    floats: list[NDArray[np.float32]] = []
    at, end = 0, len(message)
    while at < end:
        tag, at = integer(message, at)
        field, wire_type = tag >> 3, tag & 7
        if field in _NUMBERS and wire_type == VARINT and field not in numbers:
            numbers[field], at = integer(message, at)
        elif field == _DATA and wire_type == BYTES and data is None:
            data, at = block(message, at)
        elif field == _FLOATS and wire_type == BYTES:
            packed, at = block(message, at)
            floats.append(floats_of(packed))
        elif field == _FLOATS and wire_type == FOUR:
            values, at = _tagged_floats(message, at)
            floats.append(values)
        elif field > _ENCODED:
            _, at = value(message, at, wire_type)
        else:
            raise DatumError(f"field {field} of wire type {wire_type} is not part of a Datum, or comes twice")
    return _datum(numbers, data or memoryview(b""), np.concatenate(floats) if floats else _NO_FLOATS)


def _datum(numbers: dict[int, int], data: memoryview, floats: NDArray[np.float32]) -> Datum:
    shape = numbers.get(_CHANNELS, 0), numbers.get(_HEIGHT, 0), numbers.get(_WIDTH, 0)
    encoded = bool(numbers.get(_ENCODED))
    if len(floats) and (encoded or len(data)):
        raise DatumError(f"it has both {len(data):,} bytes of data and {len(floats):,} floats")
    if not len(data) and not len(floats):
        raise DatumError("it is empty")
    if not encoded and (max(shape) >= 1 << 31 or shape[0] * shape[1] * shape[2] != len(data) + len(floats)):
        raise DatumError(f"{len(data) + len(floats):,} values do not form an array of shape {shape}")
    label = numbers.get(_LABEL, 0)
    return Datum(shape, data, floats, label - (label >> 63 << 64), encoded)


def integer(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at + shift // 7 >= len(message):
            break
        byte = message[at + shift // 7]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at + shift // 7 + 1
    raise DatumError(f"an integer at byte {at:,} does not end")


def block(message: memoryview, at: int) -> tuple[memoryview, int]:
    size, at = integer(message, at)
    if size > len(message) - at:
        raise DatumError(f"{size:,} bytes at byte {at:,} reach beyond the end, at byte {len(message):,}")
    return message[at : at + size], at + size


def value(message: memoryview, at: int, wire_type: int) -> tuple[int | memoryview, int]:
    """A value of any type, and the position after it."""
    if wire_type == VARINT:
        return integer(message, at)
    if wire_type == BYTES:
        return block(message, at)
    if wire_type not in (EIGHT, FOUR):
        raise DatumError(f"a field at byte {at:,} has the unknown wire type {wire_type}")
    end = at + (8 if wire_type == EIGHT else 4)
    if end > len(message):
        raise DatumError(f"a field reaches beyond the end, at byte {len(message):,}")
    return message[at:end], end


def floats_of(packed: memoryview) -> NDArray[np.float32]:
    if len(packed) % 4:
        raise DatumError(f"{len(packed):,} bytes are not a whole number of float32")
    return np.frombuffer(packed, "<f4").astype(np.float32, copy=False)


def _tagged_floats(message: memoryview, at: int) -> tuple[NDArray[np.float32], int]:
    """The floats from here on that each have a tag of their own; the first tag is already read."""
    rows = np.frombuffer(message[at - 1 :], np.uint8)
    rows = rows[: len(rows) // 5 * 5].reshape(-1, 5)
    others = np.flatnonzero(rows[:, 0] != _FLOATS << 3 | FOUR)
    count = int(others[0]) if len(others) else len(rows)
    if count == 0:
        raise DatumError(f"a float at byte {at:,} reaches beyond the end")
    return floats_of(memoryview(rows[:count, 1:].tobytes())), at - 1 + 5 * count


def dump(content: NDArray[np.uint8] | NDArray[np.float32] | bytes, label: int) -> bytes:
    """The message for an array, channels first, or for an encoded image, as Caffe writes it."""
    if isinstance(content, bytes):
        return b"".join((_dump_block(_DATA, content), _number(_LABEL, label), _number(_ENCODED, 1)))
    shape = [_number(field, size) for field, size in zip((_CHANNELS, _HEIGHT, _WIDTH), content.shape, strict=True)]
    if content.dtype == np.uint8:
        return b"".join((*shape, _dump_block(_DATA, content.tobytes()), _number(_LABEL, label)))
    floats = np.empty((content.size, 5), np.uint8)
    floats[:, 0] = _FLOATS << 3 | FOUR
    floats[:, 1:] = np.frombuffer(content.astype("<f4").tobytes(), np.uint8).reshape(-1, 4)
    return b"".join((*shape, _number(_LABEL, label), floats.tobytes()))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | VARINT) + _varint(value & (1 << 64) - 1)


def _dump_block(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)
