"""Workers in this process: none (each task is done in `poll`, by the caller), or threads. Nothing is sent.

Threads are for datasets whose work releases the GIL (decoding, reading, waiting) or must not be copied: one dataset
object serves all.
"""

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

# How long close() waits for threads that are in the middle of a step: they cannot be ended, and
# finish what they are at in the background.
_GRACE = 0.05


def runner_of(job: Job, who: str) -> Runner:
    """The runner of a worker in this process: one that borrows the generators of the process, and leaves it alone."""
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
    """Runs a task of one step in this process. `interruptible`: by the caller, whose Ctrl-C comes out."""
    # In no variable here: a traceback holds the frames below it, and this one would hold its error.
    return _told(runner.run(task, writer, gauge, interruptible=interruptible), worker, task, writer)


def _told(outcome: Done | AtEnd | Errored, worker: int, task: Task, writer: Writer) -> Filled | Failed | Ended:
    """The outcome as the engine gets it."""
    if isinstance(outcome, Done):
        batch, rows, mended, mark = outcome
        return Filled(task.seq, worker, rows, writer.used, 0.0, writer.root, batch, mended, mark)
    if isinstance(outcome, AtEnd):
        return Ended(task.seq, worker, outcome.mark)
    error = caught(outcome.error, *outcome.notes, outcome.where)
    return Failed(task.seq, worker, error, outcome.mark)


class _LocalBackend(Backend):
    """What both have in common: the dataset is the caller's own, and no worker is a process."""

    most_steps = 1
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
        for runner in tuple(self._runners.values()):
            runner.look_up()

    def flush(self) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return self._slabs.nbytes, 0

    def end_hung(self, seconds: float) -> list[Doing]:
        return []  # the options refuse it: a thread cannot be killed

    def open(self, outcome: Filled) -> object:
        return outcome.held


class InlineBackend(_LocalBackend):
    """A plain loop in the calling thread. This is what every backend must equal."""

    leaves_nothing = True

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._runner = self._runners[0] = runner_of(job, "the calling process")
        self._posted: deque[tuple[Task, int]] = deque()
        self._worker = -1
        self._gauge = Gauge(self.gauges, 0, os.getpid(), time.thread_time_ns)
        self._gauge.cache.warns = True  # nobody waits for this worker but itself
        self._gauge.ready()

    def hire(self, worker: int, seat: int) -> None:
        self._worker = worker

    def retire(self, seat: int = -1) -> None:
        raise InternalError("without workers, there is none to leave")

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
        # What it imports takes 15 ms: numpy.random. Other backends have it in their workers only.
        outcome = with_loan(runner.borrowed(task), run_task, runner, self._worker, task, writer, gauge)
        if gauge.detailed:
            gauge.stepped(outcome.rows if type(outcome) is Filled else 0)
        gauge.end(task)
        if type(outcome) is Filled:
            self._slabs.learn(writer.used)
        return [outcome]

    def doing(self, seq: int | None) -> list[Doing]:
        return []  # nobody waits for the caller

    def wake(self) -> None:
        pass  # nobody waits: the caller does the work

    def close(self) -> None:
        self._posted.clear()


class ThreadBackend(_LocalBackend):
    """Tasks wait in a deque; a queue of permits wakes one thread for each."""

    leaves_nothing = False
    shares_gauges = True

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        # Taking from either is atomic under the GIL: a task is worked on once, or rescinded.
        self._posted: deque[tuple[Task, NDArray[np.uint8]]] = deque()
        self._permits: SimpleQueue[bool] = SimpleQueue()
        self._outcomes: SimpleQueue[Outcome | None] = SimpleQueue()
        self._leaves: deque[None] = deque()  # one for each thread that shall leave
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
        with suppress(IndexError):  # threads take them too, until there are none
            while True:
                self._leaves.pop()
                retained += 1
        return retained

    def post(self, task: Task, slab: int, seat: int) -> None:
        self._posted.append((task, self._slabs.root(slab)))
        self._permits.put(True)

    def rescind(self, seq: int) -> bool:
        for entry in tuple(self._posted):
            if entry[0].seq == seq:
                with suppress(ValueError):  # a thread has taken it
                    self._posted.remove(entry)
                    return True
        return False

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
        for worker, thread in tuple(self._threads.items()):
            runner, task = self._runners.get(worker), self._doing.get(worker)
            if runner is not None:  # else the thread has left meanwhile
                held = (task.seq, task.epoch, task.step) if task else ()
                at_work.append(Doing(runner.who, stack.of_thread(thread.ident), *held))
        mine = [one for one in at_work if one.seq == seq is not None]
        return mine or [one for one in at_work if one.stack or one.seq is not None]

    def wake(self) -> None:
        self._outcomes.put(None)

    def _stop(self) -> None:
        """Ends the threads, each after the step that it is at."""
        self._posted.clear()
        for _ in tuple(self._threads):
            self._permits.put(False)

    def close(self) -> None:
        self._stop()
        threads = tuple(self._threads.items())  # meanwhile a thread may take a leave
        deadline = time.monotonic() + _GRACE
        for worker, thread in threads:
            if thread is not threading.current_thread():  # in which the garbage collector has found the engine
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
                task, root = self._posted.popleft()
            except IndexError:
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
        """Whether this thread is the one that leaves. It passes its permit on: that may be for a task."""
        try:
            self._leaves.pop()
        except IndexError:
            return False
        for table in (self._runners, self._threads):
            table.pop(worker, None)
        self._permits.put(True)
        self._outcomes.put(Left(worker))
        return True
