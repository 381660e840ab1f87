"""Says which decoded blocks of a table are still needed, while a loader reads it in a block order."""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._cache.threads import started
from penstock._cache.uses import Uses, uses
from penstock._interrupts import interrupts_deferred
from penstock.formats._kept import Kept
from penstock.formats._shared import Board
from penstock.plan._forecast import Forecast

_PAUSE = 0.05  # seconds between two looks

_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()
"""Those of this process that are open."""


class Keeper:
    """Opens the board of a table. From its start on, a thread drops the blocks that the loader has left behind.

    `kept` has the blocks of this process, of which those that are needed stay.
    """

    def __init__(self, forecast: Forecast, table: str, edges: NDArray[np.int64], kept: Kept[int, Any]) -> None:
        self._forecast, self._edges, self._kept = forecast, edges, kept
        self._board, self._table = Board(table, planned=True), table
        self._needed: set[int] = set()
        _keepers.add(self)
        self._uses: Uses | None = None
        self._bell: SimpleQueue[None] = SimpleQueue()  # takes no lock of Python's

    def start(self) -> None:
        # The thread refers to the keeper only while it looks, so it ends when the keeper is dropped.
        work = partial(_look_on, weakref.ref(self), self._bell)
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
        unneeded = self._board.blocks() - needed
        if unneeded:
            self._board.drop(unneeded)

    def close(self) -> None:
        with interrupts_deferred():
            self._bell.put(None)
            _keepers.discard(self)
            self._kept.needed = set()
            self._board.close()


def _look_on(reference: weakref.ref[Keeper], bell: SimpleQueue[None]) -> None:
    while (keeper := reference()) is not None:
        with suppress(Exception):  # it is closed meanwhile; a block that is not dropped now is dropped later
            keeper.look()
        del keeper
        with suppress(Empty):
            bell.get(timeout=_PAUSE)
            return
