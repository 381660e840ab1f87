"""Each rule of the verdict, on real loaders that are made to be so. The machine must be quiet: `make quiet`.

PENSTOCK_RECORD=1 keeps their figures in tests/recorded/verdicts, and test_recorded_verdicts.py judges those on any
machine. A run is repeated, and one that is judged as expected is enough.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.stats import Stats
from penstock.stats._published import to_text
from penstock.stats._verdict import rule_of

pytestmark = pytest.mark.quiet

RUNS = 5
RECORDED = Path(__file__).parents[1] / "recorded" / "verdicts"


def nothing(key: int = 0) -> None:
    pass


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Samples:
    """`length` samples that are made by calling a function with the key."""

    def __init__(self, length: int, make: Callable[[int], object] = nothing) -> None:
        self.length, self.make = length, make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> np.ndarray:
        self.make(key)
        return np.full(8, key)


class Stream(penstock.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        for number in range(60):
            time.sleep(0.005)
            yield number


class SlowKeys:
    """A sampler that takes long for each key."""

    def __iter__(self) -> Iterator[int]:
        for key in range(60):
            time.sleep(0.005)
            yield key


class SlowToPickle:
    def __reduce__(self) -> tuple[type, tuple[()]]:
        time.sleep(0.005)
        return (object, ())


def slow_batch(samples: list[np.ndarray]) -> np.ndarray:
    time.sleep(0.005)
    return np.stack(samples)


def sleep_at_start(number: int) -> None:
    time.sleep(0.3)


def run(dataset: Any, step: Callable[[int], object], epochs: int = 1, **settings: Any) -> Stats:
    """The figures of a loader while its workers live, after a loop that calls `step` for each batch."""
    with penstock.DataLoader(dataset, **settings) as loader:
        for _ in range(epochs):
            for number, _ in enumerate(loader):
                step(number)
        return loader.stats()


def judged(wanted: str, *args: Any, **settings: Any) -> Stats:
    """The figures of a run on which this rule speaks."""
    for _ in range(RUNS):
        stats = run(*args, **settings)
        rule = rule_of(stats)
        if rule is not None and rule.name == wanted:
            return recorded(wanted, stats)
    raise AssertionError(f"{wanted!r} was expected:\n\n{stats}")


def recorded(wanted: str, stats: Stats) -> Stats:
    if "PENSTOCK_RECORD" in os.environ:
        (RECORDED / f"{wanted.replace(' ', '_')}.json").write_bytes(to_text(stats))
    return stats


def test_the_loop_is_the_bottleneck() -> None:
    # Threads: to start a process takes too large a part of the run on a busy machine. And long steps: to wake up a
    # thread takes 0.2 ms, which must be well below 1 %.
    stats = judged("nothing to gain", Samples(20), lambda _: time.sleep(0.06), num_workers=1, backend="thread")
    assert "would gain nothing" in stats.verdict


def test_fewer_workers_would_do() -> None:
    loop = lambda _: time.sleep(0.015)  # noqa: E731
    stats = judged("fewer workers would do", Samples(30), loop, num_workers=3, backend="thread")
    assert "The 3 workers waited for room" in stats.verdict and "num_workers=1 would do" in stats.verdict


def test_workers_are_started_in_each_epoch() -> None:
    settings = {"num_workers": 1, "persistent_workers": False, "worker_init_fn": sleep_at_start}
    stats = judged("start-up in each epoch", Samples(10), lambda _: time.sleep(0.01), 3, **settings)
    assert "persistent_workers=True" in stats.verdict and "worker_init_fn" in stats.verdict


def test_workers_are_started_once() -> None:
    settings = {"num_workers": 1, "worker_init_fn": sleep_at_start}
    stats = judged("start-up", Samples(30), lambda _: time.sleep(0.01), **settings)
    assert "later epochs start without that" in stats.verdict


def test_one_sample_in_many_is_slow() -> None:
    dataset = Samples(600, lambda key: time.sleep(0.1 if key % 200 == 130 else 0.0002))
    settings = {"batch_size": 4, "num_workers": 2, "backend": "thread"}
    stats = judged("few slow samples", dataset, lambda _: time.sleep(0.001), **settings)
    assert "130" in stats.verdict and "330" in stats.verdict and "530" in stats.verdict
    assert "in_order=False" in stats.verdict


def test_batches_are_tiny() -> None:
    judged("tiny batches", Samples(10_000), nothing, num_workers=1)


def test_the_loop_loads_the_data_itself() -> None:
    stats = judged("inline", Samples(60, lambda key: time.sleep(0.004)), lambda _: time.sleep(0.002))
    assert 'backend="thread"' in stats.verdict


def test_a_stream_has_one_reader() -> None:
    stats = judged("one reader", Stream(), nothing, num_workers=1)
    assert "define load(item)" in stats.verdict


def test_threads_hold_the_gil_in_turn() -> None:
    dataset, settings = Samples(300, lambda key: compute(0.001)), {"num_workers": 2, "backend": "thread"}
    stats = judged("GIL", dataset, nothing, **settings)
    assert 'backend="process"' in stats.verdict


def test_workers_pickle() -> None:
    pickled: Callable[..., Any] = lambda samples: SlowToPickle()  # noqa: E731
    judged("write", Samples(60), nothing, num_workers=1, collate_fn=pickled)


def test_workers_collate() -> None:
    stats = judged("collate", Samples(60), nothing, num_workers=1, collate_fn=slow_batch)
    assert "your collate_fn" in stats.verdict


@contextmanager
def one_processor() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.filterwarnings("ignore:num_workers=2 is more than the 1 CPU")
def test_more_workers_than_processors() -> None:
    with one_processor():
        stats = judged("more workers than CPUs", Samples(150, lambda key: compute(0.0015)), nothing, num_workers=2)
    assert "The 2 workers share 1 CPU" in stats.verdict and "num_workers=1 would be about as fast" in stats.verdict


def test_all_processors_are_in_use() -> None:
    with one_processor():
        stats = judged("CPUs in use", Samples(150, lambda key: compute(0.0015)), nothing, num_workers=1)
    assert "more workers would not help" in stats.verdict


def test_samples_wait() -> None:
    stats = judged("samples wait", Samples(60, lambda key: time.sleep(0.01)), nothing, num_workers=2)
    assert 'backend="thread"' in stats.verdict


def test_workers_fetch() -> None:
    dataset = Samples(150, lambda key: compute(0.0015))
    judged("fetch", dataset, nothing, num_workers=1)


def test_the_calling_process_is_slow() -> None:
    stats = judged("own process", Samples(60), nothing, num_workers=2, backend="thread", sampler=SlowKeys())
    assert "a sampler" in stats.verdict


def test_loop_and_workers_wait_in_turn() -> None:
    def step(number: int) -> None:
        time.sleep(0.1 if number % 12 == 11 else 0.0)

    settings = {"num_workers": 2, "backend": "thread", "prefetch_factor": 4}
    stats = judged("wait in turn", Samples(84, lambda key: time.sleep(0.005)), step, **settings)
    assert "prefetch_factor= (now 4)" in stats.verdict


def test_a_source_is_slow() -> None:
    def batches() -> Iterator[np.ndarray]:
        for step in range(60):
            time.sleep(0.005)
            yield np.full(8, step)

    with penstock.prefetch(batches) as ahead:
        for _ in ahead:
            pass
        stats = ahead.stats()
    rule = rule_of(stats)
    assert rule is not None and rule.name == "slow source"
    recorded("slow source", stats)
    assert "one thread reads the source" in stats.verdict


@pytest.mark.imports_torch
def test_torch_s_semantics_keep_the_number_of_workers_of_the_run() -> None:
    from penstock.torch import DataLoader

    for _ in range(RUNS):
        loader = DataLoader(Samples(60, lambda key: time.sleep(0.01)), num_workers=2, persistent_workers=True)
        for _ in loader:
            pass
        stats = loader.stats()
        if "samples wait" in stats.verdict:
            recorded("torch", stats)
            break
    assert "in the next run (without seed=" in stats.verdict and 'backend="thread"' not in stats.verdict
