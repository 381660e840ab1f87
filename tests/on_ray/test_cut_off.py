"""A node whose network cable is pulled: it is in a network namespace, and its link goes down. Needs root and `ip`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray

from .conftest import Nodes, actors, until
from .reading import Slow, check

FAR = "10.77.0.2"
_NAME = f"penstock{os.getpid()}"
_LINK = f"pens{os.getpid() % 100000}"


def ip(command: str) -> str:
    return subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True).stdout


def inside() -> list[int]:
    """The processes of the namespace."""
    return [*map(int, ip(f"netns pids {_NAME}").split())]


@pytest.fixture
def far_node(nodes: Nodes) -> Iterator[str]:
    """A third node, behind a link of its own. Yields the name of the link."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip")
    try:
        ip(f"netns add {_NAME}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr}")
    try:
        ip(f"link add {_LINK} type veth peer name far netns {_NAME}")
        ip(f"addr add 10.77.0.1/24 dev {_LINK}")
        ip(f"link set {_LINK} up")
        for command in (f"addr add {FAR}/24 dev far", "link set far up", "link set lo up"):
            ip(f"-n {_NAME} {command}")
        ip(f"-n {_NAME} route add default via 10.77.0.1")
        start = [Path(sys.executable).parent / "ray", "start", f"--address={nodes.cluster.address}", "--block"]
        start += [f"--node-ip-address={FAR}", "--num-cpus=6"]
        raylet = subprocess.Popen(["ip", "netns", "exec", _NAME, *start], stdout=subprocess.DEVNULL)
        try:
            until(lambda: alive() == 3, "the third node has joined", 60)
            yield _LINK
        finally:
            for pid in inside():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raylet.wait()
            until(lambda: not inside(), "the third node is gone")
            until(lambda: alive() == 2, "Ray knows that it is gone", 60)
    finally:
        with suppress(subprocess.CalledProcessError):
            ip(f"link del {_LINK}")
        ip(f"netns del {_NAME}")


def alive() -> int:
    return sum(node["Alive"] for node in ray.nodes())


def test_a_node_that_is_cut_off_is_not_noticed_for_long(far_node: str) -> None:
    far: list[int] = []

    def pull(loader: Any) -> None:
        far.extend(worker.pid for worker in loader.workers if worker.node == FAR)
        assert far, [worker.node for worker in loader.workers]
        ip(f"link set {far_node} down")

    check(Slow(2000), {10: pull}, longest=15.0, num_workers=3, left=far)
    # Nobody waits for its actors any more. They learn that when the network is back, or end after a minute.
    ip(f"link set {far_node} up")
    until(lambda: not {*far} & {*actors()}, "the actors of the far node have ended", 90)
