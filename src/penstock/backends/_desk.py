"""What a worker does with a task, on this machine or on another: it does the steps, and makes the reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

import penstock._work.seeding  # noqa: F401 - every worker needs it: imported before the fork, and not in each
from penstock._measure.gauges import Gauge
from penstock._memory.layout import ALIGN, Writer
from penstock._wire.failure import Failure
from penstock._wire.reply import REPLY, Replier
from penstock._wire.task import Notice, Task
from penstock._wire.updates import Change
from penstock._work.runner import Job, Runner
from penstock._work.samples import is_end

Changes = Callable[[int], Iterable[Change]]


def _no_changes(end: int) -> Iterable[Change]:
    return ()


class Desk:
    """Does the tasks of one worker. `changes(end)` are the changes of the dataset up to a position of the log."""

    def __init__(
        self, job: Job, seat: int, who: str, gauge: Gauge, replier: Replier, changes: Changes = _no_changes
    ) -> None:
        self._who, self._changes = who, changes
        self._gauge, self._replier, self._log = gauge, replier, job.log
        self.runner = (job.make_runner or Runner)(job, who)
        self.runner.gauge = gauge
        self.runner.begin(seat, alone=True)
        gauge.ready()

    def do(self, notice: Notice, root: NDArray[np.uint8], begin: Callable[[int], bool]) -> bytes:
        """Does a task in the slab `root`, which has its keys, and returns the reply.

        `begin(at)` is called before each step of a bundle, and says whether that step is still wanted.
        """
        seq, count, updates, replier = notice.seq, notice.steps, notice.updates, self._replier
        try:
            task = notice.task(root)
        except Exception as error:  # raised while keys of a user's class were unpickled
            where = f"step {notice.step} of epoch {notice.epoch}, as they arrived in {self._who}."
            failure = Failure.capture(error, where=f"In the keys of {where}")
            return replier.failed((seq, 0, perf_counter_ns()), failure, Writer(root), None)
        # Keys that are an array stay where they are: they are read while batches are written.
        used, gauge = max(0, notice.keys), self._gauge
        gauge.begin()
        if count == 1:
            reply = self._do_step(task, updates, Writer(root, used))
            if gauge.detailed:
                gauge.stepped(self.runner.rows)
            gauge.end(task)  # before the reply is sent: that wakes the parent, which may take the processor
            return reply
        began = perf_counter_ns()
        table, used = used, used + count * REPLY.size
        replies: list[bytes] = []
        for at, single in enumerate(task.single()):
            if not begin(at) and replies:
                break
            # Each in its own piece of the slab, so that batches that look alike have the same layout.
            base = -(-used // ALIGN) * ALIGN
            writer = Writer(root[base:])
            replies.append(self._do_step(single, updates, writer, base))
            used = base + writer.used
            if gauge.detailed:
                gauge.stepped(self.runner.rows)
        reply = replier.bundle(seq, replies, table, Writer(root, used), began)
        gauge.end(task, len(replies))
        return reply

    def _do_step(self, task: Task, updates: int, writer: Writer, base: int = 0) -> bytes:
        """Does one step, with the changes up to `updates`. The writer's piece of the slab begins at `base`."""
        head, used, runner = (task.seq, base, perf_counter_ns()), writer.used, self.runner
        try:
            if self._log.end < updates:
                runner.change(self._changes(updates))
            runner.prepare(task)
            tree = runner.run(task, writer)
            if self._gauge.detailed:
                self._gauge.made = perf_counter_ns()
            return self._replier.filled(head, tree, runner.rows, writer, runner.mended, runner.mark)
        except BaseException as error:
            if is_end(error, task):
                return self._replier.ended(head, writer, runner.mark)
            failure = runner.capture(error, task)
            writer.used, writer.overflow = used, False  # the failure overwrites the unfinished batch
            return self._replier.failed(head, failure, writer, runner.mark)
