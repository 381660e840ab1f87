"""A folder that plays a remote store, behind a cache and a scout."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock._cache.cache import Cache
from penstock._cache.lookout import WantedPiece
from penstock._cache.scout import Scout
from penstock.plan._forecast import Forecast

ROWS = 10


class Store(penstock.Dataset[int]):
    """Blocks of ten numbers in a folder that plays the remote store. It notes who fetches what."""

    def __init__(self, folder: Path, blocks: int, limit: int, delay: float = 0.0, scouts: bool = True) -> None:
        self.log, self.delay, self._scouts = str(folder / "log"), delay, scouts
        self.blocks = np.arange(blocks + 1) * ROWS
        self.cache = Cache(folder / "cache", limit)

    def __len__(self) -> int:
        return int(self.blocks[-1])

    def __getitem__(self, key: int) -> int:
        block = key // ROWS
        piece = self.cache.get(f"{block}", partial(self.fetch, block))
        return int(np.frombuffer(piece, np.int64)[key % ROWS])

    def pieces_of(self, block: int) -> list[WantedPiece]:
        return [WantedPiece(f"{block}", 8 * ROWS, partial(self.fetch, block))]

    def fetch(self, block: int, pause: Any = None) -> bytes:
        thread = "scout" if threading.current_thread().name == "penstock-fetch" else "worker"
        with open(self.log, "a") as log:
            log.write(f"{block} {thread}\n")
        if self.delay:
            time.sleep(self.delay)
        return np.arange(block * ROWS, (block + 1) * ROWS).tobytes()

    def __foresee__(self, forecast: Forecast) -> Scout | None:
        return Scout(forecast, self, self.cache) if self._scouts else None

    def fetched(self) -> list[tuple[int, str]]:
        if not os.path.exists(self.log):
            return []
        lines = Path(self.log).read_text().split("\n")[:-1]
        return [(int(block), by) for block, by in map(str.split, lines)]


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits for what another thread does."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, _stacks()
        time.sleep(0.002)


def _stacks() -> str:
    """What the threads of penstock are doing."""
    frames = sys._current_frames()
    living = [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]
    stacks = [traceback.format_stack(frames.get(thread.ident or 0)) for thread in living]
    return "\n".join(f"{thread.name}:\n{''.join(stack)}" for thread, stack in zip(living, stacks, strict=True))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-")]
