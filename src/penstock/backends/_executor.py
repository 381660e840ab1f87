"""Runs a worker's tasks, on this machine or on another, and encodes the replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

import penstock._work.seeding  # noqa: F401 - every worker needs it: imported once, before the fork
from penstock._measure.gauges import Gauge
from penstock._memory.layout import ALIGN, Writer
from penstock._wire.failure import Failure
from penstock._wire.reply import REPLY, Head, Replier
from penstock._wire.task import Notice, Task
from penstock._wire.updates import Change
from penstock._work.job import Job, TaskRunner
from penstock._work.outcomes import AtEnd, Done, Errored
from penstock._work.runner import Runner

Changes = Callable[[int], Iterable[Change]]


def _no_changes(end: int) -> Iterable[Change]:
    return ()


class TaskExecutor:
    """Runs the tasks of one worker. `changes(end)` reads the log of dataset changes, up to the offset `end`."""

    def __init__(
        self, job: Job, seat: int, who: str, gauge: Gauge, replier: Replier, changes: Changes = _no_changes
    ) -> None:
        self._who, self._changes = who, changes
        self._gauge, self._replier, self._log = gauge, replier, job.log
        self._runner: TaskRunner = (job.make_runner or Runner)(job, who)
        self._runner.begin(seat, alone=True)
        gauge.ready()

    def change(self, changes: Iterable[Change]) -> None:
        self._runner.change(changes)

    def do(self, notice: Notice, root: NDArray[np.uint8], begin: Callable[[int], bool]) -> bytes:
        """Runs a task and returns the encoded reply.

        If the task has several steps, `begin(at)` is called before each step. If it returns False for a step
        other than the first, that step and all later ones are left out.
        """
        seq, count, updates, replier = notice.seq, notice.steps, notice.updates, self._replier
        try:
            task = notice.task(root)
        except Exception as error:  # raised while keys of a user's class were unpickled
            where = f"step {notice.step} of epoch {notice.epoch}, as they arrived in {self._who}."
            failure = Failure.capture(error, where=f"In the keys of {where}")
            return replier.failed((seq, 0, perf_counter_ns()), failure, Writer(root), None)
        # An array of keys stays in the slab and is read while batches are written after it.
        used, gauge = max(0, notice.keys), self._gauge
        gauge.begin()
        if count == 1:
            reply = self._do_step(task, updates, Writer(root, used))
            gauge.end(task)  # before the reply wakes the parent, which may take over the CPU
            return reply
        began = perf_counter_ns()
        table, used = used, used + count * REPLY.size
        replies: list[bytes] = []
        for at, single in enumerate(task.single()):
            if not begin(at) and replies:
                break
            # Each step has its own piece of the slab, so that similar batches have the same layout.
            base = -(-used // ALIGN) * ALIGN
            writer = Writer(root[base:])
            replies.append(self._do_step(single, updates, writer, base))
            used = base + writer.used
        reply = replier.bundle(seq, replies, table, Writer(root, used), began)
        gauge.end(task, len(replies))
        return reply

    def _do_step(self, task: Task, updates: int, writer: Writer, base: int = 0) -> bytes:
        """Applies the changes up to `updates`, and runs a step. `writer` begins at the offset `base` in the slab."""
        head, used = (task.seq, base, perf_counter_ns()), writer.used
        if self._log.end < updates:
            self._runner.change(self._changes(updates))
        # No variable holds the outcome, because its error's traceback refers to this frame, which would be a cycle.
        return self._reply(self._runner.run(task, writer, self._gauge), head, task, writer, used)

    def _reply(self, outcome: Done | AtEnd | Errored, head: Head, task: Task, writer: Writer, used: int) -> bytes:
        """Encodes the outcome of a step. `used` is where the batch begins in the writer's memory."""
        gauge, rows = self._gauge, 0
        if isinstance(outcome, Done):
            batch, rows, mended, mark = outcome
            if gauge.detailed:
                gauge.made = perf_counter_ns()
            try:
                reply = self._replier.filled(head, batch, rows, writer, mended, mark)
            except BaseException as error:  # raised while an object in the batch was pickled
                reply = self._failed(head, self._runner.failed(error, task, mark), writer, used)
        elif isinstance(outcome, AtEnd):
            reply = self._replier.ended(head, writer, outcome.mark)
        else:
            reply = self._failed(head, outcome, writer, used)
        if gauge.detailed:
            gauge.stepped(rows)
        return reply

    def _failed(self, head: Head, errored: Errored, writer: Writer, used: int) -> bytes:
        """Encodes a step's error. The error overwrites the unfinished batch, which begins at offset `used`."""
        failure = self._runner.capture(errored)
        writer.used, writer.overflow = used, False
        return self._replier.failed(head, failure, writer, errored.mark)
