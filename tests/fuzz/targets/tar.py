"""Tars of all dialects, and the arrays, texts and numbers in them."""

from __future__ import annotations

import io
import tarfile
from functools import cache

import numpy as np

from penstock.errors import FormatError
from penstock.formats import Tar
from tests.fuzz import scratch

ALLOWED = (FormatError,)


@cache
def seeds() -> list[bytes]:
    return [_tar(kind) for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT)]


def _tar(kind: int) -> bytes:
    array, several, sink = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(3))
    np.savez_compressed(several, a=np.zeros(9), b=np.arange(2))
    contents = {
        "json": b'{"a": [1]}',
        "npy": array.getvalue(),
        "npz": several.getvalue(),
        "cls": b"1",
        "txt": b"text",
    }
    with tarfile.open(fileobj=sink, mode="w", format=kind) as file:
        for stem in ("one", "folder/two") if kind == tarfile.USTAR_FORMAT else ("one", "long" * 40, "größe"):
            for end, content in contents.items():
                info = tarfile.TarInfo(f"{stem}.{end}")
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    return sink.getvalue()[: 40 << 10]


def mended(data: bytes) -> bytes:
    """With the checksum of each header right, as far as members follow one another."""
    out, at = bytearray(data), 0
    while at + 512 <= len(out) and any(out[at : at + 512]):
        out[at + 148 : at + 156] = b" " * 8
        out[at + 148 : at + 156] = b"%06o\0 " % sum(out[at : at + 512])
        try:
            size = int(bytes(out[at + 124 : at + 136]).strip(b" \0") or b"0", 8)
        except ValueError:
            break
        at += 512 + -(-size // 512) * 512
        if size < 0:
            break
    return bytes(out)


def attack(data: bytes) -> None:
    with scratch.files({"some.tar": data}) as folder:
        scratch.samples(Tar(str(folder / "some.tar")), ALLOWED)
