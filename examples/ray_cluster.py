"""A cluster of two nodes on this machine, and an epoch that survives the loss of one of them.

It needs `pip install "penstock[ray]"`. On a real cluster you run the two `ray start` commands on two machines, and
only `load` is your program.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import ray

import penstock

HEAD, SECOND = ray.util.get_node_ip_address(), "127.0.0.2"  # the second is another machine only by name

# Two nodes of one machine must not use the same ports.
PORTS = ("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port", "runtime-env-agent-port")


class Samples(penstock.Dataset):
    """Sample i is noise that takes some milliseconds to make."""

    def __len__(self) -> int:
        return 2_000

    def __getitem__(self, key: int) -> dict[str, object]:
        time.sleep(0.004)
        return {"key": key, "noise": penstock.rng().standard_normal(256)}


@contextmanager
def node(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`ray start` with these arguments, as on a machine of its own. The node ends with the block."""
    ray_command = Path(sys.executable).with_name("ray")
    ports = ["min-worker-port=0", "max-worker-port=0", *(f"{name}={free_port()}" for name in PORTS)]
    options = [*(f"--{port}" for port in ports), "--num-cpus=2", "--disable-usage-stats", *arguments]
    # If an earlier ray.init() left a token in ~/.ray, `ray start` asks for it, and ray.init(address=) sends none.
    environment = {"RAY_AUTH_MODE": "disabled", **os.environ}
    process = subprocess.Popen(
        [ray_command, "start", "--block", *options], env=environment, stdout=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    with socket.create_server((HEAD, 0)) as found:
        return int(found.getsockname()[1])


def wait_until(condition: Callable[[], bool], node: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if node.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("A node has ended, or has not started within 60 s: see what `ray start` says.")
        time.sleep(0.1)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HEAD, port)) == 0


def kill(node: subprocess.Popen[bytes]) -> None:
    """Kills all processes of the node at once, as if the machine lost its power."""
    family = [node.pid]
    for pid in family:
        os.kill(pid, signal.SIGSTOP)  # so that it starts no process that is not found here
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            family += map(int, children.read_text().split())
    for pid in family:
        os.kill(pid, signal.SIGKILL)


def digest(batch: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(batch["key"].tobytes() + batch["noise"].tobytes()).hexdigest()


def load(second: subprocess.Popen[bytes]) -> list[str]:
    """An epoch with two workers on each node. In the middle, the second node is lost."""
    # The three lines that change: ray.init, backend=, and how many workers.
    with penstock.DataLoader(Samples(), 20, shuffle=True, seed=1, backend="ray", num_workers=4) as loader:
        found, batches = [], iter(loader)
        wait_until(lambda: all(worker.node for worker in loader.workers), second)  # only so that both nodes have work
        for step, batch in enumerate(batches):
            found.append(digest(batch))
            if step == 50:
                kill(second)
                show(loader, "When the second node is lost")
        show(loader, "At the end")
        return found


def show(loader: penstock.DataLoader, when: str) -> None:
    """Which node did what, by `loader.stats()`."""
    steps: Counter[str] = Counter()
    for worker in loader.stats().epoch.workers:
        steps[worker.node or "on no node yet"] += worker.steps
    done = ", ".join(f"{name}: {count} steps" for name, count in sorted(steps.items()))
    print(f"{when}: {done}")


def main() -> None:
    port = free_port()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
        options = [f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false"]
        head = stack.enter_context(node("--head", f"--node-ip-address={HEAD}", *options))
        wait_until(lambda: listens(port), head)
        second = stack.enter_context(node(f"--address={HEAD}:{port}", f"--node-ip-address={SECOND}"))
        ray.init(address=f"{HEAD}:{port}", log_to_driver=False, logging_level="error")
        stack.callback(ray.shutdown)
        wait_until(lambda: sum(one["Alive"] for one in ray.nodes()) == 2, second)
        found = load(second)
    plain = [digest(batch) for batch in penstock.DataLoader(Samples(), 20, shuffle=True, seed=1)]
    print(f"{len(found)} batches, equal to those of a plain loop: {found == plain}")


if __name__ == "__main__":
    main()
