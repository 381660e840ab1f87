"""The worker on a node. It runs in the main thread of an actor's process, and serves one driver over one link.

A second thread receives frames. So while the main thread runs the user's code, the worker can still report its stack,
and can exit soon after the connection has ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._measure.gauges import Gauge, Gauges
from penstock._memory.layout import Writer
from penstock._memory.mapping import mapped, view_of
from penstock._system.threads import started
from penstock._wire.failure import Failure
from penstock._wire.pickling import loads
from penstock._wire.reply import REPLY, Replier, used_bytes
from penstock._wire.shipment import unpack_from
from penstock._wire.task import NOTICE, Notice
from penstock._work.job import Job
from penstock.backends import _stack as stack
from penstock.backends._executor import TaskExecutor
from penstock.backends._native_threads import limit
from penstock.backends._ray.handshake import connect, this_process
from penstock.backends._ray.link import (
    BROKEN,
    CHANGE,
    GARBLED,
    LEAVE,
    READY,
    REPLIED,
    STACK,
    STRAY,
    TASK,
    TOLD,
    VOID,
    WELCOME,
    Link,
    head,
)
from penstock.backends._ray.remote import Call

# Seconds that the main thread has to finish after the driver is gone.
_GRACE = 1.0

# Nanoseconds between two replies that carry all of the worker's counters (8 KB).
_WHOLE = 100_000_000

_MOST_VOID = 64

_NOTHING = bytes(REPLY.size)


def serve(call: tuple[Any, ...], node: str, fetch: Callable[[], Any]) -> None:
    """Runs tasks until the driver requests an exit or the connection ends. `call` holds the fields of a `Call`."""
    address, encrypted, token, worker, seat = Call._make(call)
    link = connect(address, encrypted, token, this_process(worker, node, perf_counter_ns()))
    ended = threading.Event()
    try:
        with suppress(OSError, EOFError):  # the driver is gone, or has refused this worker
            _serve(link, worker, seat, node, fetch, ended)
    finally:
        ended.set()
        link.cut()


def _serve(link: Link, worker: int, seat: int, node: str, fetch: Callable[[], Any], ended: threading.Event) -> None:
    kind, waited, tracing, length, shift, _ = link.receive_head()
    if kind != WELCOME:
        return
    gauges = Gauges(None)
    gauges.hear(seat, link.receive(length), shift)
    gauges.hear_caller(waited, tracing)
    inbox = Inbox(link, gauges, ended)
    who = f"worker {seat} (pid {os.getpid()} on {node})"
    made = StrayArrays()
    try:
        shipped = memoryview(fetch()).cast("B")
        memory = view_of(mapped(None, max(1, len(shipped))))
        memory[: len(shipped)] = shipped  # a private copy, because the dataset may write to its arrays
        limit()  # before libraries are imported, and again because importing may reset it
        job: Job = unpack_from(memory[: len(shipped)])
        limit()
        gauge = Gauge(gauges, seat, os.getpid(), process_time_ns)
        executor = TaskExecutor(job, seat, who, gauge, Replier(worker, made.make))
    except Exception as error:
        said = Failure.capture(error, where=f"While worker {seat} was started on node {node} (pid {os.getpid()}).")
        link.send(head(BROKEN, len(said)), said)
        return
    figures = gauges.tell(seat)
    link.send(head(READY, len(figures)), figures)
    Loop(link, inbox, executor, gauges, made, seat).run()
    gauge.flush()


class StrayArrays:
    """The strays of one reply (see `_wire/reply.py`), which are sent after the reply."""

    def __init__(self) -> None:
        self.made: list[tuple[int, NDArray[np.uint8]]] = []

    @contextmanager
    def make(self, seq: int, nbytes: int) -> Iterator[Writer]:
        writer = Writer(np.frombuffer(mapped(None, nbytes), np.uint8), is_stray=True)
        yield writer
        if not writer.overflow:
            self.made.append((seq, writer.root[: writer.used]))


class Inbox:
    """Receives frames in its own thread. Puts tasks and dataset changes into `orders`, and finally None."""

    def __init__(self, link: Link, gauges: Gauges, ended: threading.Event) -> None:
        self._link, self._gauges, self._ended = link, gauges, ended
        self._main = threading.get_ident()
        self.orders: SimpleQueue[tuple[Notice, bytearray] | bytearray | None] = SimpleQueue()
        self.void: set[int] = set()  # tasks that are no longer wanted
        self.doing = -1, 0  # the current task, and the current step of it
        started("penstock-inbox", self._receive, link.cut)

    def _receive(self) -> None:
        try:
            while self._receive_one():
                pass
            self.orders.put(None)
        except GARBLED:
            self.orders.put(None)
            if not self._ended.wait(_GRACE):
                os._exit(1)  # the main thread's result is no longer needed

    def _receive_one(self) -> bool:
        link = self._link
        kind, one, two, three, *_ = link.receive_head()
        if kind == TASK:
            data = link.receive(NOTICE.size + one)
            self._gauges.hear_caller(two, three)
            self.orders.put((Notice._make(NOTICE.unpack_from(data)), data[NOTICE.size :]))
        elif kind == CHANGE:
            self.orders.put(link.receive(one))
        elif kind == VOID:
            if len(self.void) > _MOST_VOID:  # these tasks were done before they became void
                self.void.clear()
            self.void.add(one)
        elif kind == STACK:
            told = stack.of_thread(self._main).encode()
            link.send(head(TOLD, one, len(told), *self.doing), told)
        return kind != LEAVE


class Loop:
    """Runs the tasks and applies the dataset changes that arrive in the inbox, in order."""

    def __init__(
        self, link: Link, inbox: Inbox, executor: TaskExecutor, gauges: Gauges, strays: StrayArrays, seat: int
    ) -> None:
        self._link, self._inbox, self._executor, self._gauges, self._strays = link, inbox, executor, gauges, strays
        self._seat = seat
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._next_whole = self._told = 0

    def run(self) -> None:
        while (order := self._inbox.orders.get()) is not None:
            if isinstance(order, bytearray):
                self._executor.change(map(loads, [order]))
            else:
                self._do(*order)
            del order

    def _do(self, notice: Notice, keys: bytearray) -> None:
        inbox, seq = self._inbox, notice.seq
        inbox.doing = seq, 0
        reply, used = _NOTHING, 0
        if seq not in inbox.void:
            root = self._slab(notice.capacity)
            root[: len(keys)] = np.frombuffer(keys, np.uint8)
            reply = self._executor.do(notice, root, self._begin)
            used = min(used_bytes(reply), len(root))
        inbox.void.discard(seq)
        # An array of keys comes before the batch. It is not sent, because the driver has it.
        start = min(used, max(0, notice.keys))
        strays, self._strays.made = self._strays.made, []
        figures = self._figures()
        table = b"".join([STRAY.pack(at, len(root)) for at, root in strays])
        first = head(REPLIED, seq, start, used - start, len(strays), len(figures))
        self._link.send(first + reply + figures + table, self._memory[start:used], *(root for _, root in strays))
        inbox.doing = -1, 0

    def _begin(self, at: int) -> bool:
        seq, _ = self._inbox.doing
        self._inbox.doing = seq, at
        return seq not in self._inbox.void

    def _slab(self, capacity: int) -> NDArray[np.uint8]:
        """Returns memory for a batch. All batches use the same memory: each is sent before the next batch begins."""
        if len(self._memory) < capacity:
            self._memory = np.frombuffer(mapped(None, capacity), np.uint8)
        return self._memory[:capacity]

    def _figures(self) -> bytes:
        now, gauges, seat = perf_counter_ns(), self._gauges, self._seat
        whole = now > self._next_whole
        if whole:
            self._next_whole = now + _WHOLE
        figures = gauges.tell(seat, whole=whole, since=self._told if gauges.tracing else None)
        self._told = gauges.recorded(seat)
        return figures
