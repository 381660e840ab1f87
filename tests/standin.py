"""A stand-in for a Ray cluster: the nodes are processes of this machine, which a forkserver starts in milliseconds.

Everything but `penstock.backends._ray.cluster` is the real thing: links, handshakes, workers, the backend.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from penstock import DataLoader, backends
from penstock._work.job import Job
from penstock.backends._ray.backend import RayBackend, start
from penstock.backends._ray.handshake import TlsFiles
from penstock.backends._ray.remote import Call, ProcessEnd

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["standin", "penstock.backends._ray.actor"])

NODE = "10.0.0.{}"


def node_main(call: tuple[Any, ...], node: str, shipped: bytes, environment: dict[str, str]) -> None:
    """What an actor does, in its main thread."""
    from penstock.backends._ray.actor import serve

    os.environ.update(environment)
    serve(call, node, lambda: shipped)


def rogue_main(call: tuple[Any, ...], node: str, shipped: bytes, environment: dict[str, str]) -> None:
    """A worker that sends half of a wrong batch, and the other half much later: when its link was cut."""
    from penstock._measure.gauges import Gauges
    from penstock._wire.reply import REPLY
    from penstock._wire.task import NOTICE
    from penstock.backends._ray.handshake import connect, this_process
    from penstock.backends._ray.link import READY, REPLIED, head

    address, encrypted, token, worker, _ = call
    link = connect(address, encrypted, token, this_process(worker, node, 0))
    link.receive(link.receive_head()[3])
    figures = Gauges(None).tell(0)
    link.send(head(READY, len(figures)), figures)
    size = link.receive_head()[1]
    seq = NOTICE.unpack(link.receive(NOTICE.size))[0]
    link.receive(size)
    link.send(head(REPLIED, seq, 0, 2000, 0, len(figures)), bytes(REPLY.size), figures, b"\xff" * 1000)
    with suppress(EOFError, OSError):
        while True:
            link.receive(1)  # until it is cut
    with suppress(OSError):
        link.send(b"\xff" * 1000)
    signal.pause()


def liar_main(call: tuple[Any, ...], node: str, shipped: bytes, environment: dict[str, str]) -> None:
    """A worker with other versions: those in the environment."""
    from penstock.backends._ray import handshake

    lies = {name.removeprefix("VERSION_"): version for name, version in environment.items() if "VERSION_" in name}
    truth = handshake.versions()
    handshake.versions = lambda: {**truth, **lies}
    node_main(call, node, shipped, environment)


def _kill(process: Any) -> None:
    with suppress(ValueError):  # it was reaped
        process.kill()


class LocalCluster:
    """`room`: how many workers can be placed. `environment`: of the nodes. `mains`: of the first workers."""

    address = "127.0.0.1"

    def __init__(self, room: int = 1000) -> None:
        self.tls: TlsFiles | None = None
        self.room, self.is_up = room, True
        self.environment: dict[str, str] = {}
        self.processes: list[Any] = []
        self.mains: list[Callable[..., None]] = []
        self._threads: list[threading.Thread] = []
        self.started = 0
        self.avoided: list[set[str]] = []  # by each start

    def is_there(self) -> bool:
        return self.is_up

    def ship(self, data: memoryview) -> object:
        return bytes(data)

    def start(
        self, call: Call, shipped: object, told: Callable[[ProcessEnd], None], avoid: Collection[str]
    ) -> Callable[[], None]:
        self.avoided.append({*avoid})
        if not self.is_up:
            raise RuntimeError("the stand-in was shut down")
        self.started += 1
        args = (tuple(call), NODE.format(call.seat % 2), shipped, self.environment)
        main = self.mains.pop(0) if self.mains else node_main
        process: Any = _context.Process(target=main, args=args, daemon=True)
        if self.room <= 0:
            return bool  # nothing to kill
        self.room -= 1
        process.start()
        self.processes.append(process)
        watcher = threading.Thread(target=self._watch, args=(process, told), daemon=True)
        self._threads.append(watcher)
        watcher.start()
        return bool if main is rogue_main else partial(_kill, process)  # as if the node of the rogue were cut off

    def _watch(self, process: Any, told: Callable[[ProcessEnd], None]) -> None:
        process.join()
        self.room += 1
        code = process.exitcode
        how = "ended" if not code else f"exited with code {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        told(ProcessEnd(how))

    def shortage(self, workers: int) -> str:
        return f"{workers} wait for a place, and {self.room} are free."

    def close(self) -> None:
        """After the loaders: no process may be left."""
        deadline = time.monotonic() + 60
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        left = [process for process in self.processes if process.is_alive()]
        for process in left:
            process.kill()
            process.join()
        for thread in self._threads:
            thread.join()
        for process in self.processes:
            process.close()
        assert not left, f"{len(left)} workers were left behind"


@contextmanager
def standing_in(cluster: LocalCluster, patience: float = 30.0) -> Iterator[list[RayBackend]]:
    """In the block, `backend="standin"` runs workers on this cluster. Yields the backends that were made."""
    made: list[RayBackend] = []

    def make(job: Job, context: Any) -> RayBackend:
        made.append(start(job, cluster, patience))
        return made[-1]

    backends.register("standin", make)
    try:
        yield made
    finally:
        backends.unregister("standin")
        cluster.close()


def warm_up() -> None:
    """Starts the forkserver, which stays until this process ends."""
    process: Any = _context.Process(target=int)
    process.start()
    process.join()
    process.close()


# Loaders on the stand-in.


class Slow:
    """A sample takes a millisecond."""

    def __len__(self) -> int:
        return 120

    def __getitem__(self, key: int) -> Any:
        time.sleep(0.001)
        return np.full(250, key)


def on(dataset: Any, *args: Any, **given: Any) -> DataLoader[Any]:
    return DataLoader(dataset, *args, **{"num_workers": 2, "backend": "standin", "seed": 1} | given)


def plain(dataset: Any, *args: Any, **given: Any) -> list[Any]:
    return list(DataLoader(dataset, *args, seed=1, **given))


def is_up(loader: Any) -> bool:
    return bool(loader.workers) and all(worker.state.name == "UP" for worker in loader.workers)
