"""The one loop of a worker process."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from penstock._memory.arena import Arena, Region
from penstock._memory.layout import Writer
from penstock._work.failure import Failure
from penstock._work.randomness import seed_step
from penstock._work.runner import Runner, StreamEnded
from penstock._work.task import Job, Kind, Task
from penstock.backends.board import TOKEN, Board, Record
from penstock.backends.reply import Replier


def main(number: int, payload: object, fds: Mapping[str, int]) -> None:
    """Claims tasks, does them and reports, until the parent closes its end of the tokens.

    `number` is unique to this worker, and tells its seat too.
    """
    assert isinstance(payload, Job)
    job = payload
    worker, seat = divmod(number, job.num_workers)
    _give_way()
    board = Board(fds["board"], job.slots)
    arena = Arena(fds["arena"])
    runner = Runner(job, f"worker {seat} (pid {os.getpid()})")
    seed_step(job.seed, -1, seat)
    runner.begin(seat, alone=True)
    with socket.socket(fileno=fds["strays"]) as strays:
        replier = Replier(worker, fds["replies"], strays)
        while token := os.read(fds["tokens"], TOKEN.size):
            slot, seq = TOKEN.unpack(token)
            record = board.claim(slot, seq, worker)
            if record is not None:
                _do(record, job, arena, runner, replier)


def _give_way() -> None:
    """Asks the kernel not to interrupt the parent whenever this process wakes up.

    The training step goes on undisturbed, and processes change places less often: where workers and parent
    share cores and steps are small, more batches (docs/decisions/0008).
    """
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _do(record: Record, job: Job, arena: Arena, runner: Runner, replier: Replier) -> None:
    seq, run, epoch, step, kind, payload, *region = record
    root = arena.root(Region._make(region))
    task = Task(seq, run, epoch, step, _KINDS[kind], _keys(payload, root))
    # Raw keys stay where they are: the samples are fetched by them while others are written.
    writer = Writer(root, max(0, payload))
    try:
        seed_step(job.seed, task.epoch, task.step)
        tree = runner.run(task, writer)
        replier.filled(task.seq, tree, runner.rows, writer)
    except StreamEnded:
        replier.ended(task.seq, writer)
    except BaseException as error:
        failure = Failure.capture(error, where=runner.where(task))
        replier.failed(task.seq, failure, Writer(root))


def _keys(payload: int, root: NDArray[np.uint8]) -> object:
    if payload >= 0:
        keys = root[:payload].view(np.int64)
        keys.flags.writeable = False
        return keys
    return pickle.loads(root[:-payload].data)


_KINDS = tuple(Kind)
