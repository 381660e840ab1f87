"""Backends without worker processes: the caller runs each task inside `poll`, or threads run the tasks."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._measure.gauges import NO_GAUGE, Gauge, Gauges, NoGauge
from penstock._memory.layout import Writer
from penstock._memory.slabs import Slabs
from penstock._system.interrupts import interrupts_deferred, with_loan
from penstock._system.threads import started
from penstock._wire.failure import caught
from penstock._wire.task import Ended, Failed, Filled, Task
from penstock._wire.updates import Change
from penstock._work.job import Job
from penstock._work.outcomes import AtEnd, Done, Errored
from penstock._work.runner import Runner
from penstock.backends import _stack as stack
from penstock.backends._base import LONGEST_WAIT, Backend, Doing, Left, Outcome
from penstock.errors import InternalError

# Seconds that close() waits for threads that are running a step. They cannot be interrupted, and finish the step in
# the background.
_GRACE = 0.05


def runner_of(job: Job, who: str) -> Runner:
    """Makes a runner for the caller's process. `runner.borrowed(task)` protects the caller's random generators."""
    runner = (job.make_runner or Runner)(job, who)
    assert isinstance(runner, Runner)
    return runner


def run_task(
    runner: Runner,
    worker: int,
    task: Task,
    writer: Writer,
    gauge: Gauge | NoGauge = NO_GAUGE,
    interruptible: bool = True,
) -> Filled | Failed | Ended:
    """Runs a task of one step in this process, and returns the outcome.

    If `interruptible` is True, a KeyboardInterrupt (Ctrl-C) is raised. Otherwise it becomes a `Failed` outcome.
    """
    # No variable holds the outcome, because its error's traceback refers to this frame, which would be a cycle.
    return _told(runner.run(task, writer, gauge, interruptible=interruptible), worker, task, writer)


def _told(outcome: Done | AtEnd | Errored, worker: int, task: Task, writer: Writer) -> Filled | Failed | Ended:
    if isinstance(outcome, Done):
        batch, rows, mended, mark = outcome
        return Filled(task.seq, worker, rows, writer.used, 0.0, writer.root, batch, mended, mark)
    if isinstance(outcome, AtEnd):
        return Ended(task.seq, worker, outcome.mark)
    error = caught(outcome.error, *outcome.notes, outcome.where)
    return Failed(task.seq, worker, error, outcome.mark)


class _LocalBackend(Backend):
    """Base class of the backends whose workers use the caller's own dataset."""

    copies_dataset = False
    clock = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._slabs, self.gauges = Slabs(None), Gauges(None)
        self._runners: dict[int, Runner] = {}  # by worker

    @property
    def workers(self) -> list[Any]:
        return []

    def cool(self, slab: int) -> None:
        self._slabs.cool(slab)

    def encode(self, change: Change) -> bytes:
        return b""

    def update(self, change: bytes) -> None:
        for runner in self._runners.copy().values():
            runner.look_up()

    def memory(self) -> tuple[int, int]:
        return self._slabs.nbytes, 0

    def open(self, outcome: Filled) -> object:
        return outcome.held


class InlineBackend(_LocalBackend):
    """Runs tasks in the calling thread, like a plain loop. Every other backend must give the same batches."""

    leaves_nothing = True

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._runner = self._runners[0] = runner_of(job, "the calling process")
        self._posted: deque[tuple[Task, int]] = deque()
        self._worker = -1
        self._gauge = Gauge(self.gauges, 0, os.getpid(), time.thread_time_ns)
        self._gauge.cache.warns = True  # if a remote store does not answer; for other workers, the caller warns
        self._gauge.ready()

    def hire(self, worker: int, seat: int) -> None:
        self._worker = worker

    def retire(self, seat: int = -1) -> None:
        raise InternalError("a worker was asked to exit, but this backend has none")

    def retain(self) -> int:
        return 0

    def post(self, task: Task, slab: int, seat: int) -> None:
        self._posted.append((task, slab))

    def rescind(self, seq: int) -> bool:
        self._posted = deque(entry for entry in self._posted if entry[0].seq != seq)
        return True

    def poll(self, timeout: float | None) -> list[Outcome]:
        if not self._posted:
            return []
        task, slab = self._posted.popleft()
        runner, writer, gauge = self._runner, Writer(self._slabs.root(slab)), self._gauge
        gauge.begin()
        # `borrowed` imports numpy.random, which takes 15 ms. With other backends, only workers import it.
        outcome = with_loan(runner.borrowed(task), run_task, runner, self._worker, task, writer, gauge)
        if gauge.detailed:
            gauge.stepped(outcome.rows if type(outcome) is Filled else 0)
        gauge.end(task)
        if type(outcome) is Filled:
            self._slabs.learn(writer.used)
        return [outcome]

    def doing(self, seq: int | None) -> list[Doing]:
        return []  # the caller runs the tasks itself, so it never asks while one is running

    def wake(self) -> None:
        pass  # `poll` never waits

    def close(self) -> None:
        self._posted.clear()


class ThreadBackend(_LocalBackend):
    """Runs tasks in threads. For each task, a permit in a queue wakes one thread."""

    shares_gauges = True

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        # Several threads use these containers at once. Each change is one atomic operation, with and without the GIL
        # (decision 0057), so a task is either run once or rescinded.
        self._posted: dict[int, tuple[Task, NDArray[np.uint8]]] = {}  # by seq
        self._order: deque[int] = deque()  # the seqs that were posted, also of tasks that were rescinded
        self._permits: SimpleQueue[bool] = SimpleQueue()  # one for each entry of `_order`
        self._outcomes: SimpleQueue[Outcome | None] = SimpleQueue()
        self._leaves: deque[None] = deque()  # an entry for each thread that is asked to exit
        self._threads: dict[int, threading.Thread] = {}  # by worker
        self._doing: dict[int, Task] = {}  # by worker

    def hire(self, worker: int, seat: int) -> None:
        runner = self._runners[worker] = Runner(self._job, f"worker {seat} (thread)")
        with interrupts_deferred():
            work = partial(self._work, runner, worker, seat)
            self._threads[worker] = started(f"penstock-{seat}", work, self._stop)

    def retire(self, seat: int = -1) -> None:
        self._leaves.append(None)
        self._permits.put(True)  # for a thread that waits

    def retain(self) -> int:
        retained = 0
        with suppress(IndexError):  # empty; threads take entries at the same time
            while True:
                self._leaves.pop()
                retained += 1
        return retained

    def post(self, task: Task, slab: int, seat: int) -> None:
        self._posted[task.seq] = task, self._slabs.root(slab)
        self._order.append(task.seq)
        self._permits.put(True)

    def rescind(self, seq: int) -> bool:
        return self._posted.pop(seq, None) is not None

    def poll(self, timeout: float | None) -> list[Outcome]:
        found: list[Outcome] = []
        with suppress(Empty):
            outcome = self._outcomes.get(timeout=None if timeout is None else min(timeout, LONGEST_WAIT))
            while True:
                if type(outcome) is Filled:
                    self._slabs.learn(outcome.nbytes)
                if outcome is not None:
                    found.append(outcome)
                outcome = self._outcomes.get_nowait()
        return found

    def doing(self, seq: int | None) -> list[Doing]:
        at_work = []
        for worker, thread in self._threads.copy().items():
            runner, task = self._runners.get(worker), self._doing.get(worker)
            if runner is not None:  # otherwise the thread has just exited
                held = (task.seq, task.epoch, task.step) if task else ()
                at_work.append(Doing(runner.who, stack.of_thread(thread.ident), *held))
        mine = [one for one in at_work if one.seq == seq is not None]
        return mine or [one for one in at_work if one.stack or one.seq is not None]

    def wake(self) -> None:
        self._outcomes.put(None)

    def _stop(self) -> None:
        self._posted.clear()
        for _ in range(len(self._threads)):
            self._permits.put(False)

    def close(self) -> None:
        self._stop()
        threads = self._threads.copy().items()  # a copy: a thread that takes a leave removes itself
        deadline = time.monotonic() + _GRACE
        for worker, thread in threads:
            if thread is not threading.current_thread():  # the garbage collector may close the engine in any thread
                thread.join(max(0.0, deadline - time.monotonic()))
            self._threads.pop(worker, None)

    def _work(self, runner: Runner, worker: int, seat: int) -> None:
        gauge = Gauge(self.gauges, seat, threading.get_native_id(), time.thread_time_ns)
        runner.begin(seat, alone=False)
        gauge.ready()
        while self._permits.get():
            if self._leaves and self._takes_leave(worker):
                break
            try:
                task, root = self._posted.pop(self._order.popleft())
            except LookupError:
                continue  # it was rescinded
            self._doing[worker] = task
            gauge.begin()
            outcome = run_task(runner, worker, task, Writer(root), gauge, interruptible=False)
            if gauge.detailed:
                gauge.stepped(outcome.rows if type(outcome) is Filled else 0)
            gauge.end(task)
            del self._doing[worker], root
            self._outcomes.put(outcome)
            del outcome, task
        gauge.flush()

    def _takes_leave(self, worker: int) -> bool:
        """Accepts a pending exit request on behalf of this thread. Returns False if there is no request."""
        try:
            self._leaves.pop()
        except IndexError:
            return False
        for table in (self._runners, self._threads):
            table.pop(worker, None)
        self._permits.put(True)  # the permit that woke this thread may belong to a task
        self._outcomes.put(Left(worker))
        return True
