"""Decides which pieces are fetched ahead of time, from the forecast of a loader and the pieces in the folder.

A piece that is `near` is fetched unless a piece that is needed earlier would be evicted for it. So workers need not
wait for it. The price is room: until it is used, it takes the place of another piece in the cache.

A piece that is further away is fetched only when that costs no further download (the conservative way: Cao, Felten,
Karlin and Li, 1995): once the piece that is the best one to evict for it can be evicted. With `near=0`, as few pieces
are fetched as if none were fetched early, and these are the fewest possible (Belady).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._cache.agendas import Agenda, key_of, rows_of
from penstock._cache.cache import Cache, digest_of
from penstock._cache.uses import Uses, uses
from penstock.plan._forecast import Forecast

_MOST_ROWS = 1 << 18  # of an agenda: uses of pieces, those that come first
_REMEMBERED = 4096  # blocks whose pieces are not asked for again


class Wanted(NamedTuple):
    """A piece that a block needs: its name in the cache, about how many bytes it has, and how it is made.

    `make(pause)` returns its bytes. It waits by `pause(seconds)`, which raises once the scout is closed.
    """

    name: str
    nbytes: int
    make: Callable[[Callable[[float], object]], Any]


class InPieces(Protocol):
    """A dataset whose blocks are in one or more pieces each. Two blocks may have a piece in common."""

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The first key of each block, and the end."""

    def pieces_of(self, block: int) -> Sequence[Wanted]:
        """The pieces that the samples of a block are read from."""


class Lookout:
    """`ahead`: how many bytes may be fetched before they are needed; `near`: the first of these, see above."""

    def __init__(self, forecast: Forecast, dataset: InPieces, cache: Cache, ahead: int, near: int) -> None:
        self.cache = cache
        self._forecast = forecast
        self._edges = np.asarray(dataset.blocks, np.int64)
        self._ahead, self._near = min(ahead, cache.limit), near
        self._keys: dict[int, list[int]] = {}  # of the pieces of each block
        self._uses: Uses | None = None
        self._there: set[str] = set()  # pieces that are in the folder
        self._evicted = -1  # pieces that were evicted from the folder by then
        self._pieces_of = lru_cache(_REMEMBERED)(dataset.pieces_of)

    @property
    def position(self) -> int:
        return self._forecast.position

    def agenda(self) -> Agenda | None:
        """What the loader will need; None if nothing was added to that since the last call."""
        position = self.position
        if self._uses is not None and position < self._uses.until:
            return None
        found = uses(self._forecast, self._edges)
        self._there = set()  # some may have been deleted by hand
        keys: list[list[int]] = []
        rows = 0
        for block in found.blocks.tolist():
            rows += len(self._keys_of(block))
            if rows > _MOST_ROWS and keys:
                found = found.before(len(keys), position)
                break
            keys.append(self._keys_of(block))
        self._uses, counts = found, list(map(len, keys))
        first, stop = np.repeat(found.first, counts), np.repeat(found.stop, counts)
        return Agenda(position, rows_of(list(chain.from_iterable(keys)), first, stop))

    def forget(self) -> None:
        """The last agenda was not published."""
        self._uses = None

    def _keys_of(self, block: int) -> list[int]:
        found = self._keys.get(block)
        if found is None:
            pieces = self._pieces_of(block)
            found = self._keys[block] = [key_of(digest_of(piece.name)) for piece in pieces]
        return found

    def look(self, most: int, coming: Mapping[str, int], failed: Collection[str]) -> list[Wanted]:
        """At most `most` pieces to fetch now. `coming`: bytes of the pieces that are being fetched, by name.

        The missing piece that is needed next comes first. If there is no room for it, there is none for later ones.
        """
        found: list[Wanted] = []
        room, ahead = None, 0
        evicted = self.cache.evicted
        if evicted != self._evicted:
            self._evicted, self._there = evicted, set()
        for piece in self._upcoming():
            ahead += piece.nbytes
            if len(found) == most or ahead > self._ahead:
                break
            if piece.name in self._there or piece.name in coming or piece.name in failed:
                continue
            if self.cache.has(piece.name):
                self._there.add(piece.name)
                continue
            if room is None:
                room = self.cache.room()
                for name, nbytes in coming.items():
                    room.add(digest_of(name), nbytes)
            if not room.take(digest_of(piece.name), piece.nbytes, waits=ahead > self._near):
                break
            found.append(piece)
        return found

    def _upcoming(self) -> Iterator[Wanted]:
        """The pieces that are in use, or will be, each once, in the order in which they are needed."""
        seen: set[str] = set()
        if self._uses is not None:
            for at in np.flatnonzero(self._uses.stop > self.position).tolist():
                for piece in self._pieces_of(int(self._uses.blocks[at])):
                    if piece.name not in seen:
                        seen.add(piece.name)
                        yield piece
