"""Formats whose files are remote: a loader fetches the pieces of the blocks that come next."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock
from penstock._cache.cache import Cache
from penstock.formats import TextLines, Tokens
from penstock.formats import _extents as extents
from penstock.formats import _tokens as tokens
from penstock.formats._format import FilesInPieces, Format

SIZE = 1000  # bytes of a piece


class Piece(NamedTuple):
    path: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.path} {self.start}"


class Far:
    """A local file that is read through the cache, by pieces, as a remote one is."""

    def __init__(self, file: Any, cache: Cache, delay: float) -> None:
        self.path, self.size = file.path, file.size
        self.fetched: list[tuple[int, str]] = []
        self._cache, self._delay = cache, delay

    def pieces_of(self, start: int, stop: int) -> list[Piece]:
        firsts = range(start // SIZE * SIZE, stop, SIZE)
        return [Piece(self.path, first, min(first + SIZE, self.size)) for first in firsts]

    def fetch(self, piece: Piece) -> bytes:
        self.fetched.append((piece.start, threading.current_thread().name))
        time.sleep(self._delay)
        return Path(self.path).read_bytes()[piece.start : piece.stop]

    def read(self, start: int, length: int) -> bytes:
        pieces = self.pieces_of(start, start + length)
        found = b"".join(self._cache.get(piece.name, partial(self.fetch, piece)) for piece in pieces)
        return found[start - pieces[0].start :][:length]

    def read_each(self, starts: list[int], lengths: list[int]) -> list[bytes]:
        return [self.read(start, length) for start, length in zip(starts, lengths, strict=True)]


def far(data: Format, cache: Cache, delay: float = 0.0) -> list[Far]:
    """Makes the files of a dataset remote ones."""
    files = [Far(file, cache, delay) for file in data._files]
    data._files, data._cache = files, cache  # type: ignore[assignment]
    return files


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TextLines:
    """Three files of 300 lines, in blocks of some 3,000 bytes."""
    monkeypatch.setattr(extents, "_BLOCK", 3000)
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("".join(f"line {number} {at:04}\n" * 1 for at in range(300)))
    return TextLines(tmp_path)


def test_the_pieces_of_a_block_have_all_of_its_bytes(lines: TextLines, tmp_path: Path) -> None:
    files = far(lines, Cache(tmp_path / "cache", 1 << 20))
    blocks = FilesInPieces(lines)
    assert len(blocks.blocks) > 4
    for block, (first, stop) in enumerate(zip(blocks.blocks[:-1], blocks.blocks[1:], strict=True)):
        names = {wanted.name for wanted in blocks.pieces_of(block)}
        for row in {first, (first + stop) // 2, stop - 1}:
            number, inside = int(row) // 300, int(row) % 300
            start, length = lines._extent(number, inside)
            assert {piece.name for piece in files[number].pieces_of(start, start + length)} <= names
        assert all(wanted.nbytes == len(wanted.make()) for wanted in blocks.pieces_of(block))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_fetches_each_piece_once_and_before_it_is_needed(
    lines: TextLines, tmp_path: Path, shuffle: bool
) -> None:
    expected = list(lines)
    files = far(lines, Cache(tmp_path / "cache", 1 << 20), delay=0.001)
    with penstock.DataLoader(lines, batch_size=10, shuffle=shuffle, seed=2) as loader:
        batches = iter(loader)
        pieces = {piece.name for file in files for piece in file.pieces_of(0, file.size)}
        deadline = time.monotonic() + 10
        while not all(loader.dataset._cache.has(name) for name in pieces):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        found = [line for batch in batches for line in batch]
    assert sorted(found) == sorted(expected)
    fetched = [by for file in files for _, by in file.fetched]
    assert fetched == ["penstock-fetch"] * len(pieces)


def test_tokens_know_the_bytes_of_their_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_BLOCK", 500)
    ids = np.arange(2000, dtype=np.uint16)
    ids.tofile(tmp_path / "ids.bin")
    data = Tokens(tmp_path / "ids.bin", "uint16", 30, stride=20)
    for block in range(len(data.blocks) - 1):
        first, stop = data.blocks[block : block + 2].tolist()
        ((start, end),) = data._ranges_of(block, 0, first, stop)
        some = np.frombuffer(ids.tobytes()[start:end], np.uint16)
        assert (some[0], some[-1]) == (data[first][0], data[stop - 1][-1])


def test_local_files_are_not_fetched(lines: TextLines) -> None:
    loader = penstock.DataLoader(lines, batch_size=10)
    assert len(list(loader)) == 90
    assert "penstock-scout" not in {thread.name for thread in threading.enumerate()}
