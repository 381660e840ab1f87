"""MXNet's `.idx` beside a sound `.rec`."""

from __future__ import annotations

from functools import cache

from penstock.errors import RecordError
from penstock.records import RecordFile
from tests.fuzz import scratch
from tests.fuzz.targets import recordio

ALLOWED = (RecordError,)


@cache
def seeds() -> list[bytes]:
    with scratch.files({"some.rec": recordio.seeds()[0]}) as folder:
        RecordFile(folder / "some.rec").save_idx()
        return [(folder / "some.idx").read_bytes()]


def attack(data: bytes) -> None:
    with scratch.files({"some.rec": recordio.seeds()[0], "some.idx": data}) as folder:
        file = RecordFile(folder / "some.rec")
        scratch.samples(file, ALLOWED)
        try:
            file.by_id(3)
        except KeyError:
            pass
