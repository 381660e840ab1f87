"""`penstock inspect` of a file of any kind: what it is, is found by its content."""

from __future__ import annotations

import contextlib
import io
from functools import cache

import penstock
from penstock._tools import inspect as _show
from penstock.errors import FormatError, ImageError
from tests.fuzz import scratch
from tests.fuzz.targets import arrow, lmdb, parquet, recordio, tar

ALLOWED = (FormatError, ImageError)


@cache
def seeds() -> list[bytes]:
    sound = [module.seeds()[0] for module in (arrow, lmdb, parquet, recordio, tar)]
    return [*sound, b'{"a": 1}\n' * 9, b"\x93NUMPY", b"PK\3\4", b"\x1f\x8b\x08", b"\x89PNG\r\n\x1a\n"]


def attack(data: bytes) -> None:
    with scratch.files({"some": data}) as folder:
        try:
            dataset = penstock.open(folder / "some")
            found = dataset.inspect(2)
            with contextlib.redirect_stdout(io.StringIO()):
                print("\n".join(_show.lines(found)))
        except ValueError as error:  # of a file that is of no kind
            if "some" not in str(error):
                raise
