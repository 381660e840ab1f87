"""A driver with 1,024 workers on 64 nodes, by simulation: `python -m bench.fleet`.

The engine, the scheduler and the driver's side of `backend="ray"` are real, except sockets and threads: `bench.crowd`
measures those. The workers are objects, and the network is a calculation: messages take 1 ms, and all batches share
10 Gbit/s into the driver. Time is virtual, and the processor time that the driver really uses passes in it too. So
the driver saturates here where it would saturate with a core of its own.

Four questions: are the batches those of a plain loop, although a node is lost every minute? Does a batch cost the
driver more if there are more workers? How many batches arrive in a second? And how many with 8 drivers, one for each
rank?
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np

import penstock
from bench.run import machine
from penstock import backends
from penstock._at_work import set_worker_info
from penstock._measure.gauges import Gauge, Gauges
from penstock._wire.reply import REPLY, Replier
from penstock._wire.shipment import unpack_from
from penstock._wire.task import NOTICE, Notice
from penstock._work.job import Job
from penstock.backends._executor import TaskExecutor
from penstock.backends._ray import actor, handshake
from penstock.backends._ray.backend import RayBackend, start
from penstock.backends._ray.exchange import _TOOK
from penstock.backends._ray.link import HEAD, READY, TASK, head
from penstock.backends._ray.remote import Call, KillWorker, ProcessEnd

LATENCY, BANDWIDTH = 1e-3, 10e9 / 8  # seconds; bytes a second
WORKERS, ON_NODE = 1024, 16
START = 0.7  # seconds from the request to a worker that can connect
NOTICED, REPLACED = 1.0, 30.0  # seconds until a lost node is noticed, and until another one is there
BATCH = 64  # samples
STEP = 0.04  # seconds that a worker takes for it


class Numbers:
    """Sample i is the number i. How long a step takes is up to the simulation."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, key: int) -> int:
        return int(key)


class Settings(NamedTuple):
    """`nbytes`: of a batch on the link. `seconds`: that a worker takes for a step.

    `losing`: seconds from the loss of one node to that of the next.
    """

    nbytes: int
    seconds: float
    losing: float = float("inf")


class Fleet:
    """The cluster and its network: a list of what happens when, and the present moment.

    The driver's own processor time passes between `leave` and `enter`.
    """

    address, tls = "127.0.0.1", None

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now = self.used = self._link_free = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._mark = time.thread_time()
        self.workers: dict[int, SimulatedWorker] = {}
        self.lost = 0
        self.backend: Any = None
        self.gauges = Gauges(None)
        if settings.losing < float("inf"):
            self.at(settings.losing, self._lose_node)

    def leave(self) -> None:
        """The driver goes on."""
        self._mark = time.thread_time()

    def enter(self) -> None:
        """The driver waits."""
        passed = time.thread_time() - self._mark
        self.used += passed
        self.now += passed

    def at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), act))

    def run(self, until: float) -> None:
        """Lets happen what is due; if that is nothing that the driver hears of, also what comes next."""
        while self._events and (self._events[0][0] <= self.now or not self._heard()):
            moment, _, act = heapq.heappop(self._events)
            if moment > until:
                self.at(moment, act)
                self.now = until
                return
            self.now = max(self.now, moment)
            act()

    def _heard(self) -> bool:
        return not self.backend._news.empty()

    def transfer(self, nbytes: int) -> float:
        """When the last byte of a batch that is sent now arrives: batches follow one another on the link."""
        self._link_free = max(self._link_free, self.now + LATENCY) + nbytes / BANDWIDTH
        return self._link_free

    def _lose_node(self) -> None:
        self.at(self.now + self.settings.losing, self._lose_node)
        self.lost += 1
        node = self.lost % max(1, len(self.workers) // ON_NODE)
        for worker in [*self.workers.values()]:
            if worker.seat // ON_NODE == node and worker.remote is not None:  # the others are on no node yet
                worker.die()
                self.at(self.now + NOTICED, worker.missed)

    # What the backend asks of a cluster.

    def is_there(self) -> bool:
        return True

    def ship(self, data: memoryview) -> object:
        return bytes(data)

    def shortage(self, workers: int) -> str:
        return "The simulation has room."

    def start(self, call: Call, shipped: Any, told: Any, avoid: Any) -> KillWorker:
        worker = SimulatedWorker(self, call, shipped)
        self.workers[call.worker] = worker
        self.at(self.now + (REPLACED if self.lost else START), worker.connect)
        return worker.kill


class Reenacted(actor.Loop):
    """A worker that does its tasks at once; `send` gets the reply, and says when it was made. It is its own inbox."""

    def begin(self, worker: int, seat: int, gauges: Gauges, shipped: bytes) -> None:
        self.void: set[int] = set()
        self.doing = -1, 0
        made = actor.StrayArrays()
        job: Job = unpack_from(memoryview(bytearray(shipped)))
        gauge = Gauge(gauges, seat, os.getpid(), lambda: 0)
        desk = TaskExecutor(job, seat, f"worker {seat}", gauge, Replier(worker, made.make))
        set_worker_info(None, of_process=True)  # this process has all workers, and is none
        super().__init__(self, self, desk, gauges, made, seat)  # type: ignore[arg-type]

    def ready(self) -> bytes:
        """The frame that says so."""
        figures = self._gauges.tell(self._seat)
        return head(READY, len(figures)) + figures


def took(first: bytes, seconds: float) -> bytes:
    """The first part of the frame of a reply, with another duration in it."""
    reply = [*REPLY.unpack_from(first, HEAD.size)]
    reply[_TOOK] = int(seconds * 1e9)
    return first[: HEAD.size] + REPLY.pack(*reply) + first[HEAD.size + REPLY.size :]


class SimulatedWorker(Reenacted):
    """What an actor is, and the driver's end of its link. Its replies arrive when it is time."""

    def __init__(self, fleet: Fleet, call: Call, shipped: bytes) -> None:
        self._fleet, self.number, self.seat, self._shipped = fleet, call.worker, call.seat, shipped
        self._is_alive = True
        self._free_at = 0.0
        self._frame = memoryview(b"")  # what the driver receives
        self.remote: Any = None

    def connect(self) -> None:
        fleet, backend = self._fleet, self._fleet.backend
        if not self._is_alive:
            return
        self.begin(self.number, self.seat, fleet.gauges, self._shipped)
        hello = handshake.this_process(self.number, f"node {self.seat // ON_NODE}", time.perf_counter_ns())
        fleet.leave()
        self.remote = backend._welcomed(self, hello)
        fleet.enter()
        self._receive(self.ready())

    def _receive(self, frame: bytes) -> None:
        """The driver receives a frame: one of its threads does that, and takes the GIL for it."""
        if self._is_alive:
            self._frame = memoryview(frame)
            self._fleet.leave()
            self._fleet.backend._receive(self.remote, self)
            self._fleet.enter()

    def send(self, *parts: Any) -> None:
        """The reply to a task, at the moment when it is begun: its size and duration are those of the simulation."""
        fleet, settings = self._fleet, self._fleet.settings
        seq = REPLY.unpack_from(parts[0], HEAD.size)[0]
        seconds = settings.seconds * (0.5 + seq * 0.618 % 1.0)  # from half to one and a half times
        frame = b"".join([took(bytes(parts[0]), seconds), *(bytes(part) for part in parts[1:])])
        self._free_at = max(self._free_at, fleet.now + LATENCY) + seconds

        def sent() -> None:
            fleet.at(fleet.transfer(settings.nbytes + len(parts[0])), lambda: self._receive(frame))

        fleet.at(self._free_at, sent)

    def _figures(self) -> bytes:
        whole = self._free_at > self._next_whole
        if whole:
            self._next_whole = self._free_at + actor._WHOLE / 1e9
        return self._gauges.tell(self._seat, whole=whole)

    # As the driver's end of the link.

    def post(self, *parts: Any) -> None:
        if HEAD.unpack(parts[0])[0] == TASK and self._is_alive:
            fleet = self._fleet
            fleet.at(fleet.now, lambda: self._do(Notice._make(NOTICE.unpack(parts[1])), bytearray(parts[2])))

    def push(self) -> None:
        pass

    def receive_head(self) -> tuple[int, ...]:
        return HEAD.unpack(self.receive(HEAD.size))

    def receive(self, size: int) -> bytes:
        found, self._frame = self._frame[:size], self._frame[size:]
        return bytes(found)

    def receive_into(self, view: Any) -> None:
        size = len(view)
        view[:] = self._frame[:size]
        self._frame = self._frame[size:]

    def cut(self) -> None:
        pass

    def kill(self) -> None:
        self.die()

    def die(self) -> None:
        self._is_alive = False
        self._fleet.workers.pop(self.number, None)

    def missed(self) -> None:
        """The driver notices that the connection has ended."""
        backend, remote = self._fleet.backend, self.remote
        backend._told(remote, ProcessEnd("is lost (the simulation has lost its node)"))
        backend._news.put(lambda: backend._bury(remote))


class FleetBackend(RayBackend):
    """The real one, whose poll waits in virtual time."""

    fleet: Fleet

    def clock(self) -> float:  # type: ignore[override]
        return self.fleet.now

    def poll(self, timeout: float | None) -> Any:
        self.fleet.enter()
        self.fleet.run(float("inf") if timeout is None else self.fleet.now + timeout)
        self.fleet.leave()
        return super().poll(0)


@contextmanager
def simulated(settings: Settings) -> Iterator[Fleet]:
    """In the block, `backend="fleet"` is one driver with a fleet of its own."""
    fleet = Fleet(settings)

    def make(job: Job, context: Any) -> Any:
        made = start(job, fleet, 1e9)
        made.__class__, made.fleet, fleet.backend = FleetBackend, fleet, made
        return made

    backends.register("fleet", make)
    try:
        yield fleet
    finally:
        backends.unregister("fleet")


def loader(workers: int, **given: Any) -> Any:
    return penstock.DataLoader(
        Numbers(), batch_size=BATCH, shuffle=True, seed=0, num_workers=workers, retries=5, **given
    )


class Rate(NamedTuple):
    """Batches a second of virtual time, and microseconds of the driver's processor time for each."""

    rate: float
    cost: float


def measure(settings: Settings, workers: int, batches: int, **given: Any) -> Rate:
    """After the prefetched ones are consumed."""
    with simulated(settings) as fleet, closing(loader(workers, backend="fleet", **given)) as loading:
        stream = iter(loading)
        for _ in range(3 * workers + 100):
            next(stream)
        fleet.enter()
        began, used = fleet.now, fleet.used
        fleet.leave()
        for _ in range(batches):
            next(stream)
        fleet.enter()
        return Rate(batches / (fleet.now - began), 1e6 * (fleet.used - used) / batches)


def check_losses(settings: Settings, minutes: float, workers: int) -> tuple[int, int]:
    """Batches, and nodes that were lost. Raises unless every batch is that of the plain loop."""
    plain = iter(loader(0))
    count = 0
    with simulated(settings) as fleet, closing(loader(workers, backend="fleet")) as loading:
        for batch in loading:
            assert np.array_equal(batch, next(plain)), f"batch {count} differs from the plain loop"
            count += 1
            if fleet.now > 60 * minutes:
                return count, fleet.lost
    raise AssertionError("the epoch has ended early")


def check_ranks(world: int, batches: int, workers: int) -> None:
    """Each rank with a driver of its own: together they have the batches of the plain loop."""
    plain = list(itertools.islice(loader(0), batches * world))
    for rank in range(world):
        with simulated(Settings(10**4, STEP)), closing(loader(workers, backend="fleet", shard=(rank, world))) as one:
            for step, batch in enumerate(itertools.islice(one, batches)):
                assert np.array_equal(batch, plain[step * world + rank]), f"rank {rank}, step {step} differs"


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    options.add_argument("--minutes", type=float, default=3.5, help="of virtual time, in which nodes are lost")
    args = options.parse_args()
    print("\n".join(machine()[:2]), flush=True)
    count, lost = check_losses(Settings(nbytes=10**6, seconds=2.0, losing=60.0), args.minutes, WORKERS)
    print(f"{count:,} batches of {WORKERS:,} workers equal the plain loop's; {lost} nodes were lost", flush=True)
    print("\n| workers | driver µs a batch, many at once | one by one |\n|---|---|---|")
    for workers in (2, 16, 128, 1024):
        many, few = (measure(Settings(10**4, seconds), workers, 4000).cost for seconds in (STEP, 50 * STEP))
        print(f"| {workers:,} | {many:.0f} | {few:.0f} |", flush=True)
    check_ranks(8, 400, WORKERS // 8)
    print("\n8 ranks, each with 128 workers and a driver of its own, have the batches of the plain loop\n")
    print("| batch | a link allows | workers allow | 1 driver | 8 drivers |\n|---|---|---|---|---|")
    for nbytes, text in ((10**4, "10 kB"), (10**6, "1 MB"), (10**7, "10 MB")):
        one = measure(Settings(nbytes, STEP), WORKERS, 6000)
        eight = [measure(Settings(nbytes, STEP), WORKERS // 8, 3000, shard=(rank, 8)).rate for rank in range(8)]
        figures = (BANDWIDTH / nbytes, WORKERS / STEP, one.rate, sum(eight))
        print(f"| {' | '.join([text, *(f'{figure:,.0f}' for figure in figures)])} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
