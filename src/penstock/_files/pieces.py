"""Pieces: byte ranges of remote files, each of which is fetched and kept as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from penstock._cache.lru import LruCache
from penstock._measure.cached import counting

_MOST = 128 << 20  # bytes that each process keeps in memory


class Piece(NamedTuple):
    """The bytes from `start` to `stop` of a file. `identity` is a digest that changes when the file changes."""

    identity: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The name of the piece in a cache: unique to the piece, and the same in all processes."""
        return f"{self.identity} {self.start} {self.stop}"


FetchPiece = Callable[[Piece], Any]
"""A function that fetches a piece and returns its bytes as a buffer."""


class Pieces(Protocol):
    """Keeps pieces of remote files. Any number of threads may use the same object."""

    @property
    def passing(self) -> Pieces:
        """A store that only this process uses, for pieces of files whose version is unknown: see `Identity`."""

    def get(self, piece: Piece, fetch: FetchPiece) -> memoryview:
        """Returns the bytes of a piece, calling `fetch(piece)` if necessary."""

    def found(self, piece: Piece) -> memoryview | None: ...

    def mapped(self, piece: Piece) -> memoryview | None:
        """Returns a piece that is mapped from a file, or None.

        While the piece stays mapped, each call returns the same object.
        """


class PiecesInMemory:
    """Keeps this process's most recently used pieces in memory. A pickled copy is empty."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._kept: LruCache[Piece, memoryview] = LruCache(most)

    @property
    def passing(self) -> PiecesInMemory:
        return self

    def get(self, piece: Piece, fetch: FetchPiece) -> memoryview:
        def read(piece: Piece) -> tuple[memoryview, int]:
            view = memoryview(fetch(piece))
            counting().fetched += 1
            return view, len(view)

        found = self.found(piece)
        if found is None:
            found = self._kept.get(piece, read)
            counting().misses += 1
        return found

    def found(self, piece: Piece) -> memoryview | None:
        found = self._kept.found(piece)
        if found is not None:
            counting().hits += 1
        return found

    def mapped(self, piece: Piece) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return PiecesInMemory, (self._most,)
