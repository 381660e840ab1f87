"""RecordIO: MXNet's format for a file of records.

    a part:    the mark | flag (3 bits) and length (29 bits) | content | zeros up to a multiple of 4
    a record:  one part with flag 0, or parts with the flags 1, 2, ... 2, 3

The mark is a magic number. All numbers are little-endian. Content that has the mark at a multiple of 4 is split there
into parts, and the mark itself is left out. No valid flag and length look like the mark, so the mark occurs only
where a part begins. Searching a record for marks therefore detects every wrong length, unless the error only adds or
drops a few zeros at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._files.local import AnyFile

MARK = 0xCED7230A
LONGEST = (1 << 29) - 1

_MARK = MARK.to_bytes(4, "little")
_WORD = np.dtype("<u4")
_MARK_WORD = np.array(MARK, _WORD)  # numpy compares with it five times as fast as with an int
_HEAD = struct.Struct("<II")
_ALONE, _FIRST, _MIDDLE, _LAST = range(4)
_AHEAD = 1000  # how many reads are announced to the kernel at a time
_ENDS = (_ALONE, _LAST)
_MAY_FOLLOW = ((_ALONE, _FIRST), (_MIDDLE, _LAST), (_MIDDLE, _LAST), (_ALONE, _FIRST))


def framed(content: bytes) -> list[bytes]:
    pieces: list[bytes] = []
    begin = 0
    for at in _marks(content):
        pieces += _head(_MIDDLE if begin else _FIRST, at - begin), content[begin:at]
        begin = at + 4
    pieces += _head(_LAST if begin else _ALONE, len(content) - begin), content[begin:]
    pieces.append(bytes(-len(content) % 4))
    return pieces


class NotARecord(ValueError):
    """Raised if bytes are not a valid record. `what` describes the problem, and `at` is the offset of the problem."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at, self.what = at, what


def record(raw: bytes) -> memoryview:
    """Returns the content of a record. Raises NotARecord unless `raw` is exactly one record."""
    begins = _marks(raw)
    if not begins or begins[0] != 0:
        raise NotARecord(0, "a record should begin here, but none does")
    between = [_MIDDLE] * (len(begins) - 2)
    flags = [_ALONE] if len(begins) == 1 else [_FIRST, *between, _LAST]
    parts: list[memoryview | bytes] = []
    for expected, begin, end in zip(flags, begins, [*begins[1:], len(raw)], strict=True):
        if end < begin + 8:
            raise NotARecord(begin, "the header of a part is cut off")
        _, word = _HEAD.unpack_from(raw, begin)
        flag, length = word >> 29, word & LONGEST
        stop = begin + 8 + length
        # Only the last part may end before a multiple of 4; zeros fill the rest.
        fits = end == stop if expected in (_FIRST, _MIDDLE) else stop <= end < stop + 4 and not any(raw[stop:end])
        if flag != expected or not fits:
            raise NotARecord(begin, f"a part of {length:,} bytes with flag {flag} does not fit here")
        parts += _MARK, memoryview(raw)[begin + 8 : stop]
    return memoryview(parts[1] if len(parts) == 2 else b"".join(parts[1:]))


def beginning(raw: bytes) -> bytes | None:
    """Returns the content in a record's first bytes, or None if the record has several parts or is damaged."""
    mark, word = _HEAD.unpack_from(raw)
    return raw[8 : 8 + word] if mark == MARK and word >> 29 == _ALONE else None


def disagreement(file: AnyFile, starts: NDArray[np.int64]) -> str:
    """Returns why `starts` cannot be the offsets of all records in the file, or "" if they can."""
    # Damage to a single record is not reported here: it raises when that record is read.
    if len(odd := starts[starts % 4 != 0]):
        return f"it has a record at byte {odd[0]:,}, but records begin at multiples of 4"
    if file.size % 4:
        return f"the file ends at byte {file.size:,}, but records end at multiples of 4"
    read = file.read
    heads = np.frombuffer(b"".join(read_heads(file, starts, 8)), _WORD).reshape(-1, 2)
    marked, flags = heads[:, 0] == _MARK_WORD, heads[:, 1] >> 29
    ends = starts + 8 + (heads[:, 1].astype(np.int64) & LONGEST) + 3 & ~3
    single = marked & (flags == _ALONE)
    meets = single[:-1] & (ends[:-1] == starts[1:])
    for at in (~meets).nonzero()[0].tolist():
        begin, following = int(starts[at]), int(starts[at + 1])
        end = int(ends[at]) if single[at] else _end(file, begin)
        if end == following:
            continue
        if not marked[at + 1] or flags[at + 1] not in _MAY_FOLLOW[_LAST]:
            return f"it has a record at byte {following:,}, where none begins"
        if end <= following - 8 and read(end, 4) == _MARK:
            return f"it lacks the record at byte {end:,}"
    return ""


def read_heads(file: AnyFile, starts: NDArray[Any], size: int) -> Iterator[bytes]:
    """Yields the first `size` bytes of the record at each offset in `starts` (fewer at the end of the file)."""
    for first in range(0, len(starts), _AHEAD):
        some = starts[first : first + _AHEAD].tolist()
        yield from file.read_each(some, [min(size, file.size - start) for start in some])


def _end(file: AnyFile, at: int) -> int:
    """Returns the offset after the record at `at`, or the end of the file if the record is damaged."""
    flag = _LAST
    while at <= file.size - 8:
        mark, word = _HEAD.unpack(file.read(at, 8))
        before, flag = flag, word >> 29
        if mark != MARK or flag not in _MAY_FOLLOW[before]:
            break
        at += 8 + _padded(word & LONGEST)
        if flag in _ENDS:
            return at
    return file.size


def records(file: AnyFile) -> Iterator[tuple[int, int]]:
    """Finds the records by following their headers. Yields the start and stop offset of each record."""
    read, unpack, size = file.read, _HEAD.unpack, file.size
    begin = at = 0
    flag = _LAST
    while at < size:
        mark, word = unpack(read(at, 8))
        before, flag = flag, word >> 29
        if mark != MARK or flag not in _MAY_FOLLOW[before]:
            file.damaged(at, "a part of a record should begin here, but none does")
        if before in _ENDS:
            begin = at
        at += 8 + _padded(word & LONGEST)
        if flag in _ENDS and at <= size:
            yield begin, at
    if at > size or flag not in _ENDS:
        file.damaged(begin, f"the record that begins here reaches beyond the end of the file, at byte {size:,}")


def _marks(content: bytes) -> list[int]:
    words = np.frombuffer(content, _WORD, len(content) // 4)
    return [4 * at for at in (words == _MARK_WORD).nonzero()[0].tolist()]


def _head(flag: int, length: int) -> bytes:
    return _HEAD.pack(MARK, flag << 29 | length)


def _padded(length: int) -> int:
    return (length + 3) & ~3
