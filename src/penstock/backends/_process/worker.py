"""The one loop of a worker process."""

from __future__ import annotations

import os
import pickle
import socket
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

import penstock._work.seeding  # noqa: F401 - what every worker needs, before it is forked and not in each
from penstock._at_work import at_work
from penstock._memory.arena import Arena, Region
from penstock._memory.layout import ALIGN, Writer
from penstock._wire.failure import Failure
from penstock._wire.reply import REPLY, Replier
from penstock._wire.task import Job, Task
from penstock._work.runner import Runner
from penstock._work.samples import StreamEnded
from penstock.backends._process.board import TOKEN, Board, Record
from penstock.backends._stack import tell_when_asked


def main(number: int, payload: object, fds: Mapping[str, int]) -> None:
    """Claims tasks, does them and reports, until the parent closes its end of the tokens.

    `number` is unique to this worker, and tells its seat too.
    """
    job = payload() if isinstance(payload, weakref.ref) else payload
    assert isinstance(job, Job)
    worker, seat = divmod(number, job.num_workers)
    if job.num_workers <= len(os.sched_getaffinity(0)):  # else they mostly wait, and would wake up later
        _give_way()
    at_work.source = None  # a forked worker may have been started by a dataset at work
    tell_when_asked(fds["stacks"])
    board = Board(fds["board"], job.slots)
    who = f"worker {seat} (pid {os.getpid()})"
    runner = (job.make_runner or Runner)(job, who)
    runner.begin(seat, alone=True)
    with socket.socket(fileno=fds["strays"]) as strays:

        def catch_up(end: int) -> None:
            if job.log.end < end:
                runner.change(job.log.read(fds["updates"], end))

        desk = _Desk(who, Arena(fds["arena"]), runner, Replier(worker, fds["replies"], strays), catch_up)
        tokens = fds[f"tokens {seat if job.assigned else 0}"]
        while token := os.read(tokens, TOKEN.size):
            slot, seq = TOKEN.unpack(token)
            record = board.claim(slot, seq, worker)
            if record is not None:
                desk.do(record, partial(board.begin, slot))


def _give_way() -> None:
    """Asks the kernel not to interrupt the parent whenever this process wakes up.

    The training step goes on undisturbed, and processes change places less often: where workers and parent
    share cores and steps are small, more batches (docs/decisions/0008).
    """
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class _Desk:
    """Where a worker does the tasks that it has claimed."""

    def __init__(
        self, who: str, arena: Arena, runner: Runner, replier: Replier, catch_up: Callable[[int], None]
    ) -> None:
        self._who = who
        self._catch_up = catch_up
        self._arena = arena
        self._runner = runner
        self._replier = replier

    def do(self, record: Record, begin: Callable[[int], bool]) -> None:
        seq, run, epoch, step, _, payload, count, updates, *region = record
        root = self._arena.root(Region._make(region))
        try:
            keys = _keys(payload, root)
        except Exception as error:  # of a class of the user's
            where = f"In the keys of step {step} of epoch {epoch}, as they arrived in {self._who}."
            failure = Failure.capture(error, where=where)
            self._replier.send(self._replier.failed(seq, failure, Writer(root), 0, perf_counter_ns(), None))
            return
        task = Task(seq, run, epoch, step, keys, count)
        # Raw keys stay where they are: the samples are fetched by them while others are written.
        used = max(0, payload)
        if count == 1:
            self._replier.send(self._do_step(task, updates, Writer(root, used)))
            return
        began = perf_counter_ns()
        table, used = used, used + count * REPLY.size
        replies: list[bytes] = []
        for at, single in enumerate(task.single()):
            if not begin(at) and replies:
                break
            # Each in a piece of the slab of its own, so that batches that are alike have one layout.
            base = -(-used // ALIGN) * ALIGN
            writer = Writer(root[base:])
            replies.append(self._do_step(single, updates, writer, base))
            used = base + writer.used
        self._replier.send(self._replier.bundle(seq, replies, table, Writer(root, used), began))

    def _do_step(self, task: Task, updates: int, writer: Writer, base: int = 0) -> bytes:
        """Does one step, with so much of the updates' log, and returns the reply that tells of it.

        The writer's piece begins at `base`.
        """
        began, used = perf_counter_ns(), writer.used
        try:
            self._catch_up(updates)
            self._runner.prepare(task)
            tree = self._runner.run(task, writer)
            runner = self._runner
            return self._replier.filled(
                task.seq, tree, runner.rows, writer, base, began, runner.mended, runner.mark
            )
        except StreamEnded:
            return self._replier.ended(task.seq, writer, base, began, self._runner.mark)
        except BaseException as error:
            failure = self._runner.capture(error, task)
            writer.used, writer.overflow = used, False  # over what there was of the batch
            return self._replier.failed(task.seq, failure, writer, base, began, self._runner.mark)


def _keys(payload: int, root: NDArray[np.uint8]) -> object:
    if payload >= 0:
        keys = root[:payload].view(np.int64)
        keys.flags.writeable = False
        return keys
    return pickle.loads(root[:-payload].data)

