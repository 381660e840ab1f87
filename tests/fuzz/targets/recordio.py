"""MXNet's `.rec`: records, and those in several parts."""

from __future__ import annotations

from functools import cache

from penstock.errors import RecordError
from penstock.records import RecordFile, RecordStream
from tests.fuzz import scratch

ALLOWED = (RecordError,)


@cache
def seeds() -> list[bytes]:
    from penstock.records import RecordWriter

    with scratch.files({}) as folder:
        with RecordWriter(folder / "some.rec") as writer:
            for number in range(12):
                # The magic number inside of a record splits it.
                data = bytes(range(number * 5)) + (b"\x0a\x23\xd7\xce" * 2 if number % 3 == 0 else b"")
                writer.write(data, label=float(number) if number % 2 else [1.0, 2.0, 3.0], id=number)
        return [(folder / "some.rec").read_bytes()]


def attack(data: bytes) -> None:
    with scratch.files({"some.rec": data}) as folder:
        stream = RecordStream(folder / "some.rec")
        try:
            for extent in stream:
                stream.load(extent)
        except ALLOWED:
            pass
        file = RecordFile(folder / "some.rec", idx=False)
        scratch.samples(file, ALLOWED)
        try:
            file.by_id(3)
        except (*ALLOWED, KeyError):
            pass
