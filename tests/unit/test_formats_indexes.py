"""The memory that an opened dataset needs is that of its files and blocks, not of its rows."""

from __future__ import annotations

import pytest

from bench.indexes import FILES, MOST_BYTES, MOST_SECONDS, ROWS, measure

pytest.importorskip("pyarrow")


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["parquet", "jsonl", "bin"])
def test_a_hundred_million_rows_in_a_thousand_files_take_less_than_a_byte_each(kind: str) -> None:
    found = measure(kind, FILES)
    assert found.rows == FILES * ROWS == 10**8
    assert found.nbytes < MOST_BYTES
    assert found.seconds + found.first < MOST_SECONDS
