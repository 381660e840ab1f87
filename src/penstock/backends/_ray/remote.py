"""The driver's view of a worker on another node."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Collection
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from penstock.backends._ray.handshake import Hello, TlsFiles
from penstock.backends._ray.link import STACK, Link, head


class ProcessEnd(NamedTuple):
    """How a worker's process ended."""

    how: str  # a clause that follows the worker's name in a message
    cause: BaseException | None = None
    broken: BaseException | None = None  # an error that would stop every other worker from starting too


class Call(NamedTuple):
    """What a worker process needs to connect to the driver: the first argument of `actor.serve`."""

    address: tuple[str, int]
    encrypted: bool
    token: bytes
    worker: int
    seat: int


KillWorker = Callable[[], None]
"""Kills a worker's process. Must not be called in one of Ray's threads."""


class Cluster(Protocol):
    """The part of Ray that the backend needs."""

    address: str
    """The address of this node."""
    tls: TlsFiles | None

    def ship(self, data: memoryview) -> object:
        """Makes these bytes available on all nodes."""

    def start(self, call: Call, shipped: object, told: Any, avoid: Collection[str]) -> KillWorker:
        """Starts a worker once a node has room. Returns a function that kills the worker.

        Nodes in `avoid` are used only if no other node will do. `told(end)` is called once, in any thread, when the
        process has ended.
        """

    def is_there(self) -> bool:
        """False once the cluster has been shut down. After that, no other method may be called."""

    def shortage(self, workers: int) -> str:
        """Returns a message: what each worker needs, what the cluster has free, and whether that is enough."""


class RemoteWorkerState(enum.Enum):
    COMING = "waits for a place, or starts"
    STARTING = "connected, and unpacks the dataset"
    UP = "takes tasks"
    LEAVING = "was asked to leave"
    GONE = "gone"


class RemoteWorker:
    """An element of `loader.workers`: a handle with `pid`, `node`, `is_alive()`, `kill()` and `join()`."""

    kill: KillWorker

    def __init__(self, number: int, seat: int) -> None:
        self.id, self.seat = number, seat
        self.who, self.node, self.pid = f"worker {seat} (not started yet)", "", 0
        self.state = RemoteWorkerState.COMING
        self.link: Link | None = None
        self.hired = time.monotonic()
        self.shift = 0  # nanoseconds from the worker's clock to ours
        self.began = 0.0  # `time.monotonic` when it began its current task
        self.hung = 0.0  # the limit in seconds, if it was killed because it hung
        self.end: ProcessEnd | None = None
        self.told = threading.Event()  # the cluster has reported its end
        self.ended = threading.Event()  # nothing more is received from it
        self.stacks: SimpleQueue[tuple[int, str, int, int]] = SimpleQueue()

    def __repr__(self) -> str:
        return f"<RemoteWorker {self.seat} pid={self.pid} node={self.node!r} {self.state.value}>"

    def greet(self, hello: Hello, link: Link) -> None:
        self.link, self.pid, self.node = link, hello.pid, hello.node
        self.shift = time.perf_counter_ns() - hello.clock
        self.who = f"worker {self.seat} (pid {hello.pid} on {hello.node})"
        self.state = RemoteWorkerState.STARTING

    def is_alive(self) -> bool:
        """True until the worker's process is known to have ended."""
        return self.state is not RemoteWorkerState.GONE and not self.ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        self.ended.wait(timeout)

    def ask(self, ticket: int) -> None:
        """Asks the worker for its stack, which `answer` returns."""
        if self.link is not None:
            self.link.post(head(STACK, ticket))
            self.link.push()

    def answer(self, ticket: int, deadline: float) -> tuple[str, int, int] | None:
        """Returns (stack, current task or -1, the task's current step), or None if no answer comes in time."""
        try:
            while True:
                found, told, seq, at = self.stacks.get(timeout=max(0.0, deadline - time.monotonic()))
                if found == ticket:
                    return told, seq, at
        except Empty:
            return None
