"""Checks the decoded size of a sample before memory is allocated, provided that the file states the size."""

from __future__ import annotations

from typing import NoReturn

from penstock.errors import SampleTooLarge

# A few bytes of a file can decode to more than a machine's memory.
LIMIT = 2 << 30
"""Default limit in bytes. A scan of 512 x 512 x 1000 float32 values takes 1.05 GB, a large satellite image 1.2 GB."""

AT_ONCE = 16
"""A block may be up to this many times as large as the largest allowed sample."""


def checked_limit(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError(f"max_sample_bytes must be a number of bytes, such as 4 << 30, or None, but it is {value!r}.")


def refuse_large(name: object, nbytes: int, limit: int) -> NoReturn:
    error = SampleTooLarge(
        f"{name}: the sample would have {nbytes:,} bytes in memory, and the limit is {limit:,}. The file may be made "
        f"to exhaust memory. If it is as it should be, pass max_sample_bytes={nbytes} or more, or None for no "
        "limit."
    )
    error.sizes = nbytes, limit
    raise error


def check_block(name: object, rows: int, nbytes: int, limit: int) -> None:
    """Raises SampleTooLarge if a block has more than `limit` bytes per sample, or 16 times `limit` in total."""
    if nbytes > limit * min(max(rows, 1), AT_ONCE):
        refuse_large(f"{name} of {rows:,} rows", nbytes // max(rows, 1), limit)
