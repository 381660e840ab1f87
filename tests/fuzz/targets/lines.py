"""Lines of text and of JSON."""

from __future__ import annotations

from penstock.errors import FormatError
from penstock.formats import JsonLines, TextLines
from tests.fuzz import scratch

ALLOWED = (FormatError,)


def seeds() -> list[bytes]:
    return [
        b'{"a": 1, "b": [1, 2]}\n{"a": "\xc3\xa9"}\r\n{"a": null}',
        b"\xef\xbb\xbf[1]\n\n" + b"[" * 200 + b"\n1e999\n",
    ]


def attack(data: bytes) -> None:
    with scratch.files({"some.jsonl": data, "some.txt": data}) as folder:
        for kind, name in ((TextLines, "some.txt"), (JsonLines, "some.jsonl")):
            try:
                scratch.samples(kind(str(folder / name)), ALLOWED)
            except ALLOWED:
                pass
