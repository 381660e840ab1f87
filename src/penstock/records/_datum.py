"""Caffe's Datum: an array or an encoded image, with its label, as a protobuf message.

Fields that other programs have added (such as NVCaffe's record_id) are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.formats._protobuf import BYTES, FOUR, VARINT, MessageError, floats_of, integer, length_delimited, value

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)
_NUMBERS = (_CHANNELS, _HEIGHT, _WIDTH, _LABEL, _ENCODED)
_NO_FLOATS = np.empty(0, np.float32)


class Datum(NamedTuple):
    """The fields of a Datum message. If the message has an encoded image, `data` has the encoded bytes."""

    shape: tuple[int, int, int]  # channels, height, width
    data: memoryview
    floats: NDArray[np.float32]
    label: int
    encoded: bool

    def array(self) -> NDArray[np.uint8] | NDArray[np.float32]:
        """Returns the array, channels first. The Datum must not have an encoded image."""
        values = np.frombuffer(self.data, np.uint8) if len(self.data) else self.floats
        return values.reshape(self.shape)


def parse(message: memoryview) -> Datum:
    """Parses a Datum. Raises MessageError if the message is invalid or contradicts itself."""
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
            data, at = length_delimited(message, at)
        elif field == _FLOATS and wire_type == BYTES:
            packed, at = length_delimited(message, at)
            floats.append(floats_of(packed))
        elif field == _FLOATS and wire_type == FOUR:
            values, at = _tagged_floats(message, at)
            floats.append(values)
        elif field > _ENCODED:
            _, at = value(message, at, wire_type)
        else:
            raise MessageError(f"field {field} of wire type {wire_type} is not part of a Datum, or comes twice")
    return _datum(numbers, data or memoryview(b""), np.concatenate(floats) if floats else _NO_FLOATS)


def _datum(numbers: dict[int, int], data: memoryview, floats: NDArray[np.float32]) -> Datum:
    shape = numbers.get(_CHANNELS, 0), numbers.get(_HEIGHT, 0), numbers.get(_WIDTH, 0)
    encoded = bool(numbers.get(_ENCODED))
    if len(floats) and (encoded or len(data)):
        raise MessageError(f"it has both {len(data):,} bytes of data and {len(floats):,} floats")
    if not len(data) and not len(floats):
        raise MessageError("it is empty")
    if not encoded and (max(shape) >= 1 << 31 or shape[0] * shape[1] * shape[2] != len(data) + len(floats)):
        raise MessageError(f"{len(data) + len(floats):,} values do not form an array of shape {shape}")
    label = numbers.get(_LABEL, 0)
    return Datum(shape, data, floats, label - (label >> 63 << 64), encoded)


def _tagged_floats(message: memoryview, at: int) -> tuple[NDArray[np.float32], int]:
    """Parses consecutive floats, each with its own tag. The first tag has already been read."""
    rows = np.frombuffer(message[at - 1 :], np.uint8)
    rows = rows[: len(rows) // 5 * 5].reshape(-1, 5)
    others = np.flatnonzero(rows[:, 0] != _FLOATS << 3 | FOUR)
    count = int(others[0]) if len(others) else len(rows)
    if count == 0:
        raise MessageError(f"a float at byte {at:,} reaches beyond the end")
    return floats_of(memoryview(rows[:count, 1:].tobytes())), at - 1 + 5 * count


def dump(content: NDArray[np.uint8] | NDArray[np.float32] | bytes, label: int) -> bytes:
    """Serialises a channels-first array, or an encoded image, as a Datum message in Caffe's format."""
    if isinstance(content, bytes):
        return b"".join((_dump_length_delimited(_DATA, content), _number(_LABEL, label), _number(_ENCODED, 1)))
    shape = [_number(field, size) for field, size in zip((_CHANNELS, _HEIGHT, _WIDTH), content.shape, strict=True)]
    if content.dtype == np.uint8:
        return b"".join((*shape, _dump_length_delimited(_DATA, content.tobytes()), _number(_LABEL, label)))
    floats = np.empty((content.size, 5), np.uint8)
    floats[:, 0] = _FLOATS << 3 | FOUR
    floats[:, 1:] = np.frombuffer(content.astype("<f4").tobytes(), np.uint8).reshape(-1, 4)
    return b"".join((*shape, _number(_LABEL, label), floats.tobytes()))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | VARINT) + _varint(value & (1 << 64) - 1)


def _dump_length_delimited(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)
