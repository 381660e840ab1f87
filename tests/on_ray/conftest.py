"""A cluster of two nodes on this machine, for all tests of a session: `make ray`. Without ray, they are skipped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

ray = pytest.importorskip("ray", reason="these tests need Ray: make ray")

from ray.cluster_utils import Cluster  # noqa: E402

OTHER = "127.0.0.2"
"""The address of the second node, which is another one only by name."""


class Nodes:
    """The cluster. Tests may remove the second node, and have it back."""

    all: ClassVar[list[Nodes]] = []

    def __init__(self) -> None:
        # By default Ray knows after 15 seconds that a node is dead, and places actors there meanwhile.
        quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 4}
        head = {"num_cpus": 6, "include_dashboard": False, "resources": {"head": 100}, "_system_config": quick}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.second: Any = None
        Nodes.all.append(self)
        self.restore()
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="warning")

    def restore(self) -> Any:
        """The second node, a new one if it is gone."""
        if self.second is None:
            self.second = self.cluster.add_node(num_cpus=6, node_ip_address=OTHER, resources={"second": 100})
        return self.second

    def remove(self, *, graceful: bool) -> None:
        node, self.second = self.second, None
        self.cluster.remove_node(node, allow_graceful=graceful)

    def settle(self) -> None:
        """Waits until the cluster knows who lives."""
        until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2, "Ray knows who lives")

    def close(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    nodes = Nodes()
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def nodes(cluster: Nodes) -> Nodes:
    """The cluster with both nodes."""
    cluster.restore()
    cluster.settle()
    return cluster


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """In the place of the check of other tests: Ray has descriptors and threads of its own. Actors are looked at."""
    yield
    if ray.is_initialized():
        until(lambda: not actors(), "no actor is left", 2)


def actors() -> list[int]:
    """The processes of this machine that are actors of penstock's, in the cluster of these tests."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                line = (folder / "cmdline").read_bytes()
                if line.startswith(b"ray::PenstockWorker") and _is_alive(folder) and _is_ours(folder):
                    found.append(int(folder.name))
    return found


def _is_ours(folder: Path) -> bool:
    """Whether the process writes its log to the folder of our cluster: there may be others on this machine."""
    folders = [nodes.cluster.head_node.get_session_dir_path() for nodes in Nodes.all]
    files = [os.readlink(file) for file in (folder / "fd").iterdir()]
    return any(file.startswith(tuple(folders)) for file in files)


def _is_alive(folder: Path) -> bool:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it has not happened that {what}"
        time.sleep(0.01)
