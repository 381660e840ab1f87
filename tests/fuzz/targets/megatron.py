"""Megatron's `.idx` beside a sound `.bin`."""

from __future__ import annotations

import struct

import numpy as np

from penstock.errors import FormatError
from penstock.formats import Megatron, Tokens
from tests.fuzz import scratch

ALLOWED = (FormatError,)
IDS = np.arange(15, dtype=np.uint16).tobytes()


def seeds() -> list[bytes]:
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 4, 3)
    return [head + struct.pack("<4i4q3q", 5, 0, 7, 3, 0, 10, 10, 24, 0, 2, 4)]


def attack(data: bytes) -> None:
    with scratch.files({"some.idx": data, "some.bin": IDS}) as folder:
        try:
            Tokens(str(folder / "some.bin"), "uint16", 4)  # looks at the .idx for the dtype
        except ALLOWED:
            pass
        dataset = Megatron(str(folder / "some"))
        assert len(dataset.documents) <= len(data)
        scratch.samples(dataset, ALLOWED)
