"""A file of a URL, read by pieces."""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._remote.parallel import Pause, in_parallel
from penstock._remote.store import Remote, Stored
from penstock._remote.traffic import add
from penstock.errors import RemoteError
from penstock.formats._files import AnyFile
from penstock.formats._pieces import Piece, Pieces

T = TypeVar("T")

PIECE = 8 << 20
"""Bytes of a piece: long enough that the time of a request is mostly the transfer."""

THREADS = 16
"""Pieces that one call gets at a time."""

_AHEAD = 4  # pieces that are fetched before they are needed, if a file is read from beginning to end


class RemoteFile(AnyFile):
    """A file of a URL that is read by position and must not change.

    It is read by pieces of 8 MB; a format may set other `edges`. A piece that is not kept by `pieces` is fetched as a
    whole, by one request, and several at a time. A pickled copy has the size and the token of the content, so that no
    process asks for them again. A file that has changed since is an error.
    """

    __slots__ = ("_identity", "_remote", "_stored", "edges", "pieces")

    def __init__(
        self, remote: Remote, stored: Stored, pieces: Pieces, edges: NDArray[np.int64] | None = None
    ) -> None:
        self.path, self.size, self.modified = remote.shown(stored.key), stored.size, stored.token
        self.pieces = pieces
        self.edges = edges
        """The first byte of each piece, and the end of the file; None for pieces of 8 MB."""
        self._remote, self._stored = remote, stored
        about = f"{remote.identity(stored.key)} {stored.size} {stored.token}"
        self._identity = hashlib.sha256(about.encode()).hexdigest()[:32]

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            self.beyond(start, length)
        pieces = self.pieces_of(start, start + length)
        if len(pieces) == 1:
            piece = pieces[0]
            view = self._waited(lambda: self.pieces.get(piece, self.fetch))
            return bytes(view[start - piece.start : start - piece.start + length])
        return self.read_each([start], [length])[0]

    def read_each(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        wanted: dict[Piece, list[int]] = {}  # numbers of extents, by piece
        for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            if start < 0 or length < 0 or start + length > self.size:
                self.beyond(start, length)
            for piece in self.pieces_of(start, start + length):
                wanted.setdefault(piece, []).append(number)
        found: list[bytes | bytearray] = [b""] * len(starts)
        for piece, view in self._views(wanted):
            for number in wanted[piece]:
                start, length = starts[number], lengths[number]
                if piece.start <= start and start + length <= piece.stop:
                    found[number] = bytes(view[start - piece.start : start - piece.start + length])
                    continue
                whole = found[number] = found[number] or bytearray(length)
                first, stop = max(start, piece.start), min(start + length, piece.stop)
                whole[first - start : stop - start] = view[first - piece.start : stop - piece.start]  # type: ignore[index]
            del view
        return list(map(bytes, found))

    def read_rows(self, starts: NDArray[np.int64], out: NDArray[np.uint8], places: NDArray[np.intp]) -> None:
        """Reads the bytes from each start on into the row of `out` at its place."""
        width = out.shape[1]
        if len(starts) and (starts.min() < 0 or starts.max() + width > self.size):
            self.beyond(int(starts.max()), width)
        wanted: dict[Piece, list[int]] = {}
        for number, start in enumerate(starts.tolist()):
            for piece in self.pieces_of(start, start + width):
                wanted.setdefault(piece, []).append(number)
        for piece, view in self._views(wanted):
            content, numbers = np.frombuffer(view, np.uint8), wanted[piece]
            begins = starts[numbers] - piece.start
            whole = (begins >= 0) & (begins + width <= len(content))
            if whole.any():
                windows = np.lib.stride_tricks.as_strided(content, (len(content) - width + 1, width), (1, 1))
                out[places[numbers][whole]] = windows[begins[whole]]
            for begin, place in zip(begins[~whole].tolist(), places[numbers][~whole].tolist(), strict=True):
                first, stop = max(begin, 0), min(begin + width, len(content))
                out[place, first - begin : stop - begin] = content[first:stop]

    def peek(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            self.beyond(start, length)
        return bytes(self._waited(lambda: self.fetch(Piece("", start, start + length)))) if length else b""

    def pieces_of(self, start: int, stop: int) -> list[Piece]:
        """The pieces that have these bytes."""
        if start >= stop:
            return []
        if self.edges is None:
            firsts = range(start // PIECE * PIECE, stop, PIECE)
            return [Piece(self._identity, first, min(first + PIECE, self.size)) for first in firsts]
        edges = self.edges
        numbers = range(bisect_right(edges, start) - 1, int(edges.searchsorted(stop)))
        return [Piece(self._identity, int(edges[number]), int(edges[number + 1])) for number in numbers]

    def fetch(self, piece: Piece, pause: Pause = time.sleep) -> Any:
        """The bytes of a piece from the store, as a buffer."""
        try:
            return self._remote.read(self._stored, piece.start, piece.stop, pause)
        except RemoteError as error:
            if not error.changed:
                raise
        return self.has_changed()

    def beside(self, suffix: str) -> RemoteFile:
        """The file with this suffix instead of its own."""
        stem = self._stored.key.rpartition(".")[0]
        return RemoteFile(self._remote, self._remote.find(stem + suffix), self.pieces)

    def _views(self, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, memoryview]]:
        """Each piece with its bytes: those that are kept, and then the others, which are fetched several at a time.

        Copy from a view, and drop it, before the next: they may be more than memory holds.
        """
        missing = []
        for piece in pieces:
            view = self.pieces.found(piece)
            if view is None:
                missing.append(piece)
            else:
                yield piece, view
            del view
        coming = in_parallel(self._view, missing, THREADS)
        for piece in missing:
            yield piece, self._waited(lambda: next(coming))

    def _view(self, piece: Piece, pause: Pause) -> memoryview:
        return self.pieces.get(piece, lambda piece: self.fetch(piece, pause))

    def _waited(self, call: Callable[[], T]) -> T:
        begun = time.perf_counter()
        try:
            return call()
        finally:
            add(waited=time.perf_counter() - begun)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFile, (self._remote, self._stored, self.pieces, self.edges)


class FromTheStart(AnyFile):
    """A remote file that is read from beginning to end: the next pieces are fetched before they are needed.

    Bytes before the last two pieces are read from the file itself.
    """

    __slots__ = ("_coming", "_file", "_have")

    def __init__(self, file: RemoteFile) -> None:
        self.path, self.size, self.modified = file.path, file.size, file.modified
        self._file = file
        self._have: list[tuple[Piece, memoryview]] = []
        self._coming: Iterator[tuple[Piece, memoryview]] = in_parallel(
            lambda piece, pause: (piece, file._view(piece, pause)), file.pieces_of(0, file.size), _AHEAD
        )

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            self.beyond(start, length)
        stop = start + length
        while not self._have or self._have[-1][0].stop < stop:
            found = next(self._coming, None)
            if found is None:
                break
            self._have = [*self._have[-1:], found]
        for piece, view in self._have:
            if piece.start <= start and stop <= piece.stop:
                return bytes(view[start - piece.start : stop - piece.start])
        return self._file.read(start, length)
