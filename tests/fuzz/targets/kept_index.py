"""An index that penstock keeps beside a file: whatever is in it, the samples are those of the file."""

from __future__ import annotations

import json
import math
import os
import zlib
from functools import cache
from pathlib import Path

from penstock._files.index import _HEAD, _MAGIC, _VERSION
from penstock.errors import FormatError
from penstock.formats import TextLines
from tests.fuzz import scratch

ALLOWED = (FormatError,)
JSON = True
LINES = b"".join(b"line %d\n" % number for number in range(40))
WHEN = 1_000_000_000_000_000_000


def _lines(folder: Path) -> Path:
    path = folder / "some.txt"
    os.utime(path, ns=(WHEN, WHEN))  # the index names the time
    return path


@cache
def seeds() -> list[bytes]:
    with scratch.files({"some.txt": LINES}) as folder:
        TextLines(str(_lines(folder)))
        (path,) = folder.glob(".some.txt.penstock-*")
        global NAME
        NAME = path.name
        return [path.read_bytes()]


NAME = ""


def mended(data: bytes) -> bytes:
    """With the checksums of the description and of the arrays right."""
    begin = data.find(b"{")
    try:
        about, end = json.JSONDecoder().raw_decode(data.decode("latin-1"), max(begin, 0))
        arrays, at = data[end + -end % 64 :], 0
        for one in about["arrays"]:
            at += -at % 64
            stop = at + math.prod(one[2]) * int(one[1][2:])
            one[3] = zlib.crc32(arrays[at:stop])
            at = stop
        description = json.dumps(about).encode()
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, OverflowError, AttributeError):
        description, arrays = data[_HEAD.size : _HEAD.size + 200], data[256:]
    head = _HEAD.pack(_MAGIC, _VERSION, len(description), zlib.crc32(description)) + description
    return head + bytes(-len(head) % 64) + arrays


def attack(data: bytes) -> None:
    seeds()
    with scratch.files({"some.txt": LINES, NAME: data}) as folder:
        scratch.samples(TextLines(str(_lines(folder))), ALLOWED)
