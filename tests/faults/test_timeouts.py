"""A timeout says where the worker is that keeps everybody waiting, whatever it is at, and hurts nobody."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import DataLoader, Dataset, LoaderTimeout
from penstock.backends import _stack as stack

WAYS: dict[str, dict[str, Any]] = {
    "thread": {"backend": "thread"},
    **{name: {"multiprocessing_context": name} for name in ("fork", "spawn", "forkserver")},
}


class Bar:
    """Whoever waits at its path waits until it is lifted. From then on nobody does."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self.fds: list[int] = []

    def lift(self) -> None:
        self.fds.append(os.open(self.path, os.O_RDWR))


@pytest.fixture
def bar(tmp_path: Path) -> Iterator[Bar]:
    bar = Bar(tmp_path / "bar")
    yield bar
    for fd in bar.fds:
        os.close(fd)


def wait_at(path: str, worker: int = 0) -> None:
    with open(path):
        pass


class Barred(Dataset[Any]):
    def __init__(self, path: str, key: int, n: int) -> None:
        self.path, self.key, self.n = path, key, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> int:
        if key == self.key:
            wait_at(self.path)
        return key


class BarredAtBirth(Barred):
    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        wait_at(self.path)


def read(batches: Iterator[Any], until: str = "") -> tuple[list[int], str]:
    """The batches up to a timeout that says this (a pattern), or to the end. Workers may be slow to start."""
    found: list[int] = []
    while True:
        try:
            found.append(next(batches).item())
        except LoaderTimeout as error:
            if until and re.search(until, str(error), re.DOTALL):
                return found, str(error)
        except StopIteration:
            return found, ""


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_hangs_before_its_first_step_shows_where(bar: Bar, way: str) -> None:
    init = partial(wait_at, bar.path)
    with DataLoader(range(3), num_workers=1, worker_init_fn=init, timeout=0.2, **WAYS[way]) as loader:
        batches = iter(loader)
        _, said = read(batches, "in wait_at")
        assert "  Step 0 of epoch 0 is not done; no worker has started it yet.\n  worker 0 (" in said
        assert ") has no step. Its stack, innermost call first:\n    File" in said
        assert "amples" not in said  # they are not to blame
        bar.lift()
        assert read(batches) == ([0, 1, 2], "")


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_is_still_in_an_epoch_that_was_left_shows_where(bar: Bar, way: str) -> None:
    with DataLoader(Barred(bar.path, 1, 4), num_workers=1, timeout=0.2, **WAYS[way]) as loader:
        found, said = read(iter(loader), "in wait_at")
        assert found == [0] and "Samples in the step: [1]" in said
        assert "  Step 1 of epoch 0 is not done; worker 0 (" in said and ") is working on it. Its stack, in" in said
        batches = iter(loader)
        _, said = read(batches, "in wait_at")
        assert "  Step 0 of epoch 1 is not done; no worker has started it yet.\n  worker 0 (" in said
        assert ") is in step 1 of epoch 0. Its stack, innermost call first:\n    File" in said
        assert "amples" not in said
        bar.lift()
        assert read(batches) == ([0, 1, 2, 3], "")


def test_of_several_steps_in_one_task_the_one_that_hangs_is_named(bar: Bar) -> None:
    with DataLoader(Barred(bar.path, 500, 600), num_workers=1, timeout=0.2) as loader:
        batches = iter(loader)
        found, said = read(batches, "in wait_at")
        assert found == list(range(len(found)))  # some before it may be in its task
        assert "Step 500 of epoch 0 is not done; worker 0 (" in said
        assert "Samples in the step: [500]." in said
        bar.lift()
        assert read(batches) == (list(range(len(found), 600)), "")


@pytest.mark.imports_torch
def test_workers_that_wait_for_work_are_not_shown(bar: Bar) -> None:
    def init(worker: int) -> None:
        if worker == 1:
            wait_at(bar.path)

    torch = pytest.importorskip("penstock.torch")
    loader = torch.DataLoader(
        range(4), 1, num_workers=2, timeout=0.2, worker_init_fn=init, multiprocessing_context="fork"
    )
    batches = iter(loader)
    found, said = read(batches, r"Step 1 of .*\n  worker 1 \(.* in wait_at")
    assert found == [0] and "Step 1 of epoch 0 is not done; no worker has started it yet.\n  worker 1 (" in said
    assert "worker 0" not in said
    bar.lift()
    assert read(batches) == ([1, 2, 3], "")


@pytest.mark.filterwarnings("ignore:num_workers=6 is more than")
def test_some_of_many_workers_that_hang_are_shown(bar: Bar) -> None:
    init = partial(wait_at, bar.path)
    with DataLoader(
        range(3), num_workers=6, worker_init_fn=init, timeout=0.5, multiprocessing_context="fork"
    ) as loader:
        batches = iter(loader)
        _, said = read(batches, "(in wait_at.*){4}2 more workers are busy")
        assert said.count("in wait_at") == said.count(" has no step. Its stack, ") == 4
        bar.lift()
        assert read(batches) == ([0, 1, 2], "")


class Locked(Dataset[Any]):
    """Its samples need a lock that another thread holds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: int) -> int:
        with self.lock:
            return key


def test_a_lock_that_was_held_during_a_fork_is_named_as_the_cause(bar: Bar) -> None:
    dataset, held, done = Locked(), threading.Event(), threading.Event()

    def hold() -> None:
        with dataset.lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        with DataLoader(dataset, num_workers=1, timeout=0.2, multiprocessing_context="fork") as loader:
            _, said = read(iter(loader), "in __getitem__")
        assert re.search(r" again\. Most often this comes from a fork beside threads: .* had \d+ other thr", said)
        assert "one sample is slow" not in said
        with DataLoader(Barred(bar.path, 0, 1), num_workers=1, timeout=0.2, multiprocessing_context="fork") as loader:
            _, said = read(iter(loader), "in wait_at")
        assert "Most often one sample is slow" in said and "beside threads" not in said
    finally:
        done.set()
        thread.join()


@pytest.mark.filterwarnings("ignore:num_workers=8 is more than")
def test_all_workers_are_asked_for_their_stacks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []  # a clock that only sleeping moves
    monkeypatch.setattr(stack, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept)))
    with DataLoader(range(9), num_workers=8, timeout=60, multiprocessing_context="fork") as loader:
        next(iter(loader))
        for worker in loader.workers:
            os.kill(worker.pid, signal.SIGSTOP)
        processes = [(worker.pid, worker.fileno()) for worker in loader.workers]
        (engine,) = loader._session.engines.all()
        assert stack.ask(processes, engine.backend._theirs["stacks"]) == [""] * 8  # type: ignore[attr-defined]
    assert 0 < sum(slept) < 2 * stack._PATIENCE


def test_one_that_is_gone_says_nothing() -> None:
    process = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(process.pid)
    process.wait()
    assert stack.ask([(process.pid, pidfd)], pidfd) == [""]
    os.close(pidfd)


def test_a_worker_that_cannot_say_yet_where_it_is_is_not_killed_by_the_question(bar: Bar) -> None:
    dataset = BarredAtBirth(bar.path, -1, 3)
    with DataLoader(dataset, num_workers=1, timeout=0.5, multiprocessing_context="spawn") as loader:
        batches = iter(loader)
        (worker,) = loader.workers
        for _ in range(3):
            with pytest.raises(LoaderTimeout, match=r"Step 0 of epoch 0 is not done; no worker has started it yet\."):
                next(batches)
        bar.lift()
        assert read(batches) == ([0, 1, 2], "")
        assert [one.pid for one in loader.workers] == [worker.pid]
