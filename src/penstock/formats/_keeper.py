"""Shares the decoded blocks of a table while a loader reads it, and drops those that are not needed any more."""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._cache.uses import Uses, uses
from penstock._interrupts import interrupts_deferred
from penstock._threads import started
from penstock.formats._kept import Kept
from penstock.formats._shared import Inventory
from penstock.plan._forecast import Forecast
from penstock.plan._grouping import Grouping
from penstock.plan._order import Sequential

_PAUSE = 0.05  # seconds between two looks

_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()
"""Those of this process that are open."""


class Keeper:
    """Opens the inventory of a table. In a block order, a thread drops the blocks that the loader has left behind.

    `kept` has the blocks of this process, of which those that are needed stay.
    """

    def __init__(self, forecast: Forecast, table: str, edges: NDArray[np.int64], kept: Kept[int, Any]) -> None:
        self._forecast, self._edges, self._kept = forecast, edges, kept
        # In other orders a block may be needed at any time. In sequence, a few steps need it, at about one time.
        self._planned = forecast.knows(Grouping(edges)) and not isinstance(forecast.order, Sequential)
        self._inventory, self._table = Inventory(table, planned=self._planned), table
        self._needed: set[int] = set()
        _keepers.add(self)
        self._uses: Uses | None = None
        self._bell: SimpleQueue[None] = SimpleQueue()  # takes no lock of Python's

    def start(self) -> None:
        if self._planned:
            # The thread refers to the keeper only while it looks, so it ends when the keeper is dropped.
            work = partial(_look_on, weakref.ref(self), self._bell)
            with suppress(RuntimeError):  # no thread is to be had: blocks stay until the epoch is over
                started("penstock-keeper", work, partial(self._bell.put, None))

    def look(self) -> None:
        """Drops what is not needed now."""
        position = self._forecast.position
        if self._uses is None or position >= self._uses.until:
            self._uses = uses([(self._forecast, self._edges)])
        first, stop = self._uses.first, self._uses.stop
        # Workers are ahead of the loader, by less than a block's samples are spread over: later uses are far away.
        # Other ranks may be a few steps behind.
        spread = int((stop - first).max(initial=0))
        near = (stop > position - spread // 8) & (first < position + 2 * spread)
        self._needed = {*self._uses.blocks[near].tolist()}
        # Two loaders of this process may read one table: the parts of a split.
        needed = set[int]().union(*(other._needed for other in [*_keepers] if other._table == self._table))
        self._kept.needed = needed
        self._inventory.drop(self._inventory.blocks() - needed)

    def close(self) -> None:
        with interrupts_deferred():
            self._bell.put(None)
            _keepers.discard(self)
            self._kept.needed = set()
            self._inventory.close()


def _look_on(reference: weakref.ref[Keeper], bell: SimpleQueue[None]) -> None:
    while (keeper := reference()) is not None:
        with suppress(Exception):  # it is closed meanwhile; a block that is not dropped now is dropped later
            keeper.look()
        del keeper
        with suppress(Empty):
            bell.get(timeout=_PAUSE)
            return
