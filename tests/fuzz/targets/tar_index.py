"""`penstock.index` beside tars, which `penstock index` writes."""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path

from penstock._files.local import File
from penstock.errors import FormatError
from penstock.formats import Tar
from penstock.formats._beside import _HEAD, _MAGIC, _VERSION, NAME, entry_of, packed
from penstock.formats._samples import KIND, find_samples
from tests.fuzz import scratch
from tests.fuzz.targets import tar

ALLOWED = (FormatError,)
JSON = True


@cache
def tars() -> dict[str, bytes]:
    sound, cut = tar.seeds()[0], tar.seeds()[1][:9000]
    return {"one.tar": sound, "two.tar": cut}


@cache
def seeds() -> list[bytes]:
    with scratch.files(tars()) as folder:
        files = [File(str(folder / name)) for name in tars()]
        entries = {Path(file.path).name: entry_of(file, find_samples(file)) for file in files}
        return [packed(entries, KIND), packed({"one.tar": entries["one.tar"]}, KIND)]


def mended(data: bytes) -> bytes:
    """With the checksums of the description, and of the positions that it describes, right."""
    begin = data.find(b"{")
    try:
        text = data.decode("latin-1")
        about, end = json.JSONDecoder().raw_decode(text, max(begin, 0))
        at = end
        for one in about["tars"]:
            one[6] = zlib.crc32(data[at : at + one[5]])
            at += one[5]
        description = json.dumps(about).encode()
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, OverflowError, AttributeError):
        description, end = data[_HEAD.size : _HEAD.size + 500], _HEAD.size + 500
    return _HEAD.pack(_MAGIC, _VERSION, len(description), zlib.crc32(description)) + description + data[end:]


def attack(data: bytes) -> None:
    with scratch.files({NAME: data, **tars()}) as folder:
        scratch.samples(Tar([str(folder / name) for name in tars()]), ALLOWED)
