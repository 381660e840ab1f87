"""Files of token ids, with llm.c's header and without."""

from __future__ import annotations

import struct

import numpy as np

from penstock.errors import FormatError
from penstock.formats import Tokens
from tests.fuzz import scratch

ALLOWED = (FormatError,)


def seeds() -> list[bytes]:
    ids = np.arange(100, dtype=np.uint16).tobytes()
    return [ids, struct.pack("<3i", 20240520, 1, 100).ljust(1024, b"\0") + ids]


def attack(data: bytes) -> None:
    with scratch.files({"some.bin": data}) as folder:
        try:
            scratch.samples(Tokens(str(folder / "some.bin"), "uint16", 9, 4), ALLOWED)
        except ValueError as error:  # the documented error for files that are too short
            if "no file has a sample" not in str(error):
                raise
