"""Remote files, which are read in pieces."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._files.identity import Identity
from penstock._files.local import AnyFile
from penstock._files.pieces import Piece, Pieces
from penstock._measure.cached import counting
from penstock._remote.parallel import Pause, in_parallel
from penstock._remote.store import Remote, StoredObject
from penstock.errors import RemoteError

PIECE = 8 << 20
"""Size of a piece in bytes. A request of this size spends most of its time on the transfer."""

THREADS = 16
"""The largest number of pieces that one call fetches at the same time."""

_AHEAD = 4  # pieces to fetch ahead while a file is read from beginning to end
_FAR = 8  # a read beyond this many pieces does not fetch the pieces in between


class RemoteFile(AnyFile):
    """A remote file, read in pieces by position. If the file has changed, reading raises FormatError."""

    __slots__ = ("_digest", "_identity", "_remote", "_stored", "edges", "pieces")

    def __init__(
        self, remote: Remote, stored: StoredObject, pieces: Pieces, edges: NDArray[np.int64] | None = None
    ) -> None:
        self.path, self.size, self.modified = remote.path(stored.key), stored.size, stored.token
        self._identity = Identity(remote.identity(stored.key), stored.size, stored.token)
        self._digest = self._identity.digest
        self.pieces = pieces if self._identity.lasts else pieces.passing
        self.edges = edges
        """Offset of each piece, followed by the size of the file. If `edges` is None, each piece has 8 MB."""
        self._remote, self._stored = remote, stored

    @property
    def identity(self) -> Identity:
        return self._identity

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            self.beyond(start, length)
        pieces = self.pieces_of(start, start + length)
        if len(pieces) == 1:
            piece = pieces[0]
            view = self.pieces.found(piece)
            if view is None:
                ((_, view),) = self._views([piece])
            return _part(view, start - piece.start, length).tobytes()
        return self.read_each([start], [length])[0]

    def read_each(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        wanted: dict[Piece, list[int]] = {}  # the indexes of extents, by piece
        for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            if start < 0 or length < 0 or start + length > self.size:
                self.beyond(start, length)
            for piece in self.pieces_of(start, start + length):
                wanted.setdefault(piece, []).append(number)
        found, parts = [b""] * len(starts), dict[int, bytearray]()
        for piece, view in self._views(wanted):
            for number in wanted[piece]:
                start, length = starts[number], lengths[number]
                if piece.start <= start and start + length <= piece.stop:
                    found[number] = _part(view, start - piece.start, length).tobytes()
                    continue
                whole = parts.setdefault(number, bytearray(length))
                first, stop = max(start, piece.start), min(start + length, piece.stop)
                whole[first - start : stop - start] = _part(view, first - piece.start, stop - first).data
            del view
        for number, whole in parts.items():
            found[number] = bytes(whole)
        return found

    def read_rows(self, starts: NDArray[np.int64], out: NDArray[np.uint8], places: NDArray[np.intp]) -> None:
        """Fills rows of `out`: row `places[i]` gets the bytes that begin at the offset `starts[i]`."""
        width = out.shape[1]
        if not len(starts):
            return
        if starts.min() < 0 or starts.max() + width > self.size:
            self.beyond(int(starts.max()), width)
        edges = np.arange(0, self.size + PIECE, PIECE) if self.edges is None else self.edges
        first, last = edges.searchsorted(starts, "right") - 1, edges.searchsorted(starts + width) - 1
        order = first.argsort(kind="stable")
        numbers, begins = np.unique(first[order], return_index=True)
        wanted = {
            self.piece(number): rows
            for number, rows in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True)
        }
        row = np.dtype((np.void, width))
        batch = out.view(row)[:, 0]
        for piece, view in self._views(wanted):
            rows = wanted[piece]
            rows = rows[last[rows] == first[rows]]
            if len(rows):
                windows = np.ndarray((len(view) - width + 1,), row, view, strides=(1,))
                batch[places[rows]] = windows[starts[rows] - piece.start]
        for at in np.flatnonzero(first != last).tolist():  # rows that extend into the next piece
            out[places[at]] = np.frombuffer(self.read(int(starts[at]), width), np.uint8)

    def peek(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            self.beyond(start, length)
        return bytes(self.fetch(Piece("", start, start + length))) if length else b""

    def pieces_of(self, start: int, stop: int) -> list[Piece]:
        if start >= stop:
            return []
        edges = self.edges
        if edges is None:
            return list(map(self.piece, range(start // PIECE, -(-stop // PIECE))))
        return list(map(self.piece, range(bisect_right(edges, start) - 1, int(edges.searchsorted(stop)))))

    def piece(self, number: int) -> Piece:
        if self.edges is None:
            return Piece(self._digest, number * PIECE, min((number + 1) * PIECE, self.size))
        return Piece(self._digest, int(self.edges[number]), int(self.edges[number + 1]))

    def fetch(self, piece: Piece, pause: Pause = time.sleep) -> Any:
        try:
            return self._remote.read(self._stored, piece.start, piece.stop, pause)
        except RemoteError as error:
            if not error.changed:
                raise
        return self.has_changed()

    def beside(self, suffix: str) -> RemoteFile:
        stem = self._stored.key.rpartition(".")[0]
        return RemoteFile(self._remote, self._remote.find(stem + suffix), self.pieces)

    def neighbour(self, name: str) -> RemoteFile:
        return RemoteFile(self._remote, self._remote.find(self._key_of(name)), self.pieces)

    def write_neighbour(self, name: str, content: bytes) -> None:
        self._remote.write(self._key_of(name), content)

    def _key_of(self, name: str) -> str:
        folder, slash, _ = self._stored.key.rpartition("/")
        return folder + slash + name

    def _views(self, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, memoryview]]:
        """Yields (piece, bytes), cached pieces first.

        The caller must drop the bytes before asking for the next pair.
        """
        # All views together may not fit into memory.
        missing = []
        for piece in pieces:
            view = self.pieces.found(piece)
            if view is None:
                missing.append(piece)
            else:
                yield piece, view
            del view
        begun = perf_counter_ns()
        for piece, view in zip(missing, in_parallel(self._view, missing, THREADS), strict=True):
            waited = perf_counter_ns() - begun
            counting().waited += waited
            yield piece, view
            del view
            begun = perf_counter_ns()

    def _view(self, piece: Piece, pause: Pause) -> memoryview:
        return self.pieces.get(piece, lambda piece: self.fetch(piece, pause))

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFile, (self._remote, self._stored, self.pieces, self.edges)


class FromTheStart(AnyFile):
    """A remote file that is read from start to end. The next pieces are fetched ahead of time."""

    __slots__ = ("_coming", "_file", "_have")

    def __init__(self, file: RemoteFile) -> None:
        self.path, self.size, self.modified = file.path, file.size, file.modified
        self._file = file
        self._have: list[tuple[Piece, memoryview]] = []  # the last two pieces; others are read from the `RemoteFile`
        self._coming: Iterator[tuple[Piece, memoryview]] = in_parallel(
            lambda piece, pause: (piece, file._view(piece, pause)), file.pieces_of(0, file.size), _AHEAD
        )

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            self.beyond(start, length)
        stop = start + length
        reached = self._have[-1][0].stop if self._have else 0
        if start - reached > _FAR * PIECE:  # the root of an LMDB is near its end
            return self._file.read(start, length)
        while not self._have or self._have[-1][0].stop < stop:
            found = next(self._coming, None)
            if found is None:
                break
            self._have = [*self._have[-1:], found]
        for piece, view in self._have:
            if piece.start <= start and stop <= piece.stop:
                return _part(view, start - piece.start, length).tobytes()
        return self._file.read(start, length)


def _part(view: memoryview, start: int, length: int) -> NDArray[np.uint8]:
    """Returns a part of a view. Threads must not slice a view that they share: see `view_of`."""
    return np.ndarray(length, np.uint8, view, start)
