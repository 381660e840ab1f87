"""Arrow's IPC: files, streams, dictionaries, and compressed buffers."""

from __future__ import annotations

import io
from functools import cache

import pyarrow as pa

from penstock.errors import FormatError
from penstock.formats import Arrow
from tests.fuzz import scratch
from tests.fuzz.targets.parquet import table

# A length that the machine could have is believed, and pyarrow may ask for so much memory (decision 0038).
ALLOWED = (FormatError, MemoryError)


@cache
def seeds() -> list[bytes]:
    found = []
    coded = table().set_column(1, "text", table()["text"].dictionary_encode())
    for new, content, codec in (
        (pa.ipc.new_file, table(), None),
        (pa.ipc.new_stream, table(), "zstd"),
        (pa.ipc.new_file, coded, "lz4"),
    ):
        sink = io.BytesIO()
        with new(sink, content.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_table(content, max_chunksize=15)
        found.append(sink.getvalue())
    return found


def attack(data: bytes) -> None:
    with scratch.files({"some.arrow": data}) as folder:
        scratch.samples(Arrow(str(folder / "some.arrow")), ALLOWED)
