"""Decides which pieces are fetched ahead of time, from the forecast of a loader and the pieces in the folder.

A piece that is `near` is fetched unless a piece that is needed earlier would be evicted for it. So workers need not
wait for it. The price is room: until it is used, it takes the place of another piece in the cache.

A piece that is further away is fetched only when that costs no further download (the conservative way: Cao, Felten,
Karlin and Li, 1995): once the piece that is the best one to evict for it can be evicted. With `near=0`, as few pieces
are fetched as if none were fetched early, and these are the fewest possible (Belady).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._cache.agendas import Agenda, key_of, rows_of
from penstock._cache.cache import Cache, digest_of
from penstock._cache.uses import Uses, uses
from penstock.plan._forecast import Forecast

_MOST_ROWS = 1 << 18  # of an agenda: uses of pieces, those that come first
_ASKED = 64  # blocks whose pieces are asked for in one look: some milliseconds
_REMEMBERED = 4096  # blocks whose pieces are not asked for again


class WantedPiece(NamedTuple):
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

    def pieces_of(self, block: int) -> Sequence[WantedPiece]:
        """The pieces that the samples of a block are read from."""


class Lookout:
    """`ahead`: how many bytes may be fetched before they are needed; `near`: the first of these, see above."""

    def __init__(self, forecast: Forecast, dataset: InPieces, cache: Cache, ahead: int, near: int) -> None:
        self.cache = cache
        self._forecasts, self._datasets = [forecast], [dataset]
        self._edges = [np.asarray(dataset.blocks, np.int64)]
        self._ahead, self._near = min(ahead, cache.limit), near
        self._keys: dict[int, list[int]] = {}  # of the pieces of each block
        self._there: set[str] = set()  # pieces that are in the folder
        self._evicted = -1  # pieces that were evicted from the folder by then
        # It must not refer to the lookout, which ends with its last reference.
        self._pieces_of = lru_cache(_REMEMBERED)(partial(_asked, self._datasets, self._edges))
        self.forget()

    def forget(self) -> None:
        """The last agenda was not published."""
        self._uses: Uses | None = None
        self._listed: list[list[int]] = []  # keys of the pieces of the first uses
        self._rows = 0  # keys that are listed
        self._published = 0  # uses

    def joins(self, other: Lookout) -> bool:
        """Looks out for what the other has to, if both are of the same loader and folder. Before the first look."""
        if self._forecasts[0].root is not other._forecasts[0].root or repr(self.cache) != repr(other.cache):
            return False
        self._forecasts += other._forecasts
        self._datasets += other._datasets
        self._edges += other._edges
        return True

    @property
    def position(self) -> int:
        return self._forecasts[0].position

    def agenda(self) -> Agenda | None:
        """What the loader will need; None if not much was added to that since the last call.

        To find the pieces of all blocks may take seconds. So a call asks for those of a few blocks only, and an
        agenda has the uses that are listed so far, at least twice as many as the last.
        """
        position = self.position
        if self._uses is None or position >= self._uses.until:
            self.forget()
            self._uses = uses(list(zip(self._forecasts, self._edges, strict=True)))
            self._there = set()  # some may have been deleted by hand
        if self._published and self._published == len(self._uses.blocks):
            return None
        self._list_more(self._uses, position)
        found, number = self._uses, len(self._listed)
        if number < min(len(found.blocks), 2 * self._published):
            return None
        self._published = number
        counts = list(map(len, self._listed))
        first, stop = np.repeat(found.first[:number], counts), np.repeat(found.stop[:number], counts)
        return Agenda(position, rows_of(list(chain.from_iterable(self._listed)), first, stop))

    def at_once(self) -> int:
        """Bytes of the blocks that are in use at the same time, at most, as far as they are listed."""
        number = self._published
        if self._uses is None or not number:
            return 0
        sizes = [sum(piece.nbytes for piece in self._pieces_of(int(block))) for block in self._uses.blocks[:number]]
        moments = np.concatenate([self._uses.first[:number], self._uses.stop[:number]])
        changes = np.concatenate([sizes, np.negative(sizes)])
        order = np.lexsort((changes, moments))  # at the same moment, one ends before another begins
        return int(np.cumsum(changes[order]).max())

    def _list_more(self, found: Uses, position: int) -> None:
        asked = 0
        for block in found.blocks[len(self._listed) :].tolist():
            asked += block not in self._keys
            if asked > _ASKED:
                return
            keys = self._keys_of(block)
            if self._rows + len(keys) > _MOST_ROWS and self._listed:
                self._uses = found.before(len(self._listed), position)
                return
            self._listed.append(keys)
            self._rows += len(keys)

    def _keys_of(self, block: int) -> list[int]:
        found = self._keys.get(block)
        if found is None:
            pieces = self._pieces_of(block)
            found = self._keys[block] = [key_of(digest_of(piece.name)) for piece in pieces]
        return found

    def look(self, most: int, coming: Mapping[str, int], failed: Collection[str]) -> list[WantedPiece]:
        """At most `most` pieces to fetch now. `coming`: bytes of the pieces that are being fetched, by name.

        The missing piece that is needed next comes first. If there is no room for it, there is none for later ones.
        """
        found: list[WantedPiece] = []
        space, ahead = None, 0
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
            if space is None:
                space = self.cache.free_space()
                for name, nbytes in coming.items():
                    space.add(digest_of(name), nbytes)
            if not space.take(digest_of(piece.name), piece.nbytes, waits=ahead > self._near):
                break
            found.append(piece)
        return found

    def _upcoming(self) -> Iterator[WantedPiece]:
        """The pieces that are in use, or will be, each once, in the order in which they are needed."""
        seen: set[str] = set()
        if self._uses is not None:
            for at in np.flatnonzero(self._uses.stop[: self._published] > self.position).tolist():
                for piece in self._pieces_of(int(self._uses.blocks[at])):
                    if piece.name not in seen:
                        seen.add(piece.name)
                        yield piece


def _asked(datasets: Sequence[InPieces], edges: Sequence[NDArray[np.int64]], block: int) -> Sequence[WantedPiece]:
    """The pieces of a block; blocks of the datasets are numbered through."""
    for dataset, its in zip(datasets, edges, strict=True):
        if block < len(its) - 1:
            return dataset.pieces_of(block)
        block -= len(its) - 1
    raise AssertionError
