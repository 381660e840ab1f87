"""Datasets that take their time, and epochs of them on the cluster, with faults, beside the plain loop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from typing import Any

import cloudpickle
import numpy as np

import penstock
from penstock.testing._laws import same

from .conftest import actors, until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the nodes do not have the tests

LONGEST = 2.0
"""Seconds that one next() may take, whatever happens to actors and nodes."""


class Slow:
    """Samples of a few milliseconds, with random numbers."""

    def __init__(self, length: int = 400) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> Any:
        time.sleep(0.002)
        return {"key": key, "noise": penstock.rng().random(50), "node": np.zeros(3)}


class Counting(penstock.IterableDataset):
    """A stream that can be continued."""

    def __init__(self, length: int = 300) -> None:
        self.at, self.length = 0, length

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.length:
            time.sleep(0.002)
            self.at += 1
            yield self.at, penstock.rng().random()
        self.at = 0

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


GIVEN: dict[str, Any] = {"batch_size": 4, "seed": 3}


def read(
    dataset: Any, faults: dict[int, Callable[[Any], object]], left: Collection[int] = (), **given: Any
) -> tuple[list[Any], list[float]]:
    """All batches of an epoch on the cluster, and how long each took. `faults[step](loader)` precedes a step.

    When the loader is closed, no actor is left, but for those in `left`.
    """
    workers = 1 if isinstance(dataset, Counting) else 2
    with_ray: dict[str, Any] = {"backend": "ray", "num_workers": workers, "ray_options": {"patience": 60}}
    loader = penstock.DataLoader(dataset, retries=5, **with_ray | GIVEN | given)
    with closing(loader):
        batches, found, times = iter(loader), [], []
        for step in range(10**6):
            if step in faults:
                until(lambda: all(worker.state.name == "UP" for worker in loader.workers), "all workers are up", 120)
                faults[step](loader)
            began = time.monotonic()
            batch = next(batches, None)
            times.append(time.monotonic() - began)
            if batch is None:
                break
            found.append(batch)
        closed = time.monotonic()
        loader.close()
        until(lambda: not {*actors()} - {*left}, "no actor is left", 2)
        assert time.monotonic() - closed < 2
        return found, times


def check(dataset: Any, faults: dict[int, Callable[[Any], object]], longest: float = LONGEST, **given: Any) -> None:
    plain = list(penstock.DataLoader(dataset, **GIVEN | {name: given[name] for name in given if name == "shuffle"}))
    found, times = read(dataset, faults, **given)
    same(found, plain)
    print(f"longest next(): {max(times[1:]):.2f} s")
    assert max(times[1:]) < longest  # not the first: the workers start
