"""An epoch is over when its last batch was handed out, though many loops never ask for the end."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import penstock
from penstock import DataLoader

SETTINGS: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"num_workers": 2, "backend": "thread"},
    "processes": {"num_workers": 2},
    "not persistent": {"num_workers": 2, "persistent_workers": False},
    "out of order": {"num_workers": 2, "in_order": False},
    "a sampler": {"num_workers": 2, "sampler": list(range(40))},
    "rollover": {"num_workers": 2, "last_batch": "rollover"},
}


def take(batches: Any, count: int) -> list[int]:
    return sorted(int(key) for _ in range(count) for key in next(batches))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("kept", [False, True], ids=["rebound", "all kept"])
def test_epochs_of_a_fixed_number_of_batches_use_one_crew(settings: dict[str, Any], kept: bool) -> None:
    ended: list[tuple[int, int, int]] = []

    def note(stats: Any) -> None:
        ended.append((stats.epoch_number, stats.epoch.batches, stats.life.epochs))

    iterators, pids, epochs = [], set(), 4
    with DataLoader(range(40), 4, seed=1, shuffle=None, **settings) as loader, penstock.on_stats(note):
        for epoch in range(epochs):
            batches = iter(loader)
            assert take(batches, 10) == list(range(40))
            pids |= {worker.pid for worker in loader.workers}
            assert len(loader.workers) == (2 if settings.get("num_workers") and "backend" not in settings else 0)
            state = loader.state_dict()
            assert (state["epoch"], state["steps"]) == (epoch, 10)
            iterators += [batches] * kept
        if settings.get("persistent_workers", True):
            assert len(pids) <= 2
        with pytest.raises(StopIteration):
            next(batches)
        assert loader.state_dict()["epoch"] == epochs
        for older in iterators:
            with pytest.raises(StopIteration):
                next(older)
        assert ended == [(epoch, 10, epoch + 1) for epoch in range(epochs)]
        stats = loader.stats()
        assert (stats.life.batches, stats.life.epochs) == (40, epochs)


def test_closing_an_iterator_that_has_lost_its_crew_does_not_disturb_the_next() -> None:
    with DataLoader(range(40), 4, num_workers=2) as loader:
        first: Any = iter(loader)
        take(first, 10)
        second = iter(loader)
        begun = take(second, 3)
        first.close()
        del first
        assert sorted(begun + take(second, 7)) == list(range(40))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("between", [False, True], ids=["", "after another iter()"])
def test_an_iterator_of_a_closed_loader_is_at_its_end_after_the_last_batch(
    settings: dict[str, Any], between: bool
) -> None:
    with DataLoader(range(40), 4, seed=1, shuffle=None, **settings) as loader:
        ended, begun = iter(loader), iter(loader)
        take(ended, 10)
        take(begun, 1)
        if between:
            iter(loader)
    assert next(ended, None) is None
    with pytest.raises(RuntimeError, match="was closed"):
        next(begun)


def test_an_epoch_with_batches_left_keeps_its_crew() -> None:
    with DataLoader(range(40), 4, num_workers=1) as loader:
        first = iter(loader)
        begun = take(first, 9)
        assert take(iter(loader), 10) == list(range(40))
        assert sorted(begun + take(first, 1)) == list(range(40))


def test_threads_that_begin_and_end_epochs_at_the_same_time_all_get_everything() -> None:
    wrong: list[Any] = []
    with DataLoader(range(40), 4, num_workers=1, backend="thread") as loader:

        def read(asks: bool) -> None:
            for _ in range(30):
                batches = iter(loader)
                if take(batches, 10) != list(range(40)) or (asks and next(batches, None) is not None):
                    wrong.append(asks)

        threads = [threading.Thread(target=read, args=(asks,)) for asks in (False, True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_an_update_after_the_last_batch_reaches_the_next_epoch() -> None:
    class Data:
        add = 0

        def __len__(self) -> int:
            return 8

        def __getitem__(self, key: int) -> int:
            return key + self.add

    with DataLoader(Data(), 4, num_workers=1) as loader:
        batches = iter(loader)
        take(batches, 2)
        loader.update(add=100)
        assert take(iter(loader), 2) == list(range(100, 108))
