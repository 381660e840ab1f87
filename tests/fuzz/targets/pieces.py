"""Pieces in the folder of a cache, its agendas and its note: what is not sound is fetched again."""

from __future__ import annotations

import os
import struct
import zlib
from functools import cache, partial

from penstock._cache import agendas, pieces
from penstock._cache.agendas import Agenda, ranking, rows_of
from penstock._cache.cache import Cache, digest_of
from penstock._cache.locks import ByteLock
from tests.fuzz import scratch

ALLOWED = ()
SOUND = b"the bytes of a piece" * 500
NAME = "piece 0 10000"


@cache
def seeds() -> list[bytes]:
    with scratch.files({}) as folder:
        pieces.write(f"{folder}/piece", digest_of(NAME), [memoryview(SOUND)])
        piece = (folder / "piece").read_bytes()
    rows = rows_of([1, 2, 3], [0, 10, 20], [10, 20, 30])
    agenda = struct.pack("<8sqq", b"pnstagnd", 5, len(rows)) + rows.tobytes()
    return [b"p" + piece, b"a" + agenda, b"n" + struct.pack("<8s36sqqq", b"pnstcach", b"x" * 36, 0, 10**6, 3)]


def mended(data: bytes) -> bytes:
    """A piece that ends as one does. (With a checksum that is right, too, it would be sound.)"""
    if data[:1] != b"p" or len(data) < 25:
        return data
    end = data[-24:-4]
    return data[:-4] + struct.pack("<I", zlib.crc32(digest_of(NAME).encode() + end))


def attack(data: bytes) -> None:
    kind, content = data[:1], data[1:]
    with scratch.files({}) as folder:
        cache = Cache(folder / "pieces", 1 << 20)
        digest = digest_of(NAME)
        if kind == b"a":
            path = folder / "pieces" / f"1-00000000{agendas.SUFFIX}"
            path.write_bytes(content)
            path.chmod(0o600)
            lock = ByteLock(partial(os.open, path, os.O_RDWR), 0)
            lock.begin()
            try:
                found = agendas.read(str(path), sweeps=False)
                ranking(
                    [1, 2, 3],
                    [4, 5, 6],
                    [] if found is None else [found, Agenda(0, rows_of([2], [5], [6]))],
                    3,
                )
            finally:
                lock.end()
            return
        name = "penstock-cache" if kind == b"n" else f"{digest}.penstock-piece"
        (folder / "pieces" / name).write_bytes(content)
        (folder / "pieces" / name).chmod(0o600)
        for _ in range(2):
            assert bytes(cache.get(NAME, lambda: SOUND)) == SOUND
            cache.free_space().take(digest_of("other"), 1000)
            cache = Cache(folder / "pieces", 1 << 20)
        cache.get("other", lambda: bytes(100))
