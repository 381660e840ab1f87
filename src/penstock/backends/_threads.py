"""Workers are threads of this process: nothing is sent, and one dataset object serves all.

For datasets whose work releases the GIL (decoding, reading, waiting) or must not be copied.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._interrupts import interrupts_deferred
from penstock._memory.layout import Writer
from penstock._memory.slabs import Slabs
from penstock._wire.failure import annotate
from penstock._wire.task import Task
from penstock._wire.updates import Change
from penstock._work.job import Job
from penstock._work.runner import Runner
from penstock._work.samples import StreamEnded
from penstock.backends import _stack as stack
from penstock.backends._base import LONGEST_WAIT, Doing, Ended, Failed, Filled, Left, Outcome

# How long close() waits for threads that are in the middle of a step: they cannot be ended, and
# finish what they are at in the background.
_GRACE = 0.05


class ThreadBackend:
    """Tasks wait in a deque; a queue of permits wakes one thread for each."""

    most_steps = 1
    copies_dataset = False
    leaves_nothing = False
    clock = staticmethod(time.monotonic)

    def __init__(self, job: Job) -> None:
        self._slabs = Slabs(None)
        self._job = job
        # Taking from either is atomic under the GIL: a task is worked on once, or rescinded.
        self._posted: deque[tuple[Task, NDArray[np.uint8]]] = deque()
        self._permits: SimpleQueue[bool] = SimpleQueue()
        self._outcomes: SimpleQueue[Outcome | None] = SimpleQueue()
        self._doing: dict[int, tuple[str, int, Task | None]] = {}  # by worker
        self._leaves: deque[None] = deque()  # one for each thread that shall leave
        self._threads: dict[int, threading.Thread] = {}  # by worker
        self._runners: dict[int, Runner] = {}

    @property
    def workers(self) -> list[Any]:
        return []

    def hire(self, worker: int, seat: int) -> None:
        runner = Runner(self._job, f"worker {seat} (thread)")
        thread = threading.Thread(
            target=self._work, args=(runner, worker, seat), name=f"penstock-{seat}", daemon=True
        )
        self._runners[worker] = runner
        self._threads[worker] = thread
        # A Ctrl-C in the Condition that start() waits for may come out as a RuntimeError, as if there were no thread.
        with interrupts_deferred():
            thread.start()

    def retire(self) -> None:
        self._leaves.append(None)
        self._permits.put(True)  # for a thread that waits

    def post(self, task: Task, slab: int, seat: int) -> None:
        self._posted.append((task, self._slabs.root(slab)))
        self._permits.put(True)

    def cool(self, slab: int) -> None:
        self._slabs.cool(slab)

    def encode(self, change: Change) -> bytes:
        return b""

    def update(self, change: bytes) -> None:
        for runner in tuple(self._runners.values()):  # the dataset is the caller's own
            runner.fetch.look_up()

    def flush(self) -> None:
        pass

    def rescind(self, seq: int) -> bool:
        for entry in tuple(self._posted):
            if entry[0].seq == seq:
                try:
                    self._posted.remove(entry)
                except ValueError:
                    return False
                return True
        return False

    def poll(self, timeout: float | None) -> list[Outcome]:
        outcomes: list[Outcome | None] = []
        try:
            outcomes.append(
                self._outcomes.get(timeout=None if timeout is None else min(timeout, LONGEST_WAIT))
            )
            while True:
                outcomes.append(self._outcomes.get_nowait())
        except Empty:
            pass
        found = [outcome for outcome in outcomes if outcome is not None]
        for outcome in found:
            if isinstance(outcome, Filled):
                self._slabs.learn(outcome.nbytes)
        return found

    def open(self, outcome: Filled) -> object:
        return outcome.held

    def doing(self, seq: int | None) -> list[Doing]:
        at_work = [
            Doing(who, stack.of_thread(ident), *((task.seq, task.epoch, task.step) if task else ()))
            for who, ident, task in tuple(self._doing.values())
        ]
        mine = [one for one in at_work if one.seq == seq is not None]
        return mine or [one for one in at_work if one.stack or one.seq is not None]

    def wake(self) -> None:
        self._outcomes.put(None)

    def close(self) -> None:
        self._posted.clear()
        threads = tuple(self._threads.items())  # meanwhile a thread may take a leave
        for _ in threads:
            self._permits.put(False)
        deadline = time.monotonic() + _GRACE
        for worker, thread in threads:
            # One that could not be started, or whose start was interrupted: then it finds its permit to end.
            with suppress(RuntimeError):
                thread.join(max(0.0, deadline - time.monotonic()))
            self._threads.pop(worker, None)

    def _work(self, runner: Runner, worker: int, seat: int) -> None:
        who, ident = runner.who, threading.get_ident()
        self._doing[worker] = who, ident, None
        runner.begin(seat, alone=False)
        while self._permits.get():
            if self._leaves and self._takes_leave(worker):
                return
            try:
                task, root = self._posted.popleft()
            except IndexError:
                continue  # it was rescinded
            self._doing[worker] = who, ident, task
            outcome = self._run(runner, worker, task, Writer(root))
            self._doing[worker] = who, ident, None
            del root
            self._outcomes.put(outcome)
            del outcome, task

    def _takes_leave(self, worker: int) -> bool:
        """Whether this thread is the one that leaves. It passes its permit on: that may be for a task."""
        try:
            self._leaves.pop()
        except IndexError:
            return False
        for table in (self._doing, self._runners, self._threads):
            table.pop(worker, None)
        self._permits.put(True)
        self._outcomes.put(Left(worker))
        return True

    def _run(self, runner: Runner, worker: int, task: Task, writer: Writer) -> Outcome:
        try:
            tree = runner.run(task, writer)
        except StreamEnded:
            return Ended(task.seq, worker, runner.mark)
        except BaseException as error:
            return Failed(task.seq, worker, annotate(error, runner.where(task)), runner.mark)
        return Filled(
            task.seq, worker, runner.rows, writer.used, 0.0, writer.root, tree, runner.mended, runner.mark
        )
