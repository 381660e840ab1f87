"""Small steps travel several in one task, and nobody can tell by what arrives."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same import same

from penstock import DataLoader, Dataset, WorkerLost
from penstock._engine import pace
from penstock._wire.reply import Replier
from penstock._wire.task import MOST_STEPS

METHODS = ["fork", "spawn"]


@pytest.fixture(autouse=True)
def every_step_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_SECONDS", 10.0)


class Ragged(Dataset[Any]):
    """Batches of all sizes, random numbers in them, objects, and keys that fail."""

    def __init__(self, n: int, bad: frozenset[int] = frozenset()) -> None:
        self.n = n
        self.bad = bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        if key in self.bad:
            raise KeyError(key)
        size = 20_000 if key % 31 == 0 else key % 5
        return {"x": np.full(size, key), "r": random.random(), "n": np.random.random(), "s": f"{key}"}


def stream(loader: DataLoader[Any]) -> list[Any]:
    """The batches of two epochs, each with its keys; an error by its type and text."""
    found: list[Any] = []
    for _ in range(2):
        batches = loader.batches()
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                break
            except KeyError as error:
                found.append((type(error), error.args))
            else:
                index = batch.index
                assert index is not None
                found.append((batch.epoch, batch.step, index.tolist(), batch.data))
    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch_size", [1, None])
def test_bundles_give_what_the_plain_loop_gives(method: str, batch_size: int | None) -> None:
    settings: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "seed": 5}
    dataset = Ragged(301, frozenset({7, 8, 77, 300}))
    inline = stream(DataLoader(dataset, **settings))
    with DataLoader(dataset, num_workers=2, multiprocessing_context=method, **settings) as loader:
        assert same(stream(loader), inline)


def test_a_last_step_that_is_short_is_short() -> None:
    with DataLoader(range(203), batch_size=4, num_workers=2) as loader:
        for _ in range(3):
            assert [batch.tolist() for batch in loader] == [
                list(range(at, min(at + 4, 203))) for at in range(0, 203, 4)
            ]


def test_steps_are_bundled() -> None:
    assert max(bundles(range(1600))) == MOST_STEPS


def test_large_steps_are_not_bundled() -> None:
    assert set(bundles(np.zeros((60, 600_000)))) == {1}


def test_the_more_a_caller_keeps_the_less_is_kept_for_nothing() -> None:
    kept: list[Any] = []
    sizes = bundles(np.zeros((600, 10_000)), kept)  # 80 KB a batch
    assert max(sizes) > 16
    assert sizes[-2] == 3
    assert [batch.shape for batch in kept] == [(1, 10_000)] * 600


def bundles(dataset: Any, kept: list[Any] | None = None) -> list[int]:
    """How many steps came in each task, as they were handed out."""
    sizes = []
    left = 0
    with DataLoader(dataset, num_workers=1) as loader:
        iterator: Any = iter(loader)
        for batch in iterator:
            if kept is not None:
                kept.append(batch)
            was, left = left, len(iterator._engine._course.ready)
            if was == 0:
                sizes.append(left + 1)
    return sizes


def test_an_iterator_may_be_left_in_the_middle_of_a_bundle() -> None:
    with DataLoader(range(4000), num_workers=2) as loader:
        for left_at in (100, 101, 103, 107, 110):
            for at, batch in enumerate(loader):
                assert batch.tolist() == [at]
                if at == left_at:
                    break


_KEYS = 600  # so many that the next epoch, which is prefetched, does not come as far as to kill


class Deadly(Dataset[Any]):
    """The process dies at one key, as long as there is a life left to lose in the folder."""

    def __init__(self, deadly: int, lives: Path) -> None:
        self.deadly = deadly
        self.lives = lives

    def __len__(self) -> int:
        return _KEYS

    def __getitem__(self, key: int) -> int:
        if key == self.deadly:
            for life in sorted(self.lives.iterdir()):
                life.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return key


def give_lives(folder: Path, count: int) -> Path:
    for life in range(count):
        (folder / str(life)).touch()
    return folder


@pytest.mark.parametrize("deadly", range(420, 429))
def test_a_worker_that_dies_in_a_bundle_is_not_noticed(tmp_path: Path, deadly: int) -> None:
    with DataLoader(Deadly(deadly, give_lives(tmp_path, 2)), num_workers=2) as loader:
        assert [int(batch[0]) for batch in loader] == list(range(_KEYS))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("deadly", [420, 423, 427])
def test_of_a_bundle_only_the_step_that_kills_is_lost(
    tmp_path: Path, deadly: int, retries: int, in_order: bool
) -> None:
    dataset = Deadly(deadly, give_lives(tmp_path, 100))
    arrived, lost = [], []
    with DataLoader(dataset, num_workers=2, retries=retries, in_order=in_order) as loader:
        batches = iter(loader)
        while True:
            try:
                arrived.append(int(next(batches)[0]))
            except StopIteration:
                break
            except WorkerLost as error:
                lost.append(str(error))
    assert sorted(arrived) == [key for key in range(_KEYS) if key != deadly]
    assert len(lost) == 1
    assert f"Samples in the step: [{deadly}]" in lost[0]
    assert len(list(tmp_path.iterdir())) == 100 - retries - 1


def test_a_worker_may_die_when_all_steps_are_done_and_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by reading: the board then said that all steps are done, and none was the one that it was at."""
    give_lives(tmp_path, 2)
    bundle = Replier.bundle

    def die_first(*arguments: Any) -> bytes:
        for life in sorted(tmp_path.iterdir()):
            life.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return bundle(*arguments)

    monkeypatch.setattr(Replier, "bundle", die_first)
    with DataLoader(range(400), num_workers=1, multiprocessing_context="fork") as loader:
        assert [int(batch[0]) for batch in loader] == list(range(400))
    assert not list(tmp_path.iterdir())
