"""Rows of remote token files are copied from mapped pieces of the cache: the same bytes as from local files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock._files import remote as remotefile
from penstock._files import span
from penstock._files.span import Span
from penstock._measure.cached import CacheCounts
from penstock.formats import Tokens
from penstock.formats._tokens import _MappedSamples, _PartlyMappedSamples, _ReadSamples
from remote.serving import Server

PAGE = 4096
IDS = 40_000  # 20 pieces, the last one not full


@pytest.fixture(autouse=True)
def pieces_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotefile, "PIECE", PAGE)


@pytest.fixture
def ids(folder: Path) -> Path:
    path = folder / "ids.bin"
    np.arange(IDS, dtype=np.uint16).tofile(path)
    return path


def rows(data: Tokens, keys: Any) -> Any:
    return data.__gather__(np.asarray(keys), np.empty)


def equal(far: Tokens, near: Tokens, keys: Any) -> bool:
    return np.array_equal(rows(far, keys), rows(near, keys))


def span_of(data: Tokens) -> Span:
    windows = data._mapped()
    assert isinstance(windows, _PartlyMappedSamples)
    return windows._span


def not_read(*_: Any) -> None:
    raise AssertionError("the rows should have been copied from mapped pieces")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    length=st.sampled_from([1, 7, 300, 512, 1025, 2048]),
    stride=st.sampled_from([1, 5, 256, 512, 1024, 2048]),
    where=st.sampled_from(["far", "far far", "near far", "near far far"]),
    header=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_rows_of_any_keys_equal_those_of_local_files(
    folder: Path, server: Server, cache: Path, length: int, stride: int, where: str, header: bool, seed: int
) -> None:
    ids = np.arange(IDS, dtype=np.uint16)
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, IDS
    paths: list[str] = []
    urls: list[str] = []
    for number, place in enumerate(where.split()):
        path = folder / f"{number}.bin"
        path.write_bytes((head.tobytes() if header and number != 1 else b"") + np.roll(ids, 5 * number).tobytes())
        paths.append(str(path))
        urls.append(str(path) if place == "near" else f"{server.url}/{path.name}")
    near = Tokens(paths, "uint16", length, stride)
    far = Tokens(urls, "uint16", length, stride, cache=cache / f"{seed}")
    draw = np.random.default_rng(seed)
    for _ in range(6):
        keys = draw.integers(0, len(near), 40)
        assert equal(far, near, keys)
        out = np.empty((40, length), np.uint16)
        assert far.__gather__(keys, lambda *_, out=out: out) is out
        assert np.array_equal(out, rows(near, keys))


def test_rows_of_kept_pieces_are_copied_and_not_read(
    ids: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, near = (Tokens(path, "uint16", 1025, 1024) for path in (f"{server.url}/ids.bin", ids))
    keys = np.arange(len(near))
    assert equal(far, near, keys)
    monkeypatch.setattr(_ReadSamples, "copy", not_read)
    assert equal(far, near, keys[::-1])


@pytest.mark.usefixtures("ids")
def test_each_piece_of_a_batch_is_a_hit(server: Server, counts: CacheCounts) -> None:
    data = Tokens(f"{server.url}/ids.bin", "uint16", 512)
    rows(data, range(len(data)))
    assert (counts.hits, counts.misses) == (0, 20)
    rows(data, [0, 0, 1, 2, 3, 4, 9])  # of the pieces 0, 0, 0, 0, 0, 1, 2
    assert (counts.hits, counts.misses) == (3, 20)


def test_the_slots_of_pieces_that_the_cache_drops_are_cleared(ids: Path, server: Server, cache: Path) -> None:
    far = Tokens(f"{server.url}/ids.bin", "uint16", 512, cache=cache / "own", cache_bytes=5 * (PAGE + 24))
    near = Tokens(ids, "uint16", 512)
    draw = np.random.default_rng(3)
    for _ in range(200):
        keys = draw.integers(0, len(near), 6)
        assert equal(far, near, keys)
        span, mapped = span_of(far), far.files[0].pieces.cache._mapped  # type: ignore[union-attr]
        assert len(span._mapped) - 1 <= len(mapped) + len(span._dropped) < 20
    slots = span.memory.reshape(-1, PAGE)
    assert not slots[[slot for slot in range(len(slots)) if slot not in span._mapped]].any()


def test_a_slot_that_is_cleared_while_it_is_copied_is_read_instead(
    ids: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, near = (Tokens(path, "uint16", 512) for path in (f"{server.url}/ids.bin", ids))
    rows(far, range(len(far)))
    copy = _MappedSamples.copy_from

    def clear_first(windows: _MappedSamples, starts: Any, out: Any) -> None:
        if windows._first == 0:
            span_of(far)._clear(0)  # as another thread does for a piece that was dropped
        copy(windows, starts, out)

    expected = rows(near, range(10))
    monkeypatch.setattr(_MappedSamples, "copy_from", clear_first)
    assert np.array_equal(rows(far, range(10)), expected)


def test_threads_read_while_pieces_come_and_go(ids: Path, server: Server, cache: Path) -> None:
    far = Tokens(f"{server.url}/ids.bin", "uint16", 512, cache=cache / "own", cache_bytes=8 * (PAGE + 24))
    expected = np.arange(IDS, dtype=np.uint16)[: 78 * 512].reshape(78, 512)
    wrong = []

    def read(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for _ in range(300):
            keys = draw.integers(0, 78, 3)
            if not np.array_equal(far.__gather__(keys, np.empty), expected[keys]):
                wrong.append(keys)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("refused", ["reserved", "map_again"])
def test_without_address_space_rows_are_read(
    ids: Path, server: Server, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def no_room(*_: Any) -> bool:
        if refused == "reserved":
            raise OSError(12, "no room")
        return False

    monkeypatch.setattr(span, refused, no_room)
    far, near = (Tokens(path, "uint16", 1025, 1024) for path in (f"{server.url}/ids.bin", ids))
    for _ in range(2):
        assert equal(far, near, range(len(near)))


def test_pieces_in_memory_and_rows_longer_than_a_piece_are_read(ids: Path, server: Server) -> None:
    for length, more in ((512, {"cache": False}), (2049, {})):
        far, near = Tokens(f"{server.url}/ids.bin", "uint16", length, **more), Tokens(ids, "uint16", length)
        for _ in range(2):
            assert equal(far, near, range(len(near)))
        assert isinstance(far._mapped(), _ReadSamples)
