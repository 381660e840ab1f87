"""`hang=`: a worker that is stuck on one step is killed, and its step is given to another."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._measure import gauges
from penstock.testing._laws import until


class Clock:
    """The clock of the loader and of the workers that it forks, in nanoseconds.

    It stands still until it is set forward: so no step seems to hang because the machine is busy.
    """

    def __init__(self) -> None:
        self.now = memoryview(mmap.mmap(-1, 8)).cast("q")
        self.forward(1000)

    def __call__(self) -> int:
        return self.now[0]

    def forward(self, seconds: int) -> None:
        self.now[0] += seconds * 10**9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(gauges, "_clock", clock)
    monkeypatch.setattr(time, "perf_counter_ns", clock)
    return clock


class Stuck:
    """Hangs at `key`, after `pass_time()`, as often as there are files `0`, `1`, ... missing in the folder."""

    def __init__(self, folder: Path, key: int, times: int, pass_time: Callable[[], None] = lambda: None) -> None:
        self.folder, self.key, self.times, self.pass_time = folder, key, times, pass_time

    def __len__(self) -> int:
        return 24

    def __getitem__(self, key: int) -> np.ndarray:
        if key == self.key:
            for number in range(self.times):
                try:
                    (self.folder / str(number)).touch(exist_ok=False)
                except FileExistsError:
                    continue
                self.pass_time()
                time.sleep(1000)
        return np.full(3, key)


def batches(dataset: Any, **settings: Any) -> list[np.ndarray]:
    with penstock.DataLoader(dataset, batch_size=2, seed=1, **settings) as loader:
        return [batch.copy() for batch in loader]


def test_a_step_that_hangs_once_is_done_by_another_worker(tmp_path: Path) -> None:
    """In real time: on a busy machine, other steps may take that long too, and are done again."""
    with pytest.warns(RuntimeWarning, match="in step 6 of epoch 0 for more than 2 seconds?") as caught:
        found = batches(Stuck(tmp_path, 13, 1), num_workers=2, hang=2, retries=20)
    assert np.array_equal(found, batches(Stuck(tmp_path, 13, 0)))
    message = next(str(one.message) for one in caught if "in step 6" in str(one.message))
    assert "Samples in the step: [12, 13]" in message
    assert "in __getitem__" in message, "the stack"


def test_a_step_that_always_hangs_is_an_error_that_says_so(tmp_path: Path, clock: Clock) -> None:
    dataset = Stuck(tmp_path, 7, 100, lambda: clock.forward(3))
    with pytest.warns(RuntimeWarning, match="has been in step 3"), pytest.raises(penstock.WorkerLost) as caught:
        batches(dataset, num_workers=1, hang=2, retries=1)
    said = str(caught.value)
    assert "hung for more than 2 seconds, and was killed (hang=)" in said
    assert "out-of-memory" not in said
    assert "[6, 7]" in said and "tried 2 times" in said


def test_a_stopped_worker_counts_as_hanging(tmp_path: Path, clock: Clock) -> None:
    def stop() -> None:
        clock.forward(3)
        os.kill(os.getpid(), signal.SIGSTOP)

    with pytest.warns(RuntimeWarning, match="in step 4"):
        found = batches(Stuck(tmp_path, 9, 1, stop), num_workers=1, hang=2)
    assert np.array_equal(found, batches(Stuck(tmp_path, -1, 0)))


def test_a_slow_caller_and_slow_steps_are_not_hangs(tmp_path: Path, clock: Clock) -> None:
    class Slow(Stuck):
        def __getitem__(self, key: int) -> np.ndarray:
            clock.forward(1)
            return super().__getitem__(key)

    given = {"batch_size": 2, "num_workers": 1, "prefetch_factor": 1, "timeout": 60}  # then nothing is bundled
    with penstock.DataLoader(Slow(tmp_path, -1, 0), hang=3, **given) as loader:
        iterator: Any = iter(loader)
        next(iterator)
        (process,), figures = loader.workers, iterator._engine.backend.gauges
        until(lambda: figures.counts(process.seat).tasks == 2, "the worker is idle: it is one step ahead")
        clock.forward(1000)
        assert len(list(iterator)) == 11
        assert loader.stats().life.replaced == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_workers": 0, "hang": 1}, "hang=1 needs workers"),
        ({"num_workers": 1, "hang": 1, "backend": "thread"}, "no worker can be killed"),
        ({"num_workers": 1, "hang": 0}, "positive number of seconds"),
        ({"num_workers": 1, "hang": "1"}, "positive number of seconds"),
    ],
)
def test_a_hang_that_cannot_be_is_refused(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        penstock.DataLoader(Stuck(tmp_path, 0, 0), **settings)


@pytest.mark.imports_torch
def test_torch_needs_a_seed_for_it(tmp_path: Path, clock: Clock) -> None:
    from penstock.torch import DataLoader

    with pytest.raises(ValueError, match="hang=1 needs seed="):
        DataLoader(Stuck(tmp_path, 0, 0), num_workers=1, hang=1)
    loader = DataLoader(Stuck(tmp_path, 5, 1, lambda: clock.forward(3)), batch_size=2, num_workers=1, seed=1, hang=2)
    with pytest.warns(RuntimeWarning, match="in step 2"):
        assert len(list(loader)) == 12
