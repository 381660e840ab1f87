"""The same tars as a stream, without an index."""

from __future__ import annotations

from itertools import islice

from penstock.errors import FormatError
from penstock.formats import UncountedTar
from tests.fuzz import scratch
from tests.fuzz.targets.tar import mended, seeds

ALLOWED = (FormatError,)
__all__ = ["ALLOWED", "attack", "mended", "seeds"]


def attack(data: bytes) -> None:
    with scratch.files({"some.tar": data}) as folder:
        for _ in islice(UncountedTar(str(folder / "some.tar")), 64):
            pass
