"""The loop of a worker process."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Mapping
from contextlib import suppress
from time import perf_counter_ns, process_time_ns

import penstock._work.seeding  # noqa: F401 - every worker needs it: imported before the fork, and not in each
from penstock._at_work import at_work
from penstock._measure.gauges import Gauge, Gauges
from penstock._memory.layout import ALIGN, Writer
from penstock._memory.slabs import Arena, Region
from penstock._wire.failure import Failure
from penstock._wire.reply import REPLY, Replier
from penstock._wire.task import Notice, Task
from penstock._work.runner import Job, Runner
from penstock._work.samples import is_end
from penstock.backends._process.board import TOKEN, Board
from penstock.backends._process.process import SEATS
from penstock.backends._stack import tell_when_asked


def main(number: int, payload: object, fds: Mapping[str, int]) -> None:
    """Claims tasks, does them and replies, until it takes a leave or the parent closes the pipe of tokens.

    `number` tells the worker's id and its seat.
    """
    job = payload() if isinstance(payload, weakref.ref) else payload
    assert isinstance(job, Job)
    worker, seat = divmod(number, SEATS)
    if job.num_workers <= len(os.sched_getaffinity(0)):  # else workers mostly wait, and would wake up later
        _give_way()
    at_work.source = None  # a forked worker may have been started from inside a dataset
    tell_when_asked(fds["stacks"])
    board = Board(fds["board"])
    with socket.socket(fileno=fds["strays"]) as strays:
        desk = _Desk(job, seat, board, Replier(worker, fds["replies"], strays), fds)
        tokens = fds[f"tokens {seat if job.assigned else 0}"]
        while not board.take_leave(worker) and (token := os.read(tokens, TOKEN.size)):
            slot, seq = TOKEN.unpack(token)
            notice = board.claim(slot, seq, worker)
            if notice is not None:
                desk.do(slot, notice)
        desk.gauge.flush()
        board.end(worker)


def _give_way() -> None:
    """Asks the kernel not to preempt the parent whenever this process wakes up.

    The training step goes on undisturbed, and there are fewer context switches: more batches per second where workers
    and parent share cores and steps are small (docs/decisions/0008).
    """
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class _Desk:
    """Does the tasks that a worker has claimed, and replies."""

    def __init__(self, job: Job, seat: int, board: Board, replier: Replier, fds: Mapping[str, int]) -> None:
        self._who = f"worker {seat} (pid {os.getpid()})"
        self.gauge = gauge = Gauge(Gauges(fds["gauges"]), seat, os.getpid(), process_time_ns)
        self._runner = (job.make_runner or Runner)(job, self._who)
        self._runner.gauge = gauge
        self._runner.begin(seat, alone=True)
        gauge.ready()
        self._board, self._replier = board, replier
        self._arena = Arena(fds["slabs"])
        self._log, self._updates = job.log, fds["updates"]

    def do(self, slot: int, notice: Notice) -> None:
        seq, count, updates, replier = notice.seq, notice.steps, notice.updates, self._replier
        root = self._arena.root(Region._make(notice[7:]))
        try:
            task = notice.task(root)
        except Exception as error:  # raised while keys of a user's class were unpickled
            where = f"step {notice.step} of epoch {notice.epoch}, as they arrived in {self._who}."
            failure = Failure.capture(error, where=f"In the keys of {where}")
            replier.send(replier.failed((seq, 0, perf_counter_ns()), failure, Writer(root), None))
            return
        # Keys that are an array stay where they are: they are read while batches are written.
        used, gauge = max(0, notice.keys), self.gauge
        gauge.begin()
        if count == 1:
            reply = self._do_step(task, updates, Writer(root, used))
            if gauge.detailed:
                gauge.stepped(self._runner.rows)
            gauge.end(task)  # before the reply: that wakes the parent, which may take the processor
            replier.send(reply)
            return
        began = perf_counter_ns()
        table, used = used, used + count * REPLY.size
        replies: list[bytes] = []
        for at, single in enumerate(task.single()):
            if not self._board.begin(slot, at) and replies:
                break
            # Each in its own piece of the slab, so that batches that look alike have the same layout.
            base = -(-used // ALIGN) * ALIGN
            writer = Writer(root[base:])
            replies.append(self._do_step(single, updates, writer, base))
            used = base + writer.used
            if gauge.detailed:
                gauge.stepped(self._runner.rows)
        reply = replier.bundle(seq, replies, table, Writer(root, used), began)
        gauge.end(task, len(replies))
        replier.send(reply)

    def _do_step(self, task: Task, updates: int, writer: Writer, base: int = 0) -> bytes:
        """Does one step, with the changes up to `updates`. The writer's piece of the slab begins at `base`."""
        head, used, runner = (task.seq, base, perf_counter_ns()), writer.used, self._runner
        try:
            if self._log.end < updates:
                runner.change(self._log.read(self._updates, updates))
            runner.prepare(task)
            tree = runner.run(task, writer)
            if self.gauge.detailed:
                self.gauge.made = perf_counter_ns()
            return self._replier.filled(head, tree, runner.rows, writer, runner.mended, runner.mark)
        except BaseException as error:
            if is_end(error, task):
                return self._replier.ended(head, writer, runner.mark)
            failure = runner.capture(error, task)
            writer.used, writer.overflow = used, False  # the failure overwrites the unfinished batch
            return self._replier.failed(head, failure, writer, runner.mark)
