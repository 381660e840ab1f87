"""A stand-in for a Ray cluster: the nodes are processes of this machine, which a forkserver starts in milliseconds.

Everything but `penstock.backends._ray.cluster` is the real thing: links, handshakes, workers, the backend.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from penstock import backends
from penstock._work.runner import Job
from penstock.backends._ray.backend import RayBackend, start
from penstock.backends._ray.handshake import Tls
from penstock.backends._ray.remote import Call, End

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["standin", "penstock.backends._ray.actor"])

NODE = "10.0.0.{}"


def node_main(call: tuple[Any, ...], node: str, shipped: bytes, environment: dict[str, str]) -> None:
    """What an actor does, in its main thread."""
    from penstock.backends._ray.actor import serve

    os.environ.update(environment)
    serve(call, node, lambda: shipped)


class LocalActor:
    def __init__(self, process: Any) -> None:
        self.process = process

    def kill(self) -> None:
        with suppress(ValueError):  # it was reaped
            self.process.kill()


class LocalCluster:
    """`room`: how many workers can be placed. `environment`: of the nodes. `refuses`: errors of starts to come."""

    address = "127.0.0.1"

    def __init__(self, room: int = 1000) -> None:
        self.tls: Tls | None = None
        self.room, self.is_up = room, True
        self.environment: dict[str, str] = {}
        self.processes: list[Any] = []
        self.main: Callable[..., None] = node_main
        self._threads: list[threading.Thread] = []
        self.started = 0

    def is_there(self) -> bool:
        return self.is_up

    def ship(self, data: memoryview) -> object:
        return bytes(data)

    def start(self, call: Call, shipped: object, told: Callable[[End], None]) -> LocalActor:
        if not self.is_up:
            raise RuntimeError("the stand-in was shut down")
        self.started += 1
        args = (tuple(call), NODE.format(call.seat % 2), shipped, self.environment)
        process: Any = _context.Process(target=self.main, args=args, daemon=True)
        if self.room <= 0:
            return LocalActor(_Unplaced())
        self.room -= 1
        process.start()
        self.processes.append(process)
        watcher = threading.Thread(target=self._watch, args=(process, told), daemon=True)
        self._threads.append(watcher)
        watcher.start()
        return LocalActor(process)

    def _watch(self, process: Any, told: Callable[[End], None]) -> None:
        process.join()
        self.room += 1
        code = process.exitcode
        how = "ended" if not code else f"exited with code {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        told(End(how))

    def shortage(self, workers: int) -> str:
        return f"{workers} wait for a place, and {self.room} are free."

    def close(self) -> None:
        """After the loaders: no process may be left."""
        for thread in self._threads:
            thread.join(10)
        left = [process for process in self.processes if process.is_alive()]
        for process in left:
            process.kill()
            process.join()
        for process in self.processes:
            process.close()
        assert not left, f"{len(left)} workers were left behind"


class _Unplaced:
    def kill(self) -> None:
        pass


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
