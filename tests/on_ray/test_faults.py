"""Actors, nodes and the driver are killed, stopped and cut off: the batches stay those of the plain loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from contextlib import closing
from typing import Any

import pytest
import ray

import penstock

from .conftest import OTHER, Nodes, actors, until
from .reading import Counting, Slow, check


def kill(loader: Any) -> None:
    os.kill(loader.workers[0].pid, signal.SIGKILL)


def kill_other(loader: Any) -> None:
    os.kill(loader.workers[-1].pid, signal.SIGKILL)


def test_an_actor_that_is_killed_twice_is_not_noticed(nodes: Nodes) -> None:
    check(Slow(), {10: kill, 30: kill}, shuffle=True)


def test_if_all_actors_are_killed_at_once_others_are_started(nodes: Nodes) -> None:
    def kill_all(loader: Any) -> None:
        kill(loader)
        kill_other(loader)

    check(Slow(), {10: kill_all})  # as long as an actor takes to start


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


def test_a_worker_of_a_node_that_does_not_answer_is_replaced_elsewhere_before_ray_notices(nodes: Nodes) -> None:
    """With a raylet that is stopped, Ray takes half a minute or more."""
    given: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "retries": 5, "ray_options": {"patience": 60}}
    with closing(penstock.DataLoader(Slow(1_000_000), backend="ray", **given)) as loader:
        batches = iter(loader)

        def are_up() -> bool:
            next(batches)
            return [worker.state.name for worker in loader.workers] == ["UP"] * 2

        until(are_up, "both workers are up", 60)
        (lost,) = [worker.pid for worker in loader.workers if worker.node == OTHER]
        try:
            os.kill(nodes.second.all_processes["raylet"][0].process.pid, signal.SIGSTOP)
            os.kill(lost, signal.SIGKILL)
            until(lambda: are_up() and lost not in [worker.pid for worker in loader.workers], "it is replaced", 20)
            assert OTHER not in [worker.node for worker in loader.workers]
            assert sum(node["Alive"] for node in ray.nodes()) == 2
        finally:
            nodes.remove(graceful=False)


def test_the_reader_of_a_stream_that_is_killed_is_replaced(nodes: Nodes) -> None:
    check(Counting(), {5: kill, 20: kill})  # nobody else can read on while another is started


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
            check(Slow(), {10: stop, 60: go_on}, hang=0.5)
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
