"""Pieces: the parts of a remote file that are fetched and kept as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from penstock._cache.lru import LruCache
from penstock._measure.cached import counting

_MOST = 128 << 20  # bytes that each process keeps


class Piece(NamedTuple):
    """Bytes `start` to `stop` of the file with this identity (a digest), another one after the file has changed."""

    identity: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The same in all processes, different for all other bytes."""
        return f"{self.identity} {self.start} {self.stop}"


FetchPiece = Callable[[Piece], Any]
"""The bytes of a piece, as a buffer."""


class Pieces(Protocol):
    """Where the pieces of files are kept. Any number of threads may ask at once."""

    @property
    def passing(self) -> Pieces:
        """Where pieces are kept that must not outlive this process: see `Identity`."""

    def get(self, piece: Piece, fetch: FetchPiece) -> memoryview:
        """The bytes of a piece; `fetch(piece)` returns them if they are not kept."""

    def found(self, piece: Piece) -> memoryview | None:
        """The bytes of a piece that is kept; else None."""

    def mapped(self, piece: Piece) -> memoryview | None:
        """The piece if it is kept as a map of a file; the same object until it is dropped."""


class PiecesInMemory:
    """The pieces that this process used last. A copy in another process begins without any."""

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
