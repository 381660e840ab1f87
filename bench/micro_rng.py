"""The cost of random numbers: the global generators for each step, and calls of `penstock.rng()`.

python -m bench.micro_rng
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

import penstock
from penstock._feed.keys import KeyFetch
from penstock._measure.gauges import NO_GAUGE
from penstock._memory.layout import Writer
from penstock._memory.slabs import Slabs
from penstock._system.interrupts import with_loan
from penstock._wire.task import Task
from penstock._work.job import Job
from penstock._work.runner import Runner
from penstock._work.seeding import Borrowed, seed_step

KEYS = np.arange(64)


class Plain(penstock.Dataset[int]):
    def __getitem__(self, key: int) -> int:
        return key


class CallsOnce(Plain):
    """Calls `rng()` while a sample is made, the only time when it may be called."""

    def __getitem__(self, key: int) -> int:
        penstock.rng()
        return key


class CallsTwice(Plain):
    def __getitem__(self, key: int) -> int:
        penstock.rng()
        penstock.rng()
        return key


def microseconds(call: Callable[[], object], number: int = 500) -> float:
    """Microseconds of a call, as the median of several rounds."""
    rounds = sorted(timeit.repeat(call, number=number, repeat=7))
    return rounds[3] / number * 1e6


def step(dataset: Any, **given: Any) -> float:
    """A step of 64 samples, from task to batch, without the generators of the process."""
    job = Job(dataset, KeyFetch, None, None, 1, 5, False, **given)
    runner = Runner(job, "the bench")
    root = Slabs(None).root(0)
    task = Task(0, 0, 0, 3, KEYS)
    return microseconds(lambda: runner.run(task, Writer(root), NO_GAUGE))


def main() -> None:
    def borrow() -> None:
        with_loan(Borrowed(5, 0, 3), bool)

    plain, once, twice = step(Plain()), step(CallsOnce()), step(CallsTwice())
    print(f"global generators, a step in a worker  {microseconds(lambda: seed_step(5, 0, 3)):8.2f} µs (budget 30)")
    print(f"global generators, a step inline       {microseconds(borrow):8.2f} µs (budget 100)")
    print(f"a step of 64 ints, without rng()       {plain:8.2f} µs")
    print(f"  with on_error='skip'                 {step(Plain(), on_error='skip'):8.2f} µs")
    print(f"rng() of a sample                      {(once - plain) / 64:8.2f} µs (budget 15)")
    print(f"rng() again for the same sample        {(twice - once) / 64:8.2f} µs")


if __name__ == "__main__":
    main()
