"""LMDB files: trees with cycles, overlapping values, and the Datums in them."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from penstock.errors import ImageError, RecordError
from penstock.records import CaffeLMDB, write_caffe_lmdb
from tests.fuzz import scratch

ALLOWED = (RecordError, ImageError)  # a Datum may hold an image


@cache
def seeds() -> list[bytes]:
    found = []
    for count, side in ((40, 4), (12, 25), (150, 3)):
        with tempfile.TemporaryDirectory() as folder:
            images = [(np.full((3, side, side), number % 256, np.uint8), number) for number in range(count)]
            write_caffe_lmdb(Path(folder, "made"), images)
            found.append(Path(folder, "made", "data.mdb").read_bytes()[: 60 << 10])
    return found


def attack(data: bytes) -> None:
    with scratch.files({"data.mdb": data}) as folder:
        scratch.samples(CaffeLMDB(folder / "data.mdb"), ALLOWED)
