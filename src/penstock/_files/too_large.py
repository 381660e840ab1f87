"""The limit on what one sample may decode to: a few bytes of a file can stand for more than a machine has.

A size is checked before memory is allocated for it, wherever the file says it.
"""

from __future__ import annotations

from typing import NoReturn

from penstock.errors import SampleTooLarge

LIMIT = 2 << 30
"""Bytes: a scan of 512 x 512 x 1000 float32 has 1.05 GB, a satellite image of 20,000 x 20,000 pixels 1.2 GB."""

AT_ONCE = 16
"""Samples of the largest size that a block may hold."""


def checked_limit(value: object) -> int | None:
    """The value of `max_sample_bytes=`. Raises ValueError unless it is a number of bytes, or None."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError(f"max_sample_bytes must be a number of bytes, such as 4 << 30, or None, but it is {value!r}.")


def refuse_large(name: object, nbytes: int, limit: int) -> NoReturn:
    """Raises the error for a sample with this name, which would have more bytes than are allowed."""
    error = SampleTooLarge(
        f"{name}: the sample would have {nbytes:,} bytes in memory, and the limit is {limit:,}. The file may be made "
        f"to exhaust memory. If it is as it should be, pass max_sample_bytes={nbytes} or more, or None for no "
        "limit."
    )
    error.sizes = nbytes, limit
    raise error


def check_block(name: object, rows: int, nbytes: int, limit: int) -> None:
    """Raises if one of the samples of a block must be larger than the limit. A block is decoded as a whole.

    One of many samples may have as many bytes as some of the largest.
    """
    if nbytes > limit * min(max(rows, 1), AT_ONCE):
        refuse_large(f"{name} of {rows:,} rows", nbytes // max(rows, 1), limit)
