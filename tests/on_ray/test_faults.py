"""Actors, nodes and the driver are killed, stopped and cut off: the batches stay those of the plain loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import ray

import penstock
from penstock.testing._laws import same

from .conftest import OTHER, Nodes, actors, until

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


def read(dataset: Any, faults: dict[int, Callable[[Any], object]], **given: Any) -> tuple[list[Any], list[float]]:
    """All batches of an epoch on the cluster, and how long each took. `faults[step](loader)` precedes a step."""
    workers = 1 if isinstance(dataset, Counting) else 2
    with_ray: dict[str, Any] = {"backend": "ray", "num_workers": workers, "ray_options": {"patience": 60}}
    loader = penstock.DataLoader(dataset, retries=5, **with_ray | GIVEN | given)
    with closing(loader):
        batches, found, times = iter(loader), [], []
        for step in range(10**6):
            if step in faults:
                until(lambda: all(worker.state.name == "UP" for worker in loader.workers), "all workers are up")
                faults[step](loader)
            began = time.monotonic()
            batch = next(batches, None)
            times.append(time.monotonic() - began)
            if batch is None:
                break
            found.append(batch)
        closed = time.monotonic()
        loader.close()
        until(lambda: not actors(), "no actor is left", 2)
        assert time.monotonic() - closed < 2
        return found, times


def check(dataset: Any, faults: dict[int, Callable[[Any], object]], longest: float = LONGEST, **given: Any) -> None:
    plain = list(penstock.DataLoader(dataset, **GIVEN | {k: v for k, v in given.items() if k == "shuffle"}))
    found, times = read(dataset, faults, **given)
    same(found, plain)
    print(f"longest next(): {max(times[1:]):.2f} s")
    assert max(times[1:]) < longest  # not the first: the workers start


def kill(loader: Any) -> None:
    os.kill(loader.workers[0].pid, signal.SIGKILL)


def kill_other(loader: Any) -> None:
    os.kill(loader.workers[-1].pid, signal.SIGKILL)


def test_an_actor_that_is_killed_twice_is_not_noticed(nodes: Nodes) -> None:
    check(Slow(), {10: kill, 30: kill_other, 31: kill}, shuffle=True)


def test_workers_are_spread_over_the_nodes_and_say_where_they_are(nodes: Nodes) -> None:
    seen: set[str] = set()
    check(Slow(), {10: lambda loader: seen.update(worker.node for worker in loader.workers)})
    assert seen == {OTHER, ray.util.get_node_ip_address()}


@pytest.mark.parametrize("graceful", [True, False], ids=["removed", "killed"])
def test_a_node_that_is_gone_is_not_noticed(nodes: Nodes, graceful: bool) -> None:
    check(Slow(), {10: lambda loader: nodes.remove(graceful=graceful)})


def test_a_raylet_that_is_killed_alone_is_not_noticed(nodes: Nodes) -> None:
    def kill_raylet(loader: Any) -> None:
        os.kill(nodes.second.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    try:
        check(Slow(), {10: kill_raylet})
    finally:
        nodes.remove(graceful=False)


def test_the_reader_of_a_stream_that_is_killed_is_replaced(nodes: Nodes) -> None:
    check(Counting(), {5: kill, 20: kill}, longest=4.0)  # nobody else can read on while another is started


def test_a_stopped_actor_is_replaced_and_what_it_sends_later_is_ignored(nodes: Nodes) -> None:
    stopped: list[int] = []

    def stop(loader: Any) -> None:
        stopped.append(loader.workers[0].pid)
        os.kill(stopped[0], signal.SIGSTOP)

    def go_on(loader: Any) -> None:
        assert stopped[0] not in [worker.pid for worker in loader.workers]
        os.kill(stopped[0], signal.SIGCONT)

    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            check(Slow(), {10: stop, 60: go_on}, hang=0.5, longest=3.0)
    finally:
        for pid in stopped:
            if pid in actors():
                os.kill(pid, signal.SIGKILL)
    assert any("for more than 0.5 seconds (hang=)" in str(one.message) for one in said)


def test_nothing_is_left_if_the_driver_is_killed(nodes: Nodes) -> None:
    program = f"""
        import os, signal, sys, time
        import numpy as np, penstock, ray
        ray.init(address={nodes.cluster.address!r}, log_to_driver=False)
        def slow(key):
            time.sleep(100 if key > 40 else 0.001)
            return key
        class Busy:
            __len__ = lambda self: 1000
            __getitem__ = lambda self, key: slow(key)
        loader = penstock.DataLoader(Busy(), backend="ray", num_workers=2)
        for batch in loader:
            if batch[0] == 20:
                print(*(worker.pid for worker in loader.workers if worker.pid), flush=True)
                time.sleep(100)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [*map(int, driver.stdout.readline().split())]
        assert pids and {*pids} <= {*actors()}
        driver.kill()
        began = time.monotonic()
        until(lambda: not actors(), "no actor is left", 10)
        assert time.monotonic() - began < 2
