"""Pieces: the parts of a remote file, each fetched and kept as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from penstock._cache.lru import LruCache
from penstock._measure.cached import counting

_MOST = 128 << 20  # bytes that each process keeps in memory


class Piece(NamedTuple):
    """Bytes `start` to `stop` of a file. `identity` is a digest, which changes when the file changes."""

    identity: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The name of the piece in a cache: the same in all processes, different for all other bytes."""
        return f"{self.identity} {self.start} {self.stop}"


FetchPiece = Callable[[Piece], Any]
"""Fetches the bytes of a piece, and returns them as a buffer."""


class Pieces(Protocol):
    """Keeps the pieces of files, for any number of threads."""

    @property
    def passing(self) -> Pieces:
        """Keeps the pieces that must not outlive this process: see `Identity`."""

    def get(self, piece: Piece, fetch: FetchPiece) -> memoryview:
        """Returns the bytes of a piece; calls `fetch(piece)` if they are not kept."""

    def found(self, piece: Piece) -> memoryview | None:
        """Returns the bytes of a piece if they are kept, otherwise None."""

    def mapped(self, piece: Piece) -> memoryview | None:
        """Returns the piece if it is kept as a map of a file: the same object until it is dropped."""


class PiecesInMemory:
    """Keeps the pieces that this process used last. A pickled copy is empty."""

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
