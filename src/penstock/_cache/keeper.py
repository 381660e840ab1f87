"""Claims the decoded blocks that a loader needs, so that they stay in shared memory."""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._cache.claims import Claim, near
from penstock._cache.lru import LruCache
from penstock._cache.shared import Inventory
from penstock._cache.uses import Uses, uses
from penstock._system.interrupts import LiveObjects, interrupts_deferred
from penstock._system.threads import started
from penstock.plan._forecast import Forecast
from penstock.plan._grouping import Grouping
from penstock.plan._order import Sequential

_PAUSE = 0.05  # seconds between two looks

_keepers = LiveObjects["Keeper"]()


class Keeper:
    """Claims shared blocks for a loader, so that they stay in memory.

    If the loader reads block by block, claims the loader's next blocks. Otherwise, claims as many of the newest
    blocks as fit into `keep` bytes.
    """

    def __init__(
        self, forecast: Forecast, table: str, edges: NDArray[np.int64], kept: LruCache[int, Any], keep: int
    ) -> None:
        self._forecast, self._edges, self._kept = forecast, edges, kept
        # In other orders, a block may be needed at any time. In sequential order, only a few steps in a row need it.
        self._planned = forecast.knows(Grouping(edges)) and not isinstance(forecast.order, Sequential)
        self._at_first = Claim(np.empty(0, np.int64), None if self._planned else keep)
        self._inventory = Inventory(table, self._at_first)
        self._needed: set[int] = set()
        _keepers.add(self)
        self._uses: Uses | None = None
        self._bell: SimpleQueue[None] = SimpleQueue()  # written in C, so it takes no lock of Python's

    def start(self) -> None:
        if not self._planned:
            with suppress(Exception):  # if too many descriptors are open, nothing is shared
                self.look()
            return
        # The thread has only a weak reference between two looks, so it ends when the keeper is dropped.
        work = partial(_look_on, weakref.ref(self), self._bell)
        with suppress(RuntimeError):  # if no thread can be started, blocks stay until the epoch is over
            started("penstock-keeper", work, partial(self._bell.put, None))

    def look(self) -> None:
        """Claims the blocks that the loader needs now, and drops the blocks that no loader on this machine claims."""
        self._inventory.claim(self._claim() if self._planned else self._at_first)

    def _claim(self) -> Claim:
        position = self._forecast.position
        if self._uses is None or position >= self._uses.until:
            self._uses = uses([(self._forecast, self._edges)])
        needs = near(self._uses, position)
        self._needed = {*needs.tolist()}
        self._tell_kept()
        return Claim(needs, None)

    def _tell_kept(self) -> None:
        # Two loaders of this process may read one table, such as the parts of a random split.
        # `_kept` is this process's own cache of decoded blocks.
        self._kept.needed = set[int]().union(*(each._needed for each in _keepers if each._kept is self._kept))

    def close(self) -> None:
        with interrupts_deferred():
            self._bell.put(None)
            _keepers.discard(self)
            self._tell_kept()
            self._inventory.close()


def _look_on(reference: weakref.ref[Keeper], bell: SimpleQueue[None]) -> None:
    while (keeper := reference()) is not None:
        with suppress(Exception):  # the keeper was closed; a block that is not dropped now is dropped later
            keeper.look()
        del keeper
        with suppress(Empty):
            bell.get(timeout=_PAUSE)
            return
