"""Parquet: the footer, and pages of several encodings."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import FormatError
from penstock.formats import Parquet
from tests.fuzz import scratch

ALLOWED = (FormatError,)


@cache
def table() -> Any:
    return pa.table(
        {
            "id": list(range(30)),
            "text": [f"t{number % 4}" for number in range(30)],
            "ids": [[number] * (number % 4) for number in range(30)],
            "maybe": [None if number % 3 else 0.5 for number in range(30)],
        }
    )


@cache
def seeds() -> list[bytes]:
    found = []
    for settings in (
        {"compression": "none", "use_dictionary": False},
        {"compression": "snappy", "row_group_size": 8},
        {"compression": "zstd", "data_page_version": "2.0", "row_group_size": 15},
        {"compression": "gzip", "use_dictionary": False, "column_encoding": {"id": "DELTA_BINARY_PACKED"}},
    ):
        sink = io.BytesIO()
        pq.write_table(table().replace_schema_metadata(), sink, store_schema=False, **settings)
        found.append(sink.getvalue())
    return found


def attack(data: bytes) -> None:
    with scratch.files({"some.parquet": data}) as folder:
        scratch.samples(Parquet(str(folder / "some.parquet")), ALLOWED)
