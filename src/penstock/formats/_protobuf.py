"""Reads protobuf messages without a protobuf library.

A message is a sequence of fields. A field is a tag (field number << 3 | wire type) and a value. The wire type
determines the form of the value:

    VARINT   an integer of variable length, with 7 bits of the number in each byte
    EIGHT    8 bytes
    BYTES    a length (an integer like VARINT), followed by that many bytes
    FOUR     4 bytes
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5


class MessageError(ValueError):
    """Raised if bytes are not a valid protobuf message."""


def fields(message: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yields (field number, wire type, value) for each field. A `VARINT` is an int; other values are bytes."""
    at = 0
    while at < len(message):
        tag, at = integer(message, at)
        found, at = value(message, at, tag & 7)
        yield tag >> 3, tag & 7, found


def numbers(message: memoryview, wire_type: int) -> Iterator[Any]:
    """Yields the numbers in field 1, packed or not. The message must not have other fields.

    For the wire type `FOUR`, yields runs of numbers as bytes.
    """
    for field, found_type, found in fields(message):
        if field != 1 or found_type not in (wire_type, BYTES):
            raise MessageError(f"a list of numbers has a field {field} of wire type {found_type}")
        if found_type == VARINT or wire_type == FOUR:
            yield found
            continue
        at = 0
        while at < len(found):
            number, at = integer(found, at)
            yield number


def integer(message: memoryview, at: int) -> tuple[int, int]:
    """Returns the variable-length integer at the offset `at`, and the offset after the integer."""
    value = 0
    for shift in range(0, 70, 7):
        if at + shift // 7 >= len(message):
            break
        byte = message[at + shift // 7]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at + shift // 7 + 1
    raise MessageError(f"an integer at byte {at:,} does not end")


def length_delimited(message: memoryview, at: int) -> tuple[memoryview, int]:
    """Reads a length at the offset `at`, and then that many bytes. Returns the bytes, and the offset after them."""
    size, at = integer(message, at)
    if size > len(message) - at:
        raise MessageError(f"{size:,} bytes at byte {at:,} reach beyond the end, at byte {len(message):,}")
    return message[at : at + size], at + size


def value(message: memoryview, at: int, wire_type: int) -> tuple[int | memoryview, int]:
    if wire_type == VARINT:
        return integer(message, at)
    if wire_type == BYTES:
        return length_delimited(message, at)
    if wire_type not in (EIGHT, FOUR):
        raise MessageError(f"a field at byte {at:,} has the unknown wire type {wire_type}")
    end = at + (8 if wire_type == EIGHT else 4)
    if end > len(message):
        raise MessageError(f"a field reaches beyond the end, at byte {len(message):,}")
    return message[at:end], end


def floats_of(packed: memoryview) -> NDArray[np.float32]:
    if len(packed) % 4:
        raise MessageError(f"{len(packed):,} bytes are not a whole number of float32")
    return np.frombuffer(packed, "<f4").astype(np.float32, copy=False)
