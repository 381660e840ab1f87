"""A runner, without a backend: what it returns for a task, and that none of its objects holds its holder."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._at_work import set_worker_info
from penstock._feed.keys import KeyFetch
from penstock._feed.stream import ItemFetch, StreamFetch
from penstock._measure.gauges import NO_GAUGE, Gauge, Gauges
from penstock._memory.layout import Writer
from penstock._memory.slabs import Slabs
from penstock._resume.reading import opened
from penstock._wire.failure import restore
from penstock._wire.reply import Replier, memfd_stray
from penstock._wire.task import Failed, Notice, Task
from penstock._work.fetch import Fetch
from penstock._work.job import Job
from penstock._work.outcomes import AtEnd, Done, Errored
from penstock._work.runner import Runner
from penstock.backends._executor import TaskExecutor
from penstock.backends._local import run_task


class Squares(penstock.Dataset[int]):
    """Sample 3 is bad."""

    def __getitem__(self, key: int) -> int:
        if key == 3:
            raise ValueError("bad")
        return key * key


class Undecided(Squares):
    """Gathers no batch that begins with an odd key."""

    def __gather__(self, keys: Any, empty: Any) -> Any:
        return -keys if keys[0] % 2 == 0 else NotImplemented


class Counting(penstock.IterableDataset[int]):
    """0 to 5, with a state. The sample 2 raises."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == 6:
            raise StopIteration
        self.at += 1
        if self.at == 3:
            raise ValueError("bad")
        return self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Light(penstock.IterableDataset[int]):
    def load(self, item: int) -> int:
        return item


def job(dataset: Any, fetch: type[Fetch] = KeyFetch, **given: Any) -> Job:
    settings = {"collate_fn": None, "worker_init_fn": None, "num_workers": 1, "seed": 1, "drop_last": False}
    return Job(dataset, fetch, **{**settings, **given})


def run(runner: Runner, step: int, keys: Any) -> Any:
    return runner.run(Task(step, 0, 0, step, keys), Writer(Slabs(None).root(0)), NO_GAUGE)


def test_a_task_that_is_done_returns_its_batch_and_rows() -> None:
    done = run(Runner(job(Squares()), "the test"), 0, np.array([1, 2]))
    assert isinstance(done, Done)
    np.testing.assert_array_equal(done.batch, [1, 4])
    assert done[1:] == (2, None, None)


def test_a_batch_that_the_dataset_does_not_gather_is_collated() -> None:
    runner = Runner(job(Undecided()), "the test")
    for keys, batch in (([2, 4], [-2, -4]), ([1, 4], [1, 16])):
        done = run(runner, 0, np.array(keys))
        np.testing.assert_array_equal(done.batch, batch)
        assert done.rows == 2


def test_a_task_with_a_bad_sample_returns_who_failed() -> None:
    done = run(Runner(job(Squares(), on_error="skip"), "the test"), 0, np.array([2, 3, 4]))
    assert isinstance(done, Done) and done.mended is not None
    np.testing.assert_array_equal(done.batch, [4, 16])
    assert (done.rows, done.mended.keys, done.mended.rows) == (2, [2, 4], [0, 2])
    assert [key for key, _ in done.mended.errors] == [3]


def test_nothing_of_a_task_is_in_the_outcome_of_the_next() -> None:
    runner = Runner(job(Squares(), on_error="skip"), "the test")
    run(runner, 0, np.array([3]))
    assert run(runner, 1, np.array([5]))[1:] == (1, None, None)


def test_a_task_that_fails_returns_the_error_itself_and_where_it_was() -> None:
    errored = run(Runner(job(Squares()), "the test"), 7, np.array([2, 3]))
    assert isinstance(errored, Errored)
    assert type(errored.error) is ValueError and not hasattr(errored.error, "__notes__")
    assert errored.where == "In sample 3 (row 1), step 7 of epoch 0, in the test."
    assert errored.mark is None


def test_each_outcome_of_a_stream_says_where_the_stream_is() -> None:
    """Also that of a task that failed: the next one continues after what it has read."""
    runner = Runner(job(Counting(), StreamFetch, batch_size=2), "the test")
    outcomes = [run(runner, step, 2) for step in range(4)]
    assert [type(outcome) for outcome in outcomes] == [Done, Errored, Done, Done]
    marks = [opened(outcome.mark) for outcome in outcomes]
    assert [mark and mark.states and mark.states["iterator"] for mark in marks[:3]] == [
        {"at": at} for at in (2, 3, 5)
    ]
    assert marks[3] is not None and marks[3].at_end
    end = run(runner, 4, 2)
    assert isinstance(end, AtEnd)
    after = opened(end.mark)
    assert after is not None and after.kept == {"iterable": {"at": 6}}


def test_a_task_that_fails_before_it_reads_has_no_mark() -> None:
    """A mark of the task before it would say that the stream has not been read since."""
    runner = Runner(job(Counting(), StreamFetch, batch_size=2), "the test")
    assert run(runner, 0, 2).mark is not None
    runner.change([lambda dataset: 1 / 0])
    errored = run(runner, 1, 2)
    assert isinstance(errored, Errored) and type(errored.error) is ZeroDivisionError
    assert errored.mark is None
    assert errored.where == "In update(), made before step 1 of epoch 0, in the test."


def test_an_error_of_worker_init_fn_is_the_error_of_every_task() -> None:
    def init(seat: int) -> None:
        raise KeyError(seat)

    runner = Runner(job(Squares(), worker_init_fn=init), "the test")
    runner.begin(4, alone=False)
    set_worker_info(None, of_process=False)  # this thread goes on as the caller's
    first, second = run(runner, 0, np.array([1])), run(runner, 1, np.array([1]))
    assert first.error is not second.error and first.error.args == second.error.args == (4,)
    assert second.where == "In worker_init_fn, called before step 1 of epoch 0, in the test."


def test_an_error_that_comes_after_the_batch_is_named_as_the_batch() -> None:
    runner = Runner(job(Squares()), "the test")
    task = Task(5, 0, 0, 5, np.array([1, 2]))
    done = runner.run(task, Writer(Slabs(None).root(0)), NO_GAUGE)
    assert isinstance(done, Done)
    errored = runner.failed(TypeError("cannot pickle"), task, b"mark")
    assert errored.mark == b"mark"
    assert restore(runner.capture(errored)).__notes__ == ["In collate of step 5 of epoch 0, in the test."]


def interrupted(samples: list[Any]) -> None:
    raise KeyboardInterrupt


def test_only_the_callers_own_interrupt_comes_out() -> None:
    runner = Runner(job(Squares(), collate_fn=interrupted), "the test")
    task, writer = Task(0, 0, 0, 0, np.array([1])), Writer(Slabs(None).root(0))
    assert isinstance(runner.run(task, writer, NO_GAUGE), Errored)
    with pytest.raises(KeyboardInterrupt):
        runner.run(task, writer, NO_GAUGE, interruptible=True)


@pytest.mark.parametrize(
    ("dataset", "fetch", "keys"),
    [(Squares(), KeyFetch, np.array([1, 2])), (Counting(), StreamFetch, 2), (Light(), ItemFetch, [1, 2])],
    ids=lambda given: type(given).__name__ if isinstance(given, penstock.Dataset) else None,
)
def test_no_object_of_a_runner_holds_its_holder(dataset: Any, fetch: type[Fetch], keys: Any) -> None:
    """So each is gone with the last reference to the runner, without the garbage collector."""
    runner = Runner(job(dataset, fetch, batch_size=2), "the test")
    assert isinstance(run(runner, 0, keys), Done)
    held = [runner, runner._fetch, runner._fetch._samples, runner._focus, runner._generators]
    gone = [weakref.ref(each) for each in held]
    gc.disable()
    try:
        del runner, held
        assert [ref() for ref in gone] == [None] * 5
    finally:
        gc.enable()


class Bad(Exception):
    pass


class Raising(penstock.Dataset[int]):
    """Each sample raises, and each error is watched."""

    def __init__(self) -> None:
        self.raised: list[weakref.ref[Bad]] = []

    def __getitem__(self, key: int) -> int:
        error = Bad(key)
        self.raised.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error  # else the error would hold this frame, and the frame the error


def test_an_error_is_gone_with_its_outcome() -> None:
    """A traceback holds its frames, their variables and their callers: none of these may hold the error."""
    dataset = Raising()
    runner = Runner(job(dataset), "the test")
    gc.disable()
    try:
        failed = run_task(runner, 0, Task(0, 0, 0, 0, np.array([1])), Writer(Slabs(None).root(0)), NO_GAUGE)
        assert isinstance(failed, Failed)
        told = weakref.ref(failed.error)
        del failed
        assert (told(), dataset.raised[0]()) == (None, None)
    finally:
        gc.enable()


class InTheTest(Runner):
    def begin(self, seat: int, *, alone: bool) -> None:
        """The process of the test does not become a worker."""


def test_an_error_is_gone_when_a_worker_has_replied() -> None:
    dataset = Raising()
    root = np.zeros(1 << 16, np.uint8)
    root[:8].view(np.int64)[0] = 1
    gc.disable()
    try:
        with socket.socket(socket.AF_UNIX) as strays:
            gauge, replier = Gauge(Gauges(None), 0, 0, lambda: 0), Replier(0, partial(memfd_stray, 0, strays))
            desk = TaskExecutor(job(dataset, make_runner=InTheTest), 0, "the test", gauge, replier)
            desk.do(Notice(0, 0, 0, 0, 8, 1, 0, 0, 0, 0, 0), root, lambda at: True)
        assert dataset.raised[0]() is None
    finally:
        gc.enable()
