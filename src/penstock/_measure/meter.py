"""Measures how long the caller waits for batches and works between batches, and how many batches the caller gets."""

from __future__ import annotations

import itertools
import operator
import struct
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._measure.cached import CacheCounts
from penstock._measure.gauges import MOST_SLOW, Counts, Gauges, RowCopy, Slow
from penstock._measure.histogram import BUCKETS, buckets
from penstock._system.interrupts import interrupts_deferred
from penstock._system.perthread import PerThread

clock = time.perf_counter_ns

TICK = 500_000_000  # ns between two moments of the history

# Answers are kept packed, and many are counted at once, because that takes a tenth of the time.
_ANSWER = struct.Struct("6q")
_MOST = 128  # each is a cache miss when an epoch begins, which copies them


class Answer(NamedTuple):
    """The measurements of one task, whose steps the caller gets one by one. Times are in nanoseconds."""

    wait: int  # how long the caller waited for the first step; it does not wait for the others
    work: int  # from the first step until the caller asked for the next task
    steps: int  # batches that were handed out
    rows: int
    nbytes: int
    ready: int  # 1 if the first batch was ready when the caller asked for it, otherwise 0


class Totals(NamedTuple):
    """The caller's totals over a period. `waits` and `works` are histograms with one duration for each batch."""

    tasks: int
    sums: Answer
    waits: NDArray[np.int64]
    works: NDArray[np.int64]
    replaced: int = 0
    repeated: int = 0
    skipped: int = 0
    cpu: int = 0
    cache_fetched: int = 0  # this and the following fields are counted by scouts: see CacheCounts
    cache_evicted: int = 0
    cache_requests: int = 0
    cache_retries: int = 0
    cache_nbytes: int = 0

    def minus(self, before: Totals) -> Totals:
        sums = Answer._make(now - then for now, then in zip(self.sums, before.sums, strict=True))
        rest = (getattr(self, name) - getattr(before, name) for name in Totals._fields[2:])
        return Totals(self.tasks - before.tasks, sums, *rest)

    def plus(self, answers: bytes) -> Totals:
        """Returns these totals plus the packed `Answer` tuples."""
        if not answers:
            return self
        table = np.frombuffer(answers, np.int64).reshape(-1, len(Answer._fields))
        wait, work, steps = table[:, 0], table[:, 1], table[:, 2]
        waits, works = self.waits + buckets(wait), self.works + buckets(work // np.maximum(steps, 1), steps)
        waits[0] += int(steps.sum()) - len(table)
        sums = Answer._make(map(operator.add, self.sums, table.sum(axis=0).tolist()))
        return self._replace(tasks=self.tasks + len(table), sums=sums, waits=waits, works=works)


class MeterSnapshot(NamedTuple):
    """A copy of all counters at one moment. Copying takes 15 µs; `sum` computes the totals later."""

    totals: Totals
    answers: bytes  # packed answers that `totals` does not include yet
    more: tuple[int, ...]  # the other fields of Totals
    ended: dict[int, Counts]  # the workers of engines that have ended, by seat
    ended_times: bytes  # their histogram of sample times, as 8-byte words
    copies: list[RowCopy]  # the other workers

    def sum(self) -> Totals:
        return Totals(*self.totals.plus(self.answers)[:4], *self.more)

    def workers(self) -> dict[int, Counts]:
        found = dict(self.ended)
        for copy in self.copies:
            counts = copy.counts()
            found[copy.seat] = counts.plus(found[copy.seat]) if copy.seat in found else counts
        return found

    def times(self) -> list[bytes]:
        """Returns the histograms of sample times, as 8-byte words."""
        return [self.ended_times, *(copy.times() for copy in self.copies)]

    def histogram(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.array([np.frombuffer(one, np.int64) for one in self.times()]).sum(axis=0)
        return found


def _none_yet() -> list[int]:
    return [0, 0]


_NOTHING = Totals(0, Answer(0, 0, 0, 0, 0, 0), *np.zeros((2, BUCKETS), np.int64))


class Troubles:
    """One thread's counts of replaced workers, repeated steps and skipped samples."""

    __slots__ = ("repeated", "replaced", "skipped")

    def __init__(self) -> None:
        self.replaced = self.repeated = self.skipped = 0


_NO_TROUBLES = Troubles()
# In the order of the fields of `Totals`.
_TROUBLES = operator.attrgetter("replaced", "repeated", "skipped")
_AHEAD = operator.attrgetter("fetched", "evicted", "requests", "retries", "nbytes")


class Meter:
    """The counters of one loader over its whole life. `due` becomes True twice a second while batches are handed out.

    Several threads may read the loader at once, and any thread may read the counters. No method waits for a lock,
    because a finalizer may interrupt any method at any point and change the counters too.
    """

    def __init__(self) -> None:
        self.due = False
        self.every = TICK
        self.next_tick = 0
        self.asked = 0  # when the caller last asked for a batch
        self.follow: Callable[[Any], None] | None = None  # called with each new engine while a trace is written
        self.publish: Callable[[], None] = lambda: None  # shows the figures to `penstock top` now
        self.troubles = PerThread(Troubles)
        self.scouts = CacheCounts()  # shared by all scouts of the loader
        self.begin_epoch()
        self._longest_ever = PerThread(_none_yet)
        # `_kept` has the last answers, by number. `_state` has the totals, and the kept answers that the totals
        # already include. Both are in one tuple, so that another thread counts each answer once. Adding or removing
        # an entry of a dict, and copying the dict, are atomic, and so is counting (decision 0057).
        self._kept: dict[int, bytes] = {}
        self._numbers = itertools.count()
        self._state: tuple[Totals, dict[int, bytes]] = _NOTHING, {}
        self._adding = threading.Lock()  # no thread waits for it: see `add_up`
        self._cpu = time.process_time_ns()
        self.first = 0  # when the first batch was handed out
        # The figures of engines that have ended:
        self._counts: dict[int, Counts] = {}
        self._nodes: dict[int, str] = {}
        self._times = bytes(8 * BUCKETS)
        self._slowest: list[tuple[int, Slow]] = []
        self._ending: deque[Gauges] = deque()
        self._keeping = threading.Lock()  # no thread waits for it: see `keep`

    def answered(self, wait: int, work: int, steps: int, rows: int, nbytes: int, ready: int) -> int:
        """Stores a task's measurements for `add_up`. Returns how many tasks are stored."""
        self._kept[next(self._numbers)] = _ANSWER.pack(wait, work, steps, rows, nbytes, ready)
        longest = self._longest.mine()
        if wait > longest[0] or work > longest[1] * steps:
            each = work // max(1, steps)
            for kept in (longest, self._longest_ever.mine()):
                kept[:] = max(kept[0], wait), max(kept[1], each)
        return len(self._kept)

    def begin_epoch(self) -> None:
        self._longest = PerThread(_none_yet)

    def longest(self, *, ever: bool = False) -> tuple[int, int]:
        """Returns the longest wait and longest working time, in this epoch or (with `ever`) in the loader's life."""
        found = (self._longest_ever if ever else self._longest).all()
        return max((wait for wait, _ in found), default=0), max((work for _, work in found), default=0)

    def add_up(self) -> None:
        """Adds the stored measurements to the totals. Finalizers must not call this method: see `keep`."""
        with interrupts_deferred():
            if self._adding.acquire(blocking=False):  # otherwise another thread is doing it
                try:
                    (totals, _), counted = self._state, self._kept.copy()
                    totals = totals.plus(b"".join(counted.values()))
                    self._state = totals, counted
                    for number in counted:
                        del self._kept[number]
                    self._state = totals, {}
                finally:
                    self._adding.release()

    def snapshot(self, live: list[Gauges], open_answers: Sequence[Answer] = ()) -> MeterSnapshot:
        """Returns a copy of all counters. `open_answers` are the measurements of tasks still being handed out."""
        state, kept = None, self._kept
        while state is not self._state:
            state = self._state
            kept = self._kept.copy()
        totals, counted = state
        for number in counted:
            kept.pop(number, None)
        answers = b"".join([*kept.values(), *(_ANSWER.pack(*answer) for answer in open_answers)])
        troubles = self.troubles.sums(_TROUBLES, _NO_TROUBLES)
        cpu = time.process_time_ns() - self._cpu
        ahead = self.scouts.sums(_AHEAD)
        copies = [gauges.copy(seat) for gauges in live for seat in sorted(gauges.seats)]
        return MeterSnapshot(totals, answers, (*troubles, cpu, *ahead), self._counts, self._times, copies)

    def keep(self, gauges: Gauges) -> None:
        """Saves the counters of these workers, which are about to end.

        A finalizer may call this method, so it must not compute with numpy. A finalizer may run while a context
        variable, such as that of `np.errstate`, is being set. If numpy reads the variable at that moment, CPython
        caches a value that is about to be freed, and numpy fails from then on ("invalid PyCapsule object").
        """
        self._ending.append(gauges)
        # If another thread is doing it, or this thread further up its stack, it saves these too.
        while self._ending and self._keeping.acquire(blocking=False):
            try:
                while self._ending:
                    self._keep(self._ending.popleft())
            finally:
                self._keeping.release()

    def _keep(self, gauges: Gauges) -> None:
        snapshot = self.snapshot([gauges])
        words = [memoryview(one).cast("q") for one in snapshot.times()]
        self._counts, self._times = snapshot.workers(), array("q", map(sum, zip(*words, strict=True))).tobytes()
        self._slowest = self.slowest([gauges])
        self._nodes = self.nodes([gauges])
        gauges.seats = frozenset()

    def nodes(self, live: list[Gauges]) -> dict[int, str]:
        """Returns the machine names of remote workers by seat, including workers that have ended."""
        found = dict(self._nodes)
        for gauges in live:
            found.update(gauges.nodes)
        return found

    def slowest(self, live: list[Gauges], epoch: int | None = None) -> list[tuple[int, Slow]]:
        """Returns the slowest samples of one epoch or all epochs as (seat, sample) pairs, the slowest first."""
        found = [one for one in self._slowest if epoch in (None, one[1].epoch)]
        for gauges in live:
            found += [(seat, slow) for seat in gauges.seats for slow in gauges.slowest(seat, epoch)]
        return sorted(found, key=lambda one: -one[1].ns)[:MOST_SLOW]


class Tracer(Protocol):
    """Receives the events of an engine while a trace is written. All times are in nanoseconds."""

    def asked(self, answered: int, now: int) -> None: ...
    def delivers(self, seq: int) -> None: ...
    def answered(self, asked: int, now: int) -> None: ...
    def lost(self, who: str, how: str) -> None: ...
    def hired(self, seat: int, replaces: str) -> None: ...
    def resized(self, workers: int) -> None: ...
    def end(self) -> None: ...


class Stopwatch:
    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.tracer: Tracer | None = None  # any thread may change it
        self._asked = self._answered = 0
        self._ready = self._wait = 0
        self._delivered = 0, 0, 0  # steps, rows and bytes of the last task
        self._in_hand = False  # the answer is being handed out

    def ask(self) -> int:
        """Records that the caller asks for a batch and has thus finished the last task. Returns the current time."""
        now, meter = clock(), self.meter
        self._asked = meter.asked = now
        if self._in_hand:
            self._in_hand = False
            steps, rows, nbytes = self._delivered
            if meter.answered(self._wait, now - self._answered, steps, rows, nbytes, self._ready) > _MOST:
                meter.add_up()
            self._wait = 0
            if (tracer := self.tracer) is not None:
                tracer.asked(self._answered, now)
        if now > meter.next_tick:
            meter.next_tick = now + meter.every
            meter.due = True
        return now

    def deliver(self, steps: int, rows: int, nbytes: int, seq: int = -1) -> None:
        self._delivered = steps, rows, nbytes
        self._in_hand = True
        if (tracer := self.tracer) is not None:
            tracer.delivers(seq)

    def answer(self, ready: bool) -> None:
        """Records that the caller's request has ended. After a timeout, the wait counts towards the next request."""
        now = self._answered = clock()
        self._wait += now - self._asked
        self._ready = ready
        if (tracer := self.tracer) is not None:
            tracer.answered(self._asked, now)
        if not self.meter.first:
            self.meter.first = now

    def stop(self, left: int) -> None:
        """Records that the caller has stopped reading. `left` steps of the last task were not handed out."""
        if self._in_hand:
            self._in_hand = False
            self.meter.answered(*self.in_hand(left, clock()))
        self._wait = 0

    def in_hand(self, left: int, now: int) -> Answer:
        """Returns the measurements of the current task, of which `left` steps have not been handed out yet."""
        steps, rows, nbytes = self._delivered
        done = max(0, steps - left)
        rows, nbytes = rows * done // max(1, steps), nbytes * done // max(1, steps)
        return Answer(self._wait, now - self._answered, done, rows, nbytes, self._ready)

    def open_answer(self, left: int) -> Answer | None:
        return self.in_hand(left, clock()) if self._in_hand else None

    # Events of workers.

    def hired(self, seat: int, replaces: str) -> None:
        if (tracer := self.tracer) is not None:
            tracer.hired(seat, replaces)

    def lost(self, who: str, how: str, steps: int) -> None:
        """Records that a worker has died, and that `steps` steps must be repeated."""
        troubles = self.meter.troubles.mine()
        troubles.replaced += 1
        troubles.repeated += steps
        if (tracer := self.tracer) is not None:
            tracer.lost(who, how)

    def resized(self, workers: int) -> None:
        if (tracer := self.tracer) is not None:
            tracer.resized(workers)

    def end(self, gauges: Gauges) -> None:
        if (tracer := self.tracer) is not None:
            tracer.end()
        if not sys.is_finalizing():  # numpy may be gone by then
            self.meter.keep(gauges)
