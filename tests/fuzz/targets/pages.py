"""Pages of other loaders, as `penstock top` reads and draws them."""

from __future__ import annotations

import io
import os
import struct
import time
import zlib
from functools import cache
from typing import Any

import numpy as np
from rich.console import Console

import penstock
from penstock._measure import page
from penstock._system import trust
from penstock._tools import top
from penstock.stats._published import to_text
from tests.fuzz import scratch

ALLOWED = ()
JSON = True


@cache
def seeds() -> list[bytes]:
    with penstock.DataLoader(np.arange(400), 4, num_workers=1, backend="thread") as loader:
        for _ in loader:
            pass
        return [_page(to_text(loader.stats()))]


def _page(text: bytes) -> bytes:
    head = struct.pack("QQ", len(text), zlib.crc32(text))
    return struct.pack("Q", 2).ljust(page._FIRST, b"\0") + head + text


def mended(data: bytes) -> bytes:
    return _page(data[page._FIRST + 16 :]) if len(data) > page._FIRST + 16 else data


def attack(data: bytes) -> None:
    fd = os.memfd_create(page.NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, data)
        os.ftruncate(fd, page._SIZE)
        trust.seal(fd, trust.OF_ONE_SIZE)
        with scratch.alone():
            found = top.loaders(os.getpid())
        console = Console(file=io.StringIO(), width=200, force_terminal=True)
        for now in (0.0, time.time(), 1e18):
            for pid in (None, os.getpid()):
                console.print(top.view(found, pid, now))
        shown: Any = console.file
        assert "\x1b[2J" not in shown.getvalue()
    finally:
        os.close(fd)
