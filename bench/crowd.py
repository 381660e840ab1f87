"""What real connections cost a driver: `python -m bench.crowd`. `bench.fleet` simulates the rest.

All workers are in one process with one thread. They reply 40 ms after they have heard of a task, without computing.
"""

from __future__ import annotations

import heapq
import itertools
import multiprocessing
import select
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import penstock
from bench.fleet import BATCH, ON_NODE, STEP, Numbers, Rate, Reenacted, took
from bench.run import machine
from penstock import backends
from penstock._measure.gauges import Gauges
from penstock._wire.task import NOTICE, Notice
from penstock.backends._ray import handshake
from penstock.backends._ray.backend import start
from penstock.backends._ray.link import TASK, WELCOME
from penstock.backends._ray.remote import Call


def crowd(orders: Any, shipped: bytes) -> None:
    """A process that has as many workers as it is ordered to: one thread, which serves whichever hears something."""
    members: dict[int, Member] = {}
    due: list[tuple[float, int, Callable[[], None]]] = []
    numbers = itertools.count()
    watch = select.epoll()
    watch.register(orders, select.EPOLLIN)

    def later(seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(due, (time.monotonic() + seconds, next(numbers), act))

    gauges = Gauges(None)
    with suppress(OSError, EOFError):  # the driver is gone
        while True:
            wait = max(0.0, due[0][0] - time.monotonic()) if due else None
            for fd, _ in watch.poll(wait):
                if fd != orders.fileno():
                    members[fd].hear()
                    continue
                member = Member(orders.recv(), gauges, shipped, later)
                members[member.fd] = member
                watch.register(member.fd, select.EPOLLIN)
            while due and due[0][0] <= time.monotonic():
                heapq.heappop(due)[2]()


class Member(Reenacted):
    """A worker at the end of a real connection, which replies 40 ms after it has heard of a task."""

    def __init__(self, call: Any, gauges: Gauges, shipped: bytes, later: Any) -> None:
        address, encrypted, token, worker, seat = call
        hello = handshake.this_process(worker, f"node {seat // ON_NODE}", time.perf_counter_ns())
        self._real, self._later = handshake.connect(address, encrypted, token, hello), later
        self.fd = self._real._sock.fileno()
        self.begin(worker, seat, gauges, shipped)

    def hear(self) -> None:
        kind, one, _, length, *_ = self._real.receive_head()
        if kind == TASK:
            notice = Notice._make(NOTICE.unpack(self._real.receive(NOTICE.size)))
            self._do(notice, self._real.receive(one))
        elif kind == WELCOME:
            self._real.receive(length)
            self._real.send(self.ready())

    def send(self, *parts: Any) -> None:
        frame = b"".join([took(bytes(parts[0]), STEP), *(bytes(part) for part in parts[1:])])
        self._later(STEP, lambda: self._real.send(frame))


class Crowd:
    """A cluster in one process, for real connections."""

    address, tls = "127.0.0.1", None

    def __init__(self) -> None:
        self._orders: Any = None
        self._process: Any = None

    def is_there(self) -> bool:
        return True

    def ship(self, data: memoryview) -> object:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._orders, self._process = ours, context.Process(target=crowd, args=(theirs, bytes(data)), daemon=True)
        self._process.start()
        return None

    def shortage(self, workers: int) -> str:
        return "There is room."

    def start(self, call: Call, shipped: object, told: Any, avoid: Any) -> Any:
        self._orders.send(tuple(call))
        return self.kill

    def kill(self) -> None:
        pass

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()


def measure_sockets(workers: int, batches: int) -> Rate:
    """Real time, and the processor time of the whole driver: its threads, and its share of the kernel."""
    with closing(Crowd()) as crowded:
        backends.register("crowd", lambda job, context: start(job, crowded, 60.0))
        given = {"batch_size": BATCH, "num_workers": workers, "backend": "crowd", "seed": 0}
        with closing(penstock.DataLoader(Numbers(), **given)) as loading:
            stream = iter(loading)
            for _ in range(4 * workers + 100):
                next(stream)
            began, used = time.perf_counter(), time.process_time()
            for _ in range(batches):
                next(stream)
            passed, used = time.perf_counter() - began, time.process_time() - used
        backends.unregister("crowd")
    return Rate(batches / passed, 1e6 * used / batches)


def main() -> int:
    print("\n".join(machine()[:2]), flush=True)
    for workers in (2, 16, 128, 1024):
        found = measure_sockets(workers, 6000 if workers > 16 else 1000)
        cost = f"{found.cost:6.0f} µs of the driver a batch"
        print(f"{workers:5} connections: {cost}, {found.rate:,.0f} a second", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
