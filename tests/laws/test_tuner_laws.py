"""The laws of the tuner, beside simulated loads: it stays within its bounds, comes to rest, and sees another load."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from loads import LOADS, NO_LIMIT, Run, Simulated, beginning, bounds

from penstock._schedule.tuner import Bounds, Interval, Range

RECORDED = Path(__file__).parents[1] / "recorded"


def about(low: float, high: float) -> st.SearchStrategy[float]:
    """Any order of magnitude between the two."""
    return st.floats(math.log(low), math.log(high)).map(math.exp)


loads = st.builds(
    Simulated,
    cpu=about(1e-5, 0.5),
    wait=st.just(0.0) | about(1e-4, 1.0),
    turn=st.just(0.0) | about(1e-5, 1.0),
    cpus=st.sampled_from([1.0, 1.5, 2.0, 4.0, 16.0]),
    at_once=st.just(1e9) | about(1, 40),
    unsteady=st.just(0.0) | st.floats(0, 0.5),
    boot=about(0.01, 2.0),
    noise=st.sampled_from([0.0, 0.05, 0.1]),
    each=st.sampled_from([0, 1 << 28]),
    batch=st.sampled_from([0, 1 << 20, 1 << 26]),
)
bounded = st.builds(
    lambda least, more, ahead, limit: (Range(least, least + more), Range(2, 2 * ahead), limit),
    st.integers(1, 3),
    st.integers(0, 40),
    st.sampled_from([1, 4]),
    st.sampled_from([NO_LIMIT, 2 << 30, 64 << 30]),
)


def started(load: Simulated, given: Any, seed: int = 0) -> Run:
    workers, prefetch, memory = given
    return Run(load, Bounds(workers, prefetch, load.cpus, memory), seed)


@given(load=loads, given_bounds=bounded, seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
@example(
    load=Simulated(cpu=35e-6, wait=10e-3, turn=367e-6, noise=0.1, at_once=21.5),
    given_bounds=((1, 64), (2, 2), NO_LIMIT),
    seed=0,
)
def test_a_stationary_load_is_left_alone_after_a_minute(load: Simulated, given_bounds: Any, seed: int) -> None:
    workers, prefetch, memory = given_bounds
    run = started(load, (Range(*workers), Range(*prefetch), memory), seed)
    changes = run.run(60 + 20 * load.step(workers[1]))
    assert len(changes) <= 16, changes
    assert run.run(60) == []


@given(
    given_bounds=bounded,
    cpus=st.floats(0.1, 64),
    intervals=st.lists(
        st.builds(
            Interval,
            waited=st.floats(0, 5),
            worked=st.floats(0, 5),
            caller_cpu=st.floats(0, 10),
            batches=st.integers(0, 1000),
            done=st.integers(0, 1000),
            busy=st.floats(0, 100),
            cpu=st.floats(0, 100),
            delayed=st.floats(0, 100),
            workers=st.integers(0, 50),
            memory=st.integers(0, 70 << 30),
        ),
        max_size=20,
    ),
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_measured_the_numbers_are_within_bounds(given_bounds: Any, cpus: float, intervals: Any) -> None:
    workers, prefetch, memory = given_bounds
    one, two = (beginning(Bounds(workers, prefetch, cpus, memory)) for _ in range(2))
    for interval in intervals:
        before = one.workers, one.prefetch_factor
        resize = one.decide(interval)
        one.check()
        assert two.decide(interval) == resize, "the same measurements, the same decision"
        if resize is not None:
            assert (resize.workers, resize.prefetch_factor) == (one.workers, one.prefetch_factor) != before
            assert resize.reason.endswith(".") and any(letter.isdigit() for letter in resize.reason)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("name", LOADS)
def test_five_seconds_suffice_for_nine_tenths_of_the_best_number(name: str, noise: float) -> None:
    load = replace(LOADS[name], noise=noise)
    run = Run(load, bounds(cpus=load.cpus, prefetch=8))
    run.run(12 if name == "waiting long" else 5)
    assert run.rate() >= 0.9 * load.best(32)
    assert len(run.changes) <= 8


@given(seed=st.integers(0, 999), turn=about(5e-3, 50e-3), noise=st.sampled_from([0.0, 0.05, 0.1]))
@settings(max_examples=40, deadline=None)
def test_if_samples_become_ten_times_as_slow_there_are_more_workers(seed: int, turn: float, noise: float) -> None:
    load = Simulated(wait=1.5 * turn, turn=turn, noise=noise)
    run = Run(load, bounds(), seed)
    run.run(20)
    few = run.tuner.workers
    run.load = replace(load, wait=10 * load.wait)
    run.run(20)
    assert run.rate() >= 0.9 * run.load.best(32)
    assert run.tuner.workers >= 15 > 2 * few
    run.load = load
    run.run(30)
    assert run.rate() >= 0.9 * load.best(32)
    assert run.tuner.workers < 8, "and fewer again when they are quick again"


@given(seed=st.integers(0, 999), step=about(5e-3, 100e-3), noise=st.sampled_from([0.0, 0.05, 0.1]))
@settings(max_examples=40, deadline=None)
def test_if_the_caller_becomes_slow_there_are_fewer_workers(seed: int, step: float, noise: float) -> None:
    run = Run(Simulated(wait=step, turn=step / 20, noise=noise), bounds(), seed)
    run.run(20)
    assert run.tuner.workers >= 20
    run.load = replace(run.load, turn=2 * step)
    run.run(60)
    assert run.tuner.workers <= 2
    assert run.rate() >= 0.9 * run.load.best(32)


@pytest.mark.parametrize("cpus", [1, 2, 3.5, 6, 16])
def test_workers_that_compute_are_no_more_than_the_processors(cpus: float) -> None:
    run = Run(Simulated(cpu=20e-3, cpus=cpus), bounds(cpus=cpus))
    run.run(20)
    assert max([run.tuner.workers, *(resize.workers for _, resize in run.changes)]) == math.ceil(cpus)


def test_workers_that_begin_to_compute_are_no_more_than_the_processors_soon() -> None:
    run = Run(Simulated(wait=50e-3, cpu=1e-3), bounds())
    run.run(10)
    assert run.tuner.workers == 32
    run.load = replace(run.load, wait=0.0, cpu=60e-3)
    run.run(10)
    assert run.tuner.workers == 2


@given(each=st.integers(50 << 20, 2 << 30), batch=st.integers(0, 64 << 20), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_workers_stop_growing_before_the_memory_is_used_up(each: int, batch: int, seed: int) -> None:
    limit = 8 << 30
    load = Simulated(wait=50e-3, cpu=1e-3, base=1 << 30, each=each, batch=batch, noise=0.1)
    run = Run(load, bounds(memory=limit), seed)
    run.run(60)
    assert max(interval.memory for interval in run.intervals) < limit
    assert run.run(60) == []
    assert 2 * run.tuner.workers * (each + 2 * batch) > 5 << 30 or run.tuner.workers == 32, "and not much earlier"


@dataclass(frozen=True)
class Held(Simulated):
    """One worker would be enough on average, but now and then a slow step holds it up."""

    def rate(self, workers: int, prefetch: int = 2) -> float:
        return super().rate(workers, prefetch) * (0.85 if workers == 1 else 1.0)


def test_a_number_that_was_too_small_is_not_tried_again() -> None:
    run = Run(Held(cpu=5e-3, turn=20e-3), bounds())
    assert [resize.workers for _, resize in run.run(60)] == [1, 2]


def test_memory_that_others_use_up_takes_workers_away() -> None:
    limit = 8 << 30
    run = Run(Simulated(wait=50e-3, cpu=1e-3, each=100 << 20), bounds(memory=limit, prefetch=8))
    run.run(10)
    assert run.tuner.workers == 32
    run.load = replace(run.load, base=6 << 30)
    last = run.run(20)[-1][1]
    assert run.intervals[-1].memory < limit
    assert "memory" in last.reason and last.workers < 32


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json")), ids=lambda path: path.stem)
def test_a_recorded_run_of_a_real_loader_is_decided_as_it_was(path: Path) -> None:
    """Written by `python -m bench.auto --record tests/recorded`, on two processors that others used too."""
    run = json.loads(path.read_text())
    limits = run["bounds"]
    tuner = beginning(Bounds(Range(*limits["workers"]), Range(*limits["prefetch"]), limits["cpus"], limits["memory"]))
    start = [tuner.workers, tuner.prefetch_factor]
    resizes = filter(None, [tuner.decide(Interval(*values)) for values in run["intervals"]])
    assert [start, *([resize.workers, resize.prefetch_factor] for resize in resizes)] == run["numbers"]
    low, high = EXPECTED[path.stem]
    assert low <= tuner.workers <= high


# Where the recorded runs must end.
EXPECTED = {
    "computing": (1, 2),
    "waiting": (24, 32),
    "half_and_half": (2, 8),
    "tiny": (1, 2),
    "copying": (1, 4),
    "slow_caller": (1, 2),
    "quick_caller": (10, 24),
    "little_memory": (5, 8),
}


def test_the_quickest_loader_is_not_given_more_workers() -> None:
    """A caller that only loops over ints is in `next()` nearly all the time, and computes there."""
    run = Run(replace(LOADS["tiny"], noise=0.2), bounds(cpus=64))
    assert all(resize.workers <= 2 for _, resize in run.run(60))
