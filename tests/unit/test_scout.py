"""Pieces are fetched before workers ask for them: the scout of a loader, on a folder that plays the remote store."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._cache import agendas
from penstock._cache import lookout as lookout_module
from penstock._cache.cache import Cache
from penstock._cache.lookout import Lookout, WantedPiece
from penstock._cache.scout import _FIRST, Scout
from penstock._system.threads import running
from penstock.plan import BlockOrder, OrderPlan, Shuffled
from penstock.plan._forecast import Forecast
from tests.stores import Store, threads, until


@pytest.fixture(autouse=True)
def no_thread_and_no_agenda_is_left(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    gc.collect()
    until(lambda: not threads())
    assert not list(tmp_path.rglob("*.penstock-agenda*"))
    if "processes" not in request.node.name:  # one that was killed at the end may have been writing a piece
        assert not list(tmp_path.rglob("*.penstock-part"))
    assert not running


WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2, "backend": "thread"}, {"num_workers": 2}]


@pytest.mark.parametrize("workers", WORKERS, ids=["inline", "threads", "processes"])
@pytest.mark.parametrize("pieces", [0, 1, 3, 100], ids="room for {}".format)
@pytest.mark.filterwarnings("ignore:A piece could not be kept")
def test_the_stream_is_the_same_with_a_scout_and_a_cache_of_any_size(
    tmp_path: Path, workers: dict[str, Any], pieces: int
) -> None:
    store = Store(tmp_path, 7, pieces * 104)
    plain = penstock.DataLoader(np.arange(70), batch_size=4, shuffle=True, seed=3)
    with penstock.DataLoader(store, batch_size=4, shuffle=True, seed=3, **workers) as loader:
        for _ in range(2):
            expected = [batch.tolist() for batch in plain]
            assert [batch.tolist() for batch in loader] == expected


@pytest.mark.parametrize("workers", WORKERS, ids=["inline", "threads", "processes"])
def test_each_piece_is_fetched_once_over_all_epochs_if_there_is_room(tmp_path: Path, workers: dict[str, Any]) -> None:
    store = Store(tmp_path, 20, 1 << 20)
    with penstock.DataLoader(store, batch_size=5, shuffle=True, seed=1, **workers) as loader:
        for _ in range(3):
            assert sorted(np.concatenate(list(loader)).tolist()) == list(range(200))
    assert sorted(block for block, _ in store.fetched()) == list(range(20))


def test_pieces_are_there_before_they_are_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path, 20, 1 << 20)
    loader = penstock.DataLoader(store, batch_size=10)
    batches = iter(loader)
    until(lambda: len(store.fetched()) == 20)
    assert sum(len(batch) for batch in batches) == 200
    # The caller may have been quicker for the first.
    assert all(by == "scout" for _, by in store.fetched())
    loader.close()


def test_no_more_is_fetched_ahead_than_the_cache_holds(tmp_path: Path) -> None:
    store = Store(tmp_path, 20, 8 * 104)
    loader = penstock.DataLoader(store, batch_size=10)
    batches = iter(loader)
    until(lambda: len(store.fetched()) == 8)
    for number in range(20):
        # Two pieces are near: a quarter of the cache. The first six pieces are best kept for the next epoch.
        until(lambda number=number: store.cache.has(f"{min(19, number + 1)}"))
        assert max(block for block, _ in store.fetched()) <= max(7, number + 2)
        assert next(batches).tolist() == list(range(10 * number, 10 * number + 10))
    assert len(store.fetched()) == 20
    assert all(by == "scout" for _, by in store.fetched())
    loader.close()


def test_the_next_epoch_is_fetched_before_it_begins(tmp_path: Path) -> None:
    store = Store(tmp_path, 10, 1 << 20)
    loader = penstock.DataLoader(store, batch_size=10)
    batches = iter(loader)
    for _ in range(9):
        next(batches)
    for piece in (tmp_path / "cache").glob("*.penstock-piece"):
        piece.unlink()
    assert len(list(batches)) == 1
    until(lambda: all(store.cache.has(f"{block}") for block in range(9)))
    before = len(store.fetched())
    assert len(list(loader)) == 10
    assert {by for _, by in store.fetched()[before:]} <= {"scout"}
    loader.close()


def test_one_scout_serves_all_epochs(tmp_path: Path) -> None:
    store = Store(tmp_path, 4, 1 << 20)
    forecasts = []

    class Counting(Store):
        def __foresee__(self, forecast: Forecast) -> Scout | None:
            forecasts.append(forecast)
            return super().__foresee__(forecast)

    store.__class__ = Counting
    loader = penstock.DataLoader(store, batch_size=3, shuffle=True, seed=1)
    for _ in range(3):
        list(loader)
    assert len(forecasts) == 1
    assert forecasts[0].position == 120
    loader.set_epoch(7)
    next(iter(loader))
    assert len(forecasts) == 2
    loader.close()


@pytest.mark.parametrize("end", ["close", "drop the iterator", "drop both", "another epoch"])
def test_the_scout_ends_with_its_loader_or_epoch(tmp_path: Path, end: str) -> None:
    store = Store(tmp_path, 10, 1 << 20)
    loader = penstock.DataLoader(store, batch_size=10)
    batches = iter(loader)
    next(batches)
    assert "penstock-scout" in threads()
    if end == "close":
        loader.close()
    elif end == "drop the iterator":
        del batches
    elif end == "drop both":
        del batches, loader
    else:
        batches = iter(loader)
        del batches
    until(lambda: not threads())


def test_a_loader_that_is_dropped_between_two_epochs_ends_its_scout(tmp_path: Path) -> None:
    loader = penstock.DataLoader(Store(tmp_path, 10, 1 << 20), batch_size=10)
    list(loader)
    assert "penstock-scout" in threads()
    del loader
    until(lambda: not threads())


def test_a_fetch_that_is_under_way_does_not_hold_up_the_end(tmp_path: Path) -> None:
    store = Store(tmp_path, 10, 1 << 20)
    go_on, begun_fetches = threading.Event(), list[int]()

    def slow(block: int, pause: Any = None) -> bytes:
        if threading.current_thread().name == "penstock-fetch":
            begun_fetches.append(block)
            go_on.wait(60)
        return Store.fetch(store, block)

    store.fetch = slow  # type: ignore[method-assign]
    loader = penstock.DataLoader(store, batch_size=10)
    batches = iter(loader)
    until(lambda: len(begun_fetches) == _FIRST)
    begun = time.monotonic()
    loader.close()
    del batches
    assert time.monotonic() - begun < 30
    until(lambda: "penstock-scout" not in threads())
    go_on.set()
    until(lambda: not threads())
    assert len(store.fetched()) == _FIRST


def test_an_error_of_a_fetch_is_left_to_the_worker(tmp_path: Path) -> None:
    store = Store(tmp_path, 10, 1 << 20)
    tried: list[str] = []

    def failing(block: int, pause: Any = None) -> bytes:
        if block == 3:
            tried.append(threading.current_thread().name)
            raise ConnectionError("no route to host")
        return Store.fetch(store, block)

    store.fetch = failing  # type: ignore[method-assign]
    loader = penstock.DataLoader(store, batch_size=10)
    batches = iter(loader)
    until(lambda: len(store.fetched()) == 9)
    for _ in range(3):
        next(batches)
    with pytest.raises(ConnectionError, match="no route to host") as caught:
        next(batches)
    assert "sample 30" in "".join(caught.value.__notes__)
    for step in range(4, 9):  # with the last step the scout begins the next epoch, for which it tries again
        assert next(batches).tolist() == list(range(10 * step, 10 * step + 10))
        until(lambda step=step: position_of(tmp_path) >= 10 * step)  # so the scout has looked again
    assert sorted(tried) == ["MainThread", "penstock-fetch"]
    loader.close()


def position_of(folder: Path) -> int:
    """The position that the agenda in a folder has."""
    (path,) = folder.rglob("*.penstock-agenda")
    found = agendas.read(str(path), sweeps=False)
    assert found is not None
    return found.position


def test_a_scout_that_dies_says_so_and_the_epoch_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, handler, records = Store(tmp_path, 4, 1 << 20), logging.Handler(), list[logging.LogRecord]()
    monkeypatch.setattr(handler, "emit", records.append)
    monkeypatch.setattr(logging.getLogger("penstock"), "handlers", [handler])

    def broken(block: int) -> Any:
        raise ZeroDivisionError("of the dataset")

    store.pieces_of = broken  # type: ignore[method-assign]
    with penstock.DataLoader(store, batch_size=10) as loader:
        assert len(list(loader)) == 4
        until(lambda: records)
    (record,) = records
    assert record.levelname == "WARNING" and "Fetching ahead has stopped" in record.getMessage()
    assert record.exc_info is not None and isinstance(record.exc_info[1], ZeroDivisionError)


def test_without_a_folder_the_scout_fetches_nothing(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    store = Store(tmp_path, 3, 1 << 20)
    loader = penstock.DataLoader(store, batch_size=10)
    with pytest.warns(RuntimeWarning, match="could not be kept"):
        assert sum(len(batch) for batch in loader) == 30
    assert [by for _, by in store.fetched()] == ["worker"] * 3
    loader.close()


def test_ranks_on_one_machine_share_the_cache(tmp_path: Path) -> None:
    store = Store(tmp_path, 20, 1 << 20)
    loaders = [penstock.DataLoader(store, batch_size=5, shuffle=True, seed=1, shard=(rank, 2)) for rank in range(2)]
    for _ in range(2):
        both = [np.concatenate([*batches]) for batches in zip(*map(iter, loaders), strict=True)]
        assert sorted(np.concatenate(both).tolist()) == list(range(200))
    assert sorted(block for block, _ in store.fetched()) == list(range(20))
    for loader in loaders:
        loader.close()


def test_a_resumed_epoch_fetches_from_its_position_on(tmp_path: Path) -> None:
    store = Store(tmp_path, 10, 1 << 20)
    first = penstock.DataLoader(store, batch_size=10, seed=1)
    batches = iter(first)
    for _ in range(6):
        next(batches)
    state = first.state_dict()
    first.close()
    del batches
    until(lambda: not threads())
    (tmp_path / "again").mkdir()
    other = Store(tmp_path / "again", 10, 4 * 104)
    second = penstock.DataLoader(other, batch_size=10, seed=1)
    second.load_state_dict(state)
    beginning = iter(second)
    until(lambda: len(other.fetched()) == 4)
    assert {block for block, _ in other.fetched()} == {6, 7, 8, 9}
    second.close()
    del beginning


@pytest.mark.parametrize("workers", WORKERS, ids=["inline", "threads", "processes"])
def test_the_figures_of_the_cache(tmp_path: Path, workers: dict[str, Any]) -> None:
    store = Store(tmp_path, 10, 1 << 20, scouts=False)
    loader = penstock.DataLoader(store, batch_size=5, persistent_workers=False if workers else None, **workers)
    list(loader)
    first = loader.stats().epoch.cache
    assert first is not None
    assert (first.hits + first.misses, first.fetched, first.evicted) == (100, 10, 0)
    assert first.misses >= 10
    list(loader)
    stats = loader.stats()
    assert stats.epoch.cache is not None
    assert stats.life.cache is not None
    assert (stats.epoch.cache.hits, stats.epoch.cache.fetched, stats.life.cache.fetched) == (100, 0, 10)
    assert "cache hits" in str(stats)
    loader.report(tmp_path / "report.html")
    assert "pieces fetched" in (tmp_path / "report.html").read_text()
    assert stats.to_dict()["life"]["cache"]["fetched"] == 10
    loader.close()


def test_the_figures_count_what_is_fetched_ahead_of_time(tmp_path: Path) -> None:
    store = Store(tmp_path, 10, 5 * 104)
    loader = penstock.DataLoader(store, batch_size=5)
    list(loader)
    loader.close()
    until(lambda: not threads())
    cache = loader.stats().life.cache
    assert cache is not None
    assert cache.fetched == len(store.fetched())
    assert cache.evicted == cache.fetched - len(list((tmp_path / "cache").glob("*.penstock-piece")))


@pytest.mark.parametrize("room", [2, 100])
def test_a_cache_that_is_smaller_than_the_window_is_noticed(tmp_path: Path, room: int) -> None:
    store = Store(tmp_path, 20, room * 104)
    with penstock.DataLoader(store, batch_size=10, shuffle="blocks", window=4, seed=1) as loader:
        batches = iter(loader)
        until(lambda: loader._session.measures.meter.scouts.needed)
        assert sum(len(batch) for batch in batches) == 200
        cache = loader.stats().life.cache
    assert cache is not None and cache.limit == room * 104
    assert 3 * 80 <= cache.needed <= 5 * 80  # of about four blocks, each with ten numbers
    assert (cache.needed > cache.limit) == (room == 2)


def test_without_a_cache_there_are_no_figures_of_one() -> None:
    loader = penstock.DataLoader(np.arange(10), batch_size=5)
    list(loader)
    assert loader.stats().life.cache is None
    assert "cache" not in str(loader.stats())


def test_a_dataset_of_any_kind_may_foresee(tmp_path: Path) -> None:
    closed: list[int] = []

    class Seeing(list):  # type: ignore[type-arg]
        def __foresee__(self, forecast: Forecast) -> Any:
            self.forecast = forecast
            return self

        def close(self) -> None:
            closed.append(self.forecast.position)

    data = Seeing(range(10))
    loader = penstock.DataLoader(data, batch_size=2, shuffle=True, seed=5)
    batches = iter(loader)
    assert data.forecast.position == 0
    given = [next(batches).tolist() for _ in range(2)]
    assert data.forecast.position == 4
    assert data.forecast.keys(0, 4).tolist() == [key for batch in given for key in batch]
    rest = [batch.tolist() for batch in batches]
    following = [batch.tolist() for batch in loader]
    assert data.forecast.keys(10, 20).tolist() == [key for batch in following for key in batch]
    assert len(rest) == 3
    assert closed == []
    del batches, loader
    assert closed == [20]


def test_an_order_that_is_not_known_has_no_forecast(tmp_path: Path) -> None:
    store = Store(tmp_path, 3, 1 << 20)
    loader = penstock.DataLoader(store, sampler=iter([3, 1, 2]))
    assert [batch.tolist() for batch in loader] == [[3], [1], [2]]
    assert not threads()


def test_an_agenda_is_bounded_by_its_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout_module, "_MOST_ROWS", 1000)

    class Large:
        blocks = np.array([0, 100, 200])

        def pieces_of(self, block: int) -> list[WantedPiece]:
            return [WantedPiece(f"{block} {number}", 8, lambda pause: bytes(8)) for number in range(300)]

    steps = [0]
    forecast = Forecast(OrderPlan(Shuffled(200, 1), batch_size=1), 0, lambda: steps[0])
    lookout = Lookout(forecast, Large(), Cache(tmp_path / "cache", 1 << 20), 1 << 20, 0)
    agenda = lookout.agenda()
    assert agenda is not None and len(agenda.rows) == 900
    steps[0] = 10  # beyond the uses that are known
    agenda = lookout.agenda()
    assert agenda is not None and len(agenda.rows) == 900 and agenda.position == 10


def test_fetching_begins_before_the_pieces_of_all_blocks_are_known(tmp_path: Path) -> None:
    asked: list[int] = []

    class Many:
        blocks = np.arange(5001) * 4

        def pieces_of(self, block: int) -> list[WantedPiece]:
            asked.append(block)
            return [WantedPiece(f"{block}", 8, lambda pause: bytes(8))]

    forecast = Forecast(OrderPlan(BlockOrder(Many.blocks, 4, 1)), 0, lambda: 0)
    lookout = Lookout(forecast, Many(), Cache(tmp_path / "cache", 1 << 20), 1 << 20, 0)
    first = lookout.agenda()
    assert first is not None and len(first.rows) == len(asked) == 64
    assert len(lookout.look(10, {}, ())) == 10
    sizes = [len(agenda.rows) for _ in range(200) if (agenda := lookout.agenda()) is not None]
    # Each time at least twice as many, up to all blocks of two epochs; each block is asked for once.
    assert sizes == [128, 256, 512, 1024, 2048, 4096, 10_000]
    assert len(asked) == len({*asked}) == 5000
