"""The main loop of a worker process."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from time import process_time_ns

from penstock._at_work import at_work
from penstock._measure.gauges import Gauge, Gauges
from penstock._memory.slabs import Arena, Region
from penstock._system.limits import usable_cpus
from penstock._wire.reply import Replier, memfd_stray
from penstock._work.job import Job
from penstock.backends._executor import TaskExecutor
from penstock.backends._native_threads import limit
from penstock.backends._process.board import TOKEN, Board
from penstock.backends._process.process import SEATS
from penstock.backends._stack import tell_when_asked


def main(number: int, payload: object, fds: Mapping[str, int]) -> None:
    """Runs tasks until asked to exit, or until the token pipe is closed. `number` is `worker * SEATS + seat`."""
    job = payload() if isinstance(payload, weakref.ref) else payload
    assert isinstance(job, Job)
    worker, seat = divmod(number, SEATS)
    if job.num_workers <= usable_cpus():  # more workers mostly wait, and would wake up too late
        _give_way()
    at_work.source = None  # a forked worker may have been started from inside a dataset
    tell_when_asked(fds["stacks"])
    limit()
    board = Board(fds["board"])
    gauge = Gauge(Gauges(fds["gauges"]), seat, os.getpid(), process_time_ns)
    arena = Arena(fds["slabs"])
    with socket.socket(fileno=fds["strays"]) as strays:
        replier = Replier(worker, partial(memfd_stray, worker, strays))
        changes = partial(job.log.read, fds["updates"])
        executor = TaskExecutor(job, seat, f"worker {seat} (pid {os.getpid()})", gauge, replier, changes)
        tokens = fds[f"tokens {seat if job.assigned else 0}"]
        while not board.take_leave(worker) and (token := os.read(tokens, TOKEN.size)):
            slot, seq = TOKEN.unpack(token)
            notice = board.claim(slot, seq, worker)
            if notice is not None:
                root = arena.root(Region._make(notice[7:]))
                os.write(fds["replies"], executor.do(notice, root, partial(board.begin, slot)))
                del root
        gauge.flush()
        board.end(worker)


def _give_way() -> None:
    """Asks the kernel not to preempt the parent when this process wakes up (see docs/decisions/0008)."""
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
