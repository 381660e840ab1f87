"""`num_workers="auto"` and `prefetch_factor="auto"` of real loaders."""

from __future__ import annotations

import copy
import pickle
import threading
import time
import warnings
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from forced import force
from torch.utils.data import Dataset

import penstock
import penstock.torch
from penstock import DataLoader
from penstock._schedule.tuner import Range
from penstock._session import tuning
from penstock._session.tuning import _bounds
from penstock.stats._figures import Machine


class Waits(Dataset[int]):
    """Each sample waits, as for a disk or a server."""

    def __init__(self, seconds: float = 5e-3) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, key: int) -> int:
        time.sleep(self.seconds)
        return key


class Stream(penstock.IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(40))


def read_until(loader: Any, is_done: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    for _ in loader:
        if is_done():
            return True
        if time.monotonic() > end:
            return False
    return False


@pytest.fixture(params=["penstock", "penstock.torch"])
def make(request: pytest.FixtureRequest) -> Any:
    return DataLoader if request.param == "penstock" else penstock.torch.DataLoader


def closed(loader: Any) -> None:
    getattr(loader, "close", bool)()


@pytest.mark.quiet
def test_workers_that_wait_become_many(make: Any) -> None:
    loader = make(Waits(), batch_size=2, num_workers="auto", max_workers=12, seed=0)
    assert isinstance(loader.num_workers, int) and loader.num_workers <= 2
    assert read_until(loader, lambda: loader.num_workers == 12)
    closed(loader)


@pytest.mark.quiet
def test_a_caller_that_waits_is_the_reason_for_more_workers() -> None:
    with DataLoader(Waits(), batch_size=2, num_workers="auto", max_workers=8, backend="thread") as loader:
        assert read_until(loader, lambda: loader.num_workers == 8)
        assert all("The caller waits" in decision.reason for decision in loader.stats().decisions)


def test_each_change_is_in_the_stats_with_its_reason() -> None:
    with DataLoader(np.arange(40), 2, num_workers="auto", max_workers=8, backend="thread") as loader:
        force(loader, [(5, 2), (8, 2)])
        assert len(list(loader)) == 20
        found = loader.stats()
        assert [decision.workers for decision in found.decisions] == [5, 8]
        assert found.decisions[-1].prefetch_factor == 2
        assert [decision.at for decision in found.decisions] == sorted(one.at for one in found.decisions)
        assert {decision.reason for decision in found.decisions} == {"A test wants 1."}
        assert (found.settings["auto"], found.settings["num_workers"]) == (("num_workers",), 8)


def test_a_number_set_by_hand_ends_auto(make: Any) -> None:
    loader = make(Waits(1e-3), batch_size=2, num_workers="auto", prefetch_factor="auto", max_workers=9, seed=0)
    batches = iter(loader)
    next(batches)
    loader.num_workers = 3
    session = loader._session if make is DataLoader else loader._penstock
    options = session.options
    assert (loader.num_workers, options.auto, options.max_workers) == (3, ("prefetch_factor",), None)
    for _ in range(3):
        next(batches)
    assert len(session.workers) >= 3
    assert session is (loader._session if make is DataLoader else loader._penstock), "its workers go on"
    del batches
    closed(loader)


def test_what_is_known_outlives_an_epoch_and_its_workers() -> None:
    few = np.arange(100)
    loader = DataLoader(few, batch_size=2, num_workers="auto", persistent_workers=False, backend="thread", seed=0)
    with loader:
        force(loader, [(5, 4)])
        assert len(list(loader)) == 50
        assert (loader.num_workers, loader.prefetch_factor) == (5, 4)
        tuning = loader._session.tuning
        batches = iter(loader)
        next(batches)
        assert loader.num_workers == 5 and loader._session.tuning is tuning


def test_a_stream_with_one_reader_has_one_worker() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with DataLoader(Stream(), batch_size=4, num_workers="auto", backend="thread") as loader:
            assert loader.num_workers == 1
            assert _bounds(loader._session.options, loader._session.feed).workers == Range(1, 1)
            assert [len(batch) for batch in loader] == [4] * 10


def test_bounds_come_from_the_settings_and_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Machine(cpus=40.0, memory_limit=8 << 30, memory_used=1 << 30)
    monkeypatch.setattr(tuning, "machine", lambda: found)
    loader = DataLoader(np.arange(9), num_workers="auto", prefetch_factor=3)
    bounds = _bounds(loader._session.options, loader._session.feed)
    assert bounds == type(bounds)(Range(1, 40), Range(3, 3), 40.0, 8 << 30)
    loader = DataLoader(np.arange(9), num_workers=1, prefetch_factor="auto")
    bounds = _bounds(loader._session.options, loader._session.feed)
    assert bounds == type(bounds)(Range(1, 1), Range(1, 16), 40.0, 8 << 30)


def test_a_copy_is_tuned_on_its_own() -> None:
    loader = DataLoader(np.arange(20), batch_size=2, num_workers="auto", max_workers=7, backend="thread")
    for twin in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert twin.auto == ("num_workers",) and twin.max_workers == 7
        assert twin._session.tuning is not None and twin._session.tuning is not loader._session.tuning
        assert len(list(twin)) == 10
        twin.close()
    loader.close()


class ReadsBeside:
    """A sampler that reads another epoch of its own loader, if it is given one."""

    beside: Any = None

    def __iter__(self) -> Any:
        beside, self.beside = self.beside, None
        for key in range(8):
            if beside is not None:
                next(beside)
            yield key


def test_a_sampler_that_reads_its_own_loader_delays_a_change() -> None:
    sampler = ReadsBeside()
    with DataLoader(np.arange(8), batch_size=1, sampler=sampler, num_workers="auto", backend="thread") as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0]
        force(loader, [(3, 2)])
        sampler.beside = batches
        other = iter(loader)  # draws keys from the sampler, which asks `batches`: no engine can be changed now
        assert loader.num_workers < 3
        assert next(other).tolist() == [0]
        assert next(other).tolist() == [1]
        assert loader.num_workers == 3


def test_threads_that_read_one_loader_change_it_together() -> None:
    expected = [batch.tolist() for batch in DataLoader(np.arange(300), batch_size=3, seed=1, shuffle=True)]
    with DataLoader(np.arange(300), 3, seed=1, shuffle=True, num_workers="auto", backend="thread") as loader:
        force(loader, cycle([(4, 2), (1, 3), (2, 2), (3, 1)]))
        found: dict[int, list[Any]] = {}

        def read(number: int, batches: Any) -> None:
            found[number] = [batch.tolist() for batch in batches]

        iterators = []
        for _ in range(3):
            iterators.append(iter(loader))
            loader.set_epoch(0)
        threads = [threading.Thread(target=read, args=one, daemon=True) for one in enumerate(iterators)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == {0: expected, 1: expected, 2: expected}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": "many"}, "num_workers must be an integer or \"auto\", got 'many'"),
        ({"prefetch_factor": "far", "num_workers": 1}, "prefetch_factor must be an integer or \"auto\", got 'far'"),
        ({"num_workers": 2, "max_workers": 4}, 'max_workers=4 limits num_workers="auto", but num_workers=2'),
        ({"num_workers": "auto", "max_workers": 0}, "max_workers must be an integer of at least 1"),
        ({"prefetch_factor": "auto"}, 'prefetch_factor="auto" needs workers: give num_workers="auto"'),
    ],
)
def test_a_wrong_setting_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(np.arange(9), **settings)


@pytest.mark.parametrize("by_place", [False, True])
def test_without_a_seed_torch_batches_depend_on_the_number_so_auto_is_refused(by_place: bool) -> None:
    args = (1, False, None, None, "auto") if by_place else ()
    kwargs = {} if by_place else {"num_workers": "auto"}
    why = "num_workers='auto' needs seed=: without it the batches depend on the number of workers.*Give seed="
    with pytest.raises(ValueError, match=why):
        penstock.torch.DataLoader(range(9), *args, **kwargs)  # type: ignore[arg-type]
    loader = penstock.torch.DataLoader(range(9), *args, seed=0, **kwargs)  # type: ignore[arg-type]
    assert isinstance(loader.num_workers, int) and loader.num_workers >= 1
    assert torch_list(loader) == list(range(9))
    assert isinstance(vars(loader)["num_workers"], int), "frameworks read the number from here"


def torch_list(loader: Any) -> list[int]:
    return [int(batch) for batch in loader]


@pytest.mark.parametrize("name", ["prefetch_factor", "max_workers"])
def test_without_a_seed_the_other_settings_are_refused_too(name: str) -> None:
    settings: Any = {"prefetch_factor": "auto", "num_workers": 1} if name == "prefetch_factor" else {name: 3}
    with pytest.raises(ValueError, match=f"{name}=.* needs seed="):
        penstock.torch.DataLoader(range(9), **settings)


def test_a_torch_loader_shows_the_present_numbers() -> None:
    loader: Any = penstock.torch.DataLoader(
        list(range(60)), batch_size=2, num_workers="auto", prefetch_factor="auto", seed=0, persistent_workers=True
    )
    force(loader, [(3, 4)])
    core = loader._penstock
    assert sum(len(batch) for batch in loader) == 60
    assert (loader.num_workers, loader.prefetch_factor) == (3, 4)
    assert sum(len(batch) for batch in loader) == 60
    assert loader._penstock is core, "a change of the numbers is no other loader"


def test_a_framework_can_make_a_torch_loader_again_from_its_attributes() -> None:
    loader: Any = penstock.torch.DataLoader(list(range(6)), num_workers="auto", max_workers=5, seed=0)
    names = ("dataset", "batch_size", "num_workers", "prefetch_factor", "max_workers", "seed")
    again = penstock.torch.DataLoader(**{name: vars(loader)[name] for name in names})
    assert torch_list(again) == list(range(6))
    assert again.num_workers == loader.num_workers
