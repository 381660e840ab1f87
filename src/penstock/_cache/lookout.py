"""Decides which pieces of remote files to fetch ahead of time.

A piece within the next `near` bytes is fetched as soon as there is room, or as soon as room can be made by evicting
pieces that are needed later. Such evictions may cause additional downloads, but workers need not wait for near
pieces.

A piece that is further ahead must not cause additional downloads. If there is no room for this piece, the piece is
not fetched until the best candidate for eviction is a piece that is needed even later (the conservative strategy of
Cao, Felten, Karlin and Li, 1995). With `near=0`, the total number of downloads is the smallest possible (Belady).
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

_MOST_ROWS = 1 << 18  # the largest number of rows in an agenda, which lists only the first uses of pieces
_ASKED = 64  # blocks whose pieces are looked up in one call, which takes a few milliseconds
_REMEMBERED = 4096  # blocks whose pieces are cached


class WantedPiece(NamedTuple):
    """A piece that a block needs: its name in the cache, its approximate size, and a function that fetches it."""

    name: str
    nbytes: int
    make: Callable[[Callable[[float], object]], Any]  # waits by calling its argument, which raises after a stop


class InPieces(Protocol):
    """A dataset whose blocks consist of one or more pieces. Two blocks may share a piece."""

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The first key of each block, followed by the total number of samples."""

    def pieces_of(self, block: int) -> Sequence[WantedPiece]: ...


class Lookout:
    """Finds the next pieces to fetch, up to `ahead` bytes ahead of the loader."""

    def __init__(self, forecast: Forecast, dataset: InPieces, cache: Cache, ahead: int, near: int) -> None:
        self.cache = cache
        self._forecasts, self._datasets = [forecast], [dataset]
        self._edges = [np.asarray(dataset.blocks, np.int64)]
        self._ahead, self._near = min(ahead, cache.limit), near
        self._keys: dict[int, list[int]] = {}  # by block: the keys of its pieces in agendas
        self._there: set[str] = set()  # names of pieces that are in the folder
        self._evicted = -1  # the cache's counter of evictions when `_there` was last valid
        # A partial has no reference to the lookout, which must be freed with its last outside reference.
        self._pieces_of = lru_cache(_REMEMBERED)(partial(_asked, self._datasets, self._edges))
        self.forget()

    def forget(self) -> None:
        """Discards an agenda that is outdated or could not be published."""
        self._uses: Uses | None = None
        self._listed: list[list[int]] = []  # for each of the first uses: the keys of its pieces
        self._rows = 0  # the number of keys in `_listed`
        self._published = 0  # how many uses are published

    def joins(self, other: Lookout) -> bool:
        """Adds the datasets of `other`. Returns False if `other` belongs to a different loader or cache.

        Must be called before `agenda`.
        """
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
        """Returns a new agenda, or None if the published agenda need not be replaced yet."""
        position = self.position
        if self._uses is None or position >= self._uses.until:
            self.forget()
            self._uses = uses(list(zip(self._forecasts, self._edges, strict=True)))
            self._there = set()  # some may have been deleted by hand
        if self._published and self._published == len(self._uses.blocks):
            return None
        # Looking up the pieces of all blocks may take seconds, so each call looks up those of a few blocks. A new
        # agenda is returned whenever the number of listed uses has doubled.
        self._list_more(self._uses, position)
        found, number = self._uses, len(self._listed)
        if number < min(len(found.blocks), 2 * self._published):
            return None
        self._published = number
        counts = list(map(len, self._listed))
        first, stop = np.repeat(found.first[:number], counts), np.repeat(found.stop[:number], counts)
        return Agenda(position, rows_of(list(chain.from_iterable(self._listed)), first, stop))

    def at_once(self) -> int:
        """Returns the largest number of bytes that the loader will need at the same time, according to the agenda."""
        number = self._published
        if self._uses is None or not number:
            return 0
        sizes = [sum(piece.nbytes for piece in self._pieces_of(int(block))) for block in self._uses.blocks[:number]]
        moments = np.concatenate([self._uses.first[:number], self._uses.stop[:number]])
        changes = np.concatenate([sizes, np.negative(sizes)])
        order = np.lexsort((changes, moments))  # a use that ends frees its bytes before another begins
        return int(np.cumsum(changes[order]).max())

    def _list_more(self, found: Uses, position: int) -> None:
        asked = 0
        for block in found.blocks[len(self._listed) :].tolist():
            keys = self._keys.get(block)
            if keys is None:
                asked += 1
                if asked > _ASKED:
                    return
                keys = [key_of(digest_of(piece.name)) for piece in self._pieces_of(block)]
                self._keys[block] = keys
            if self._rows + len(keys) > _MOST_ROWS and self._listed:
                self._uses = found.before(len(self._listed), position)
                return
            self._listed.append(keys)
            self._rows += len(keys)

    def look(self, most: int, coming: Mapping[str, int], failed: Collection[str]) -> list[WantedPiece]:
        """Returns up to `most` pieces to fetch now, the most urgent first. Stops at the first that does not fit."""
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
        """Yields the pieces that are or will be in use, in order of first use, without duplicates."""
        seen: set[str] = set()
        if self._uses is not None:
            for at in np.flatnonzero(self._uses.stop[: self._published] > self.position).tolist():
                for piece in self._pieces_of(int(self._uses.blocks[at])):
                    if piece.name not in seen:
                        seen.add(piece.name)
                        yield piece


def _asked(datasets: Sequence[InPieces], edges: Sequence[NDArray[np.int64]], block: int) -> Sequence[WantedPiece]:
    """Returns the pieces of a block. Blocks are numbered across all datasets."""
    for dataset, its in zip(datasets, edges, strict=True):
        if block < len(its) - 1:
            return dataset.pieces_of(block)
        block -= len(its) - 1
    raise AssertionError
