"""Computes CRC-32C (Castagnoli) with numpy, at about 300 MB/s, because `zlib` has no CRC-32C.

A CRC is linear: it is the XOR of the contributions of the individual bytes. A byte's contribution depends only on the
byte's value and on the number of bytes that follow. A lookup table holds the contributions of all byte values at all
positions of a block. Blocks are joined by shifting the CRC of the preceding blocks.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_ROW_BYTES = 512  # the size of a block, whose table of 512 KB stays in the processor's cache
_AT_ONCE = 64  # blocks that are processed at once
_SHORT = 64  # up to this many bytes, a plain loop is faster


def _byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


_TABLE = [_byte(value) for value in range(256)]


def crc32c(data: bytes) -> int:
    if len(data) <= _SHORT:
        return _plain(0xFFFFFFFF, data) ^ 0xFFFFFFFF
    # Starting with all bits set is the same as inverting the first four bytes. Zeros before them change nothing.
    whole = np.zeros(-(-len(data) // _ROW_BYTES) * _ROW_BYTES, np.uint8)
    whole[-len(data) :] = np.frombuffer(data, np.uint8)
    whole[len(whole) - len(data) :][:4] ^= 0xFF
    crc = 0
    for at in range(0, len(whole), _ROW_BYTES * _AT_ONCE):
        crc = _of_rows(crc, whole[at : at + _ROW_BYTES * _AT_ONCE].reshape(-1, _ROW_BYTES))
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """Returns the masked form of a CRC, as stored in TFRecord files."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _plain(crc: int, data: bytes) -> int:
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc


def _of_rows(crc: int, blocks: NDArray[np.uint8]) -> int:
    table, places, first = _tables()
    alone: list[int] = np.bitwise_xor.reduce(table.take(blocks + places), 1).tolist()
    for block in alone:
        # The CRC so far has the same effect as if it were XORed into the first four bytes of the block.
        shifted = first[crc & 0xFF] ^ first[256 + (crc >> 8 & 0xFF)]
        crc = block ^ shifted ^ first[512 + (crc >> 16 & 0xFF)] ^ first[768 + (crc >> 24)]
    return crc


@cache
def _tables() -> tuple[NDArray[np.uint32], NDArray[np.intp], list[int]]:
    """Returns the lookup table, the table offset of each byte position, and the first four positions' entries."""
    # table[256 * position + value] is what a byte of this value, at this position of a block, contributes to the CRC.
    one = np.array(_TABLE, np.uint32)
    rows: list[NDArray[Any]] = [one]
    for _ in range(_ROW_BYTES - 1):
        rows.append(rows[-1] >> np.uint32(8) ^ one[rows[-1] & np.uint32(0xFF)])
    table = np.concatenate(rows[::-1])
    return table, np.arange(_ROW_BYTES) * 256, table[: 4 * 256].tolist()
