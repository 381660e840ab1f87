"""Passes the counters of the caller and the workers to the tuner, and the tuner's decisions to the session."""

from __future__ import annotations

import math
import os
from threading import get_ident
from time import thread_time_ns
from typing import NamedTuple

from penstock._engine.engine import Engine
from penstock._feed import Feed
from penstock._measure.gauges import delay_ns
from penstock._measure.meter import TICK
from penstock._options import Options
from penstock._schedule.tuner import RESTING, Bounds, Interval, Range, Resize, Tuner
from penstock._session.measures import Measures
from penstock._system.limits import memory_of_machine
from penstock.backends import _base as backends
from penstock.stats._machine import machine

# Limit without `max_workers=`. (Workers that compute are limited by the number of processors, too.)
_MOST_WORKERS = 32
_MOST_PREFETCH = 16
# How many workers' waiting times for a processor are read. Not all, because each takes 20 µs to read.
_SOME = 4


class _Counted(NamedTuple):
    """The counters at one moment, as totals over the loader's life. Times are in nanoseconds."""

    engine: object
    thread: int
    wait: int
    work: int
    caller_cpu: int
    batches: int
    done: int
    busy: int
    cpu: int
    delays: dict[int, int]  # pid of some workers -> ns of waiting for a processor


_NOTHING = _Counted(None, 0, 0, 0, 0, 0, 0, 0, 0, {})


class Tuning:
    """Tells the tuner how much each counter has increased since the last tick."""

    def __init__(self, options: Options, feed: Feed, measures: Measures) -> None:
        self._measures = measures
        self._tuner = Tuner(_bounds(options, feed), options.num_workers, options.prefetch_factor or 1)
        self.extra = False  # the next tick is only for the tuner
        self._before: _Counted | None = None
        self._births: dict[int, tuple[int, int]] = {}  # seat -> when its worker was started, tasks done until then
        self._tasks: dict[int, int] = {}  # seat -> tasks done
        measures.meter.every = TICK // 2

    def ask(self, engine: Engine) -> Resize | None:
        now, before = self._count(engine), self._before or _NOTHING
        self._before = now
        # A tick takes half a millisecond. At rest, ticks are as rare as without the tuner.
        rests = self._tuner.state is RESTING
        self.extra = not rests and not self.extra
        self._measures.meter.every = TICK if rests else TICK // 2
        if now.engine is not before.engine:
            self._tuner.restart()
        same = now.thread == before.thread  # processor time is counted per thread
        return self._tuner.decide(
            Interval(
                waited=(now.wait - before.wait) * 1e-9,
                worked=(now.work - before.work) * 1e-9,
                caller_cpu=(now.caller_cpu - before.caller_cpu) * 1e-9 if same else 0.0,
                batches=now.batches - before.batches,
                done=now.done - before.done,
                busy=(now.busy - before.busy) * 1e-9,
                cpu=(now.cpu - before.cpu) * 1e-9,
                delayed=_mean_growth(now.delays, before.delays) * len(engine.seats) * 1e-9,
                workers=self._started(engine),
                memory=machine().memory_used,
            )
        )

    def _started(self, engine: Engine) -> int:
        """Returns how many workers have done a step. The tuner waits for all, because a first step may be slow."""
        rows = {seat: engine.backend.gauges.counts(seat) for seat in engine.seats}
        for seat, row in rows.items():
            if seat not in self._births or self._births[seat][0] != row.born:
                self._births[seat] = row.born, self._tasks.get(seat, 0)
            self._tasks[seat] = row.tasks
        return sum(row.tasks > self._births[seat][1] for seat, row in rows.items())

    def _count(self, engine: Engine) -> _Counted:
        sums, rows = self._measures.sums()
        busy = sum(row.fetch + row.collate + row.write for row in rows)
        done, cpu = sum(row.steps for row in rows), sum(row.cpu for row in rows)
        caller = get_ident(), sums.wait, sums.work, thread_time_ns() + delay_ns()
        gauges, here = engine.backend.gauges, os.getpid()
        pids = [gauges.counts(seat).pid for seat in sorted(engine.seats)[:_SOME] if seat not in gauges.nodes]
        delays = {pid: delay_ns(str(pid)) for pid in pids if pid not in (0, here)}
        return _Counted(engine.reference, *caller, sums.steps, done, busy, cpu, delays)


def _mean_growth(now: dict[int, int], before: dict[int, int]) -> float:
    found = [now[pid] - before[pid] for pid in now.keys() & before.keys()]
    return sum(found) / max(1, len(found))


def _bounds(options: Options, feed: Feed) -> Bounds:
    found = machine()
    fitting = backends.registered(options.backend).room(options.context)  # workers that fit on other machines
    cpus = found.cpus if fitting is None else float(max(1, fitting))
    number, ahead = options.num_workers, options.prefetch_factor or 1
    workers, prefetch = Range(number, number), Range(ahead, ahead)
    if "num_workers" in options.auto:
        most = options.max_workers or fitting or max(_MOST_WORKERS, math.ceil(found.cpus))
        workers = Range(1, 1 if feed.one_reader else most)
    if "prefetch_factor" in options.auto:
        prefetch = Range(1, _MOST_PREFETCH)
    memory = found.memory_limit or memory_of_machine()
    return Bounds(workers, prefetch, cpus, memory)
