"""Turns the counters of a loader's caller and workers into its statistics (`Stats`)."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._engine.engine import Engine
from penstock._measure import page
from penstock._measure.cached import CacheCounts
from penstock._measure.gauges import Counts, Gauges, Slow
from penstock._measure.histogram import bounds, quantile
from penstock._measure.meter import Answer, Meter, MeterSnapshot, Stopwatch, Totals, clock
from penstock._system.interrupts import import_whole
from penstock.stats._figures import (
    Bucket,
    CacheFigures,
    Decision,
    FirstBatch,
    Machine,
    Memory,
    Moment,
    Outage,
    Period,
    SlowSample,
    Spans,
    Stats,
    WorkerFigures,
)
from penstock.stats._hooks import Turns
from penstock.stats._machine import machine, throttled

if TYPE_CHECKING:
    from penstock._session.tracing import Tracing

# Limit on the moments in the history. Beyond it every second one is dropped, and new ones are taken half as often.
_MOST_MOMENTS = 512
_MOST_DECISIONS = 256

# Figures are published for `penstock top` at the second tick, and then at every fourth one. Publishing takes a
# millisecond, or two with many workers.
_PUBLISHED = 4

# After a longer pause between two epochs, the throttled time is read again. That takes 0.05 ms, and
# delays the next batch.
_PAUSE = 10_000_000  # ns

_TIMES = ("fetch", "collate", "write", "waited_task", "waited_room", "cpu", "delayed")
_IN_THE_CALLER = {"inline": "the calling process", "prefetch": "the reading thread"}


def _here(settings: Mapping[str, Any]) -> str:
    """Returns the display name of workers in this process, with {} for their number; "" if workers run elsewhere."""
    return "worker {} (thread)" if settings.get("threads") else _IN_THE_CALLER.get(str(settings.get("backend")), "")


class MeasuredCrew(Protocol):
    """A group of workers that is measured: an `Engine`, or the reading thread of `prefetch`."""

    @property
    def stopwatch(self) -> Stopwatch: ...
    @property
    def gauges(self) -> Gauges: ...
    @property
    def seats(self) -> list[int]: ...
    @property
    def ready(self) -> int: ...
    def open_answer(self) -> Answer | None: ...
    def memory(self) -> tuple[int, int, int]: ...


class Measures:
    """Collects a loader's measurements and makes its `Stats`. `crews` returns the live groups of workers."""

    def __init__(
        self, name: str, settings: Callable[[], Mapping[str, Any]], crews: Callable[[], Iterable[MeasuredCrew]]
    ) -> None:
        self.name = name
        self.meter = Meter()
        self._settings, self._crews = settings, crews
        self._began = self._started = 0  # when `iter()` was first called, and when the first workers were started
        self._shipped = 0.0
        self._first: FirstBatch | None = None
        self._nothing = self.meter.snapshot([])
        self._epoch, self._base = 0, self._nothing  # the counters when the epoch began
        self._history: list[Moment] = []
        self._ticks, self._every = 0, 1
        self._epochs = 0
        self._turns = Turns()
        self._throttled: float | None = None  # read at the second tick, so that the first batch does not wait for it
        self._strain: Machine | None = None  # as it was when the loader was last read
        self.decisions: list[Decision] = []
        # Returns figures of the plan, such as the padding of batches, by the names of the fields of `Stats`.
        self.planned: Callable[[], Mapping[str, Any]] = dict
        self._tracing: Tracing | None = None
        self.meter.publish = partial(_publish, weakref.ref(self))  # a weak reference: the meter may live longer

    # Called when something happens.

    def begin_epoch(self, epoch: int) -> None:
        """Called by `iter()`, before the workers start the epoch."""
        if not self._began:
            self._began = self._started = clock()
        self._first_batch()  # now, because later the workers that made it may be gone
        if self._throttled is not None and clock() - self.meter.asked > _PAUSE:
            # The time between two epochs does not count.
            before = 0.0 if self._strain is None else self._strain.throttled
            self._throttled = throttled() - before
        self._epoch, self._base = epoch, self._snapshot()
        self.meter.longest[:] = 0, 0
        self._epochs += 1

    def started(self, engine: Engine) -> None:
        if not self.meter.first:
            self._started, self._shipped = clock(), getattr(engine.backend, "shipped", 0.0)

    def end_epoch(self) -> None:
        """Called when an epoch has been read to its end, but not when it is abandoned."""
        self._turns.epoch_ended(clock() * 1e-9, self.stats)

    def tick(self) -> None:
        """Extends the history and, on some ticks, publishes the statistics. Called twice a second."""
        self.meter.due = False
        self._ticks += 1
        if self._ticks % self._every == 0:
            self._history.append(self._moment())
            if len(self._history) > _MOST_MOMENTS:
                self._history = self._history[::2]
                self._every *= 2
        if self._ticks % _PUBLISHED == 2:
            self.publish()
        if self._ticks == 2:
            self._throttled = throttled()
        self._turns.tick(clock() * 1e-9, self.stats)

    def publish(self) -> None:
        # A late import: it takes a few milliseconds, and many loaders end before this is called.
        import_whole("penstock.stats._published")
        from penstock.stats._published import publish

        publish(self, self.stats())

    def trace(self, path: str | os.PathLike[str]) -> Tracing:
        """Begins a trace of all crews, including those that start later."""
        from penstock._session.tracing import Tracing

        if self._tracing is not None and not self._tracing.closed:
            raise RuntimeError(f"This loader already writes a trace ({self._tracing.path}): close that one first.")
        worker = _here(self._settings()) or "worker {}"
        self._tracing = Tracing(path, self.name, worker, self._crews)
        self.meter.follow = self._tracing.follow
        return self._tracing

    def close(self) -> None:
        page.withdraw(self)
        if self._tracing is not None:
            self._tracing.close()

    def decide(self, workers: int, prefetch_factor: int, reason: str) -> None:
        at = (clock() - self._began) * 1e-9
        self.decisions = [*self.decisions[1 - _MOST_DECISIONS :], Decision(at, workers, prefetch_factor, reason)]

    # The figures.

    def sums(self) -> tuple[Answer, list[Counts]]:
        snapshot = self._snapshot()
        return snapshot.sum().sums, list(snapshot.workers.values())

    def stats(self) -> Stats:
        now, meter = self._snapshot(), self.meter
        epoch = self._period(now, self._base, meter.longest, self._epoch)
        life = self._period(now, self._nothing, meter.longest_ever, None)
        return Stats(
            self.name,
            self._settings(),
            epoch,
            life,
            self._epoch,
            self._first_batch(),
            self._memory(),
            self._machine(),
            decisions=tuple(self.decisions),
            history=tuple(self._history),
            outage=self._outage(),
            **self.planned(),
        )

    def _outage(self) -> Outage | None:
        found = [crew.gauges.outage(crew.seats) for crew in self._crews()]
        seen = [one for one in (*found, self.meter.scouts.outage) if one is not None and one.is_long]
        longest = max(seen, key=lambda one: one.seconds, default=None)
        return None if longest is None else Outage(longest.store, longest.seconds)

    def report(self, path: str | os.PathLike[str]) -> None:
        import_whole("penstock.stats._report")
        from penstock.stats._report import write

        write(self.stats(), path)

    def _live(self) -> list[Gauges]:
        return [crew.gauges for crew in self._crews()]

    def _snapshot(self) -> MeterSnapshot:
        """Returns all counters. If a task is only partly handed out, only this part counts."""
        crews = list(self._crews())
        answers = [answer for crew in crews if (answer := crew.open_answer()) is not None]
        return self.meter.snapshot([crew.gauges for crew in crews], answers)

    def _period(self, now: MeterSnapshot, before: MeterSnapshot, longest: list[int], epoch: int | None) -> Period:
        """Returns the statistics between two snapshots: for one epoch, or the loader's life if `epoch` is None."""
        totals = now.sum().minus(before.sum())
        sums, known = totals.sums, before.workers
        seats = {seat for crew in self._crews() for seat in crew.seats}
        workers = {
            seat: counts.minus(known[seat]) if seat in known else counts
            for seat, counts in sorted(now.workers.items())
        }
        here = _here(self._settings())
        nodes = self.meter.nodes(self._live())
        figures = [_worker(seat, row, seat in seats, here, nodes.get(seat, "")) for seat, row in workers.items()]
        counted = now.histogram() - before.histogram()
        found = [Bucket(*bounds(at), int(count)) for at, count in enumerate(counted) if count > 0]
        slowest = self.meter.slowest(self._live(), epoch)
        return Period(
            seconds=(sums.wait + sums.work) * 1e-9,
            batches=sums.steps,
            samples=sums.rows,
            nbytes=sums.nbytes,
            waits=_spans(sums.steps, sums.wait, totals.waits, longest[0]),
            works=_spans(sums.steps, sums.work, totals.works, longest[1]),
            ready=sums.ready + sums.steps - totals.tasks,
            tasks=totals.tasks,
            caller_cpu=totals.cpu * 1e-9,
            workers=tuple(figures),
            slowest=tuple(_slow(slow, figures, seat) for seat, slow in slowest),
            sample_times=tuple(found),
            replaced=totals.replaced,
            repeated=totals.repeated,
            skipped=totals.skipped,
            epochs=self._epochs if epoch is None else 1,
            cache=_cache(totals, list(workers.values()), self.meter.scouts),
        )

    def _first_batch(self) -> FirstBatch | None:
        if self._first is None and self.meter.first:
            counts = self.meter.workers(self._live()).values()
            began, started, first = self._began, self._started, self.meter.first
            ready = min((one.ready for one in counts if one.ready > began), default=started)
            fetched = min((one.first for one in counts if one.first > began), default=first)
            at = [began, started, max(started, ready), fetched, first]
            at = [
                max(at[: number + 1]) for number in range(len(at))
            ]  # the first worker may be ready before all are started
            parts = [(after - before) * 1e-9 for before, after in pairwise(at)]
            self._first = FirstBatch((first - began) * 1e-9, parts[0], self._shipped, *parts[1:])
        return self._first

    def _memory(self) -> Memory:
        found = [crew.memory() for crew in self._crews()]
        return Memory(*(sum(column) for column in zip(*found, strict=True))) if found else Memory()

    def _machine(self) -> Machine:
        inline = self._settings().get("backend") == "inline"
        gauges = [(crew.gauges, seat) for crew in self._crews() for seat in crew.seats]
        rows = [
            each.counts(seat) for each, seat in gauges if seat not in each.nodes
        ]  # a worker on another node has no pid here
        found = machine([counts.pid for counts in rows if counts.pid and not inline], self._throttled or 0.0)
        if self._throttled is None:
            found = replace(found, throttled=0.0)
        # After an epoch, workers may be gone, and the program does something else. Then the last values count.
        if self._strain is None or any(crew.open_answer() is not None for crew in self._crews()):
            self._strain = found
        return replace(found, throttled=self._strain.throttled, swapped=self._strain.swapped)

    def _moment(self) -> Moment:
        sums, memory = self._snapshot().sum().sums, self._memory()
        crews = list(self._crews())
        return Moment(
            at=(clock() - self._began) * 1e-9,
            batches=sums.steps,
            waited=sums.wait * 1e-9,
            worked=sums.work * 1e-9,
            ready=sum(crew.ready for crew in crews),
            busy=sum(counts.since > 0 for gauges in self._live() for counts in gauges.all().values()),
            workers=sum(len(crew.seats) for crew in crews),
            lent=memory.lent,
            pooled=memory.pooled,
        )


def _publish(measures: weakref.ref[Measures]) -> None:
    found = measures()
    if found is not None:
        found.publish()


def _spans(count: int, total: int, histogram: NDArray[np.int64], longest: int) -> Spans:
    counts = histogram.tolist()
    middle, most = (min(quantile(counts, share), longest * 1e-9) for share in (0.5, 0.95))
    return Spans(count, total * 1e-9, middle, most, longest * 1e-9)


def _worker(seat: int, counts: Counts, alive: bool, here: str, node: str) -> WorkerFigures:
    name = here.format(seat) or f"worker {seat} (pid {counts.pid}{f' on {node}' if node else ''})"
    times = {part: getattr(counts, part) * 1e-9 for part in _TIMES}
    return WorkerFigures(seat, name, alive, counts.tasks, counts.steps, **times, node=node, pil=bool(counts.pil))


def _cache(totals: Totals, workers: list[Counts], scouts: CacheCounts) -> CacheFigures | None:
    def of(name: str) -> int:
        return sum(getattr(counts, f"cache_{name}") for counts in workers)

    found = CacheFigures(
        hits=of("hits"),
        misses=of("misses"),
        waited=of("waited") * 1e-9,
        fetched=of("fetched") + totals.fetched,
        evicted=of("evicted") + totals.evicted,
        requests=of("requests") + totals.requests,
        retries=of("retries") + totals.retries,
        nbytes=of("nbytes") + totals.fetched_nbytes,
        decoded=of("decoded"),
    )
    return None if found == CacheFigures() else replace(found, needed=scouts.needed, limit=scouts.limit)


def _slow(slow: Slow, figures: list[WorkerFigures], seat: int) -> SlowSample:
    key = int(slow.key) if slow.key.lstrip("-").isdecimal() else slow.key
    name = next((one.name for one in figures if one.seat == seat), f"worker {seat}")
    return SlowSample(key, slow.ns * 1e-9, slow.epoch, slow.step, name, slow.path)
