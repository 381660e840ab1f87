"""The law of remote files: all that is read, by any pieces, and with any answers broken, equals the local bytes."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock._files import remote as module
from penstock._files.local import File
from penstock._files.pieces import Piece, PiecesInMemory
from penstock._files.remote import FromTheStart, RemoteFile
from penstock._remote import store
from penstock._remote.retry import Patience
from penstock._remote.store import StoredObject, remotes
from penstock.formats import Tokens
from remote.serving import Proxy, breaking, serving

SIZE = 5000
CONTENT = random.Random(0).randbytes(SIZE)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "x").write_bytes(CONTENT)
    with serving(folder) as server, breaking(server.url, seed=1, share=0.2, in_a_row=2) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces, and short pauses."""
    monkeypatch.setattr(module, "PIECE", 512)
    quick = Patience(seconds=60, first=0.001, longest=0.01)
    monkeypatch.setattr(store, "READING", quick)
    monkeypatch.setattr(store, "FINDING", quick)


def opened(proxy: Proxy, most: int = 1 << 20, edges: list[int] | None = None) -> RemoteFile:
    ((remote, key),) = remotes([f"{proxy.url}/x"], {})
    cuts = None if edges is None else np.array([0, *sorted(set(edges)), SIZE])
    return RemoteFile(remote, remote.find(key), PiecesInMemory(most), cuts)


extents = st.integers(0, SIZE).flatmap(lambda start: st.tuples(st.just(start), st.integers(0, SIZE - start)))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wanted=st.lists(extents, max_size=12),
    edges=st.none() | st.lists(st.integers(1, SIZE - 1), max_size=8),
    most=st.sampled_from([0, 600, 1 << 20]),
)
def test_all_ranges_equal_the_local_bytes(
    proxy: Proxy, wanted: list[tuple[int, int]], edges: list[int] | None, most: int
) -> None:
    file = opened(proxy, most, edges)
    expected = [CONTENT[start : start + length] for start, length in wanted]
    starts, lengths = [start for start, _ in wanted], [length for _, length in wanted]
    assert file.read_each(starts, lengths) == expected
    copy = pickle.loads(pickle.dumps(file))
    for (start, length), content in zip(wanted[:3], expected, strict=False):
        assert copy.read(start, length) == file.peek(start, length) == content


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(starts=st.lists(st.integers(0, SIZE - 700), max_size=20), width=st.integers(1, 700))
def test_rows_equal_the_local_bytes(proxy: Proxy, starts: list[int], width: int) -> None:
    out = np.zeros((len(starts), width), np.uint8)
    places = np.random.default_rng(0).permutation(len(starts))
    opened(proxy).read_rows(np.array(starts, np.int64), out, places)
    for start, place in zip(starts, places.tolist(), strict=True):
        assert out[place].tobytes() == CONTENT[start : start + width]


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(-100, 600), st.integers(0, 700)), max_size=12))
def test_reading_from_the_start_equals_the_local_bytes(proxy: Proxy, steps: list[tuple[int, int]]) -> None:
    file, at = FromTheStart(opened(proxy)), 0
    for step, length in steps:
        at = min(max(0, at + step), SIZE)
        length = min(length, SIZE - at)
        assert file.read(at, length) == CONTENT[at : at + length]


def test_bytes_far_behind_are_read_without_those_before_them(proxy: Proxy) -> None:
    inner = opened(proxy)
    file = FromTheStart(inner)
    assert file.read(SIZE - 100, 10) == CONTENT[SIZE - 100 : SIZE - 90]
    assert [number for number in range(10) if inner.pieces.found(inner.piece(number))] == [9]
    assert file.read(0, 600) == CONTENT[:600]


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(extent=extents, edges=st.none() | st.lists(st.integers(1, SIZE - 1), max_size=8))
def test_pieces_cover_what_is_read_and_do_not_overlap(extent: tuple[int, int], edges: list[int] | None) -> None:
    start, length = extent
    file = RemoteFile(remotes(["s3://b/x"], {})[0][0], StoredObject("x", SIZE, ""), PiecesInMemory())
    file.edges = None if edges is None else np.array([0, *sorted(set(edges)), SIZE])
    pieces = file.pieces_of(start, start + length)
    assert (length == 0) == (not pieces)
    assert all(before.stop == after.start for before, after in pairwise(pieces))
    if pieces:
        assert pieces[0].start <= start < pieces[0].stop
        assert pieces[-1].start < start + length <= pieces[-1].stop
        assert len({piece.name for piece in pieces}) == len(pieces)


def test_a_piece_has_a_name_for_a_file() -> None:
    one = Piece("identity", 0, 10)
    assert one.name == Piece("identity", 0, 10).name
    assert len({one.name, Piece("identity", 0, 11).name, Piece("other", 0, 10).name}) == 3


def test_beyond_the_end_is_the_error_of_a_local_file(proxy: Proxy, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(CONTENT)
    local, remote = File(str(tmp_path / "x")), opened(proxy)
    for start, length in ((SIZE, 1), (-1, 2), (0, 1 << 60)):
        said = []
        for file in (local, remote):
            for read in (file.read, file.peek, lambda a, b, file=file: list(file.read_each([a], [b]))):
                with pytest.raises(penstock.errors.FormatError) as raised:
                    read(start, length)
                said.append(str(raised.value).partition("byte")[2])
        assert len(set(said)) == 1


def test_a_piece_is_fetched_once_while_it_is_kept(proxy: Proxy) -> None:
    proxy.share, share = 0.0, proxy.share
    try:
        file, before = opened(proxy), proxy.requests
        for start in range(0, SIZE - 10, 7):
            file.read(start, 10)
        file.read_each(list(range(0, SIZE - 10, 7)), [10] * len(range(0, SIZE - 10, 7)))
        assert proxy.requests - before == -(-SIZE // 512)
    finally:
        proxy.share = share


def digest(batches: Any) -> str:
    found = hashlib.sha256()
    for batch in batches:
        found.update(batch.tobytes())
    return found.hexdigest()


def test_batches_have_the_hash_of_local_ones_while_answers_break(folder: Path) -> None:
    """For PENSTOCK_SOAK seconds; a moment by default. Workers have the pauses and pieces of a user."""
    seconds = float(os.environ.get("PENSTOCK_SOAK", "1.5"))
    rng = np.random.default_rng(0)
    for name in "ab":
        rng.integers(0, 50_000, 3_000_000, np.uint16).tofile(folder / f"{name}.bin")
    settings = {"batch_size": 256, "shuffle": True, "seed": 3}
    with penstock.DataLoader(Tokens(folder, "uint16", 1025, 1024), **settings) as local:
        expected = [digest(local) for _ in range(2)]
    until, rounds = time.monotonic() + seconds, 0
    with serving(folder) as server:
        while rounds == 0 or time.monotonic() < until:
            with breaking(server.url, seed=rounds, share=0.4) as proxy:
                urls = [f"{proxy.url}/{name}.bin" for name in "ab"]
                data = Tokens(urls, "uint16", 1025, 1024)
                with penstock.DataLoader(data, num_workers=2, **settings) as loader:
                    assert [digest(loader) for _ in range(2)] == expected
                assert proxy.requests >= 4
            rounds += 1
