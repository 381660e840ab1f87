"""Collects the measurements from which `figures.py` computes `Stats`: those of a loader's caller and workers."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from penstock._engine.engine import Engine
from penstock._measure import page
from penstock._measure.gauges import Counts, Gauges
from penstock._measure.meter import Answer, Meter, MeterSnapshot, Stopwatch, clock
from penstock._system.interrupts import import_whole
from penstock.stats._hooks import Turns

if TYPE_CHECKING:
    from penstock._session.tracing import Tracing
    from penstock.stats._figures import Decision, Machine, Moment, Stats

# Limit on the moments in the history. Beyond it every second one is dropped, and new ones are taken half as often.
_MOST_MOMENTS = 512
_MOST_DECISIONS = 256

# Figures are published for `penstock top` at the second tick, and then at every fourth one. Publishing takes a
# millisecond, or two with many workers.
_PUBLISHED = 4

# After a longer pause between two epochs, the throttled time is read again. That takes 0.05 ms, and
# delays the next batch.
_PAUSE = 10_000_000  # ns

_IN_THE_CALLER = {"inline": "the calling process", "prefetch": "the reading thread"}


def displayed_name(settings: Mapping[str, Any]) -> str:
    """Returns a format string for worker names, or "" if the workers run in other processes."""
    return "worker {} (thread)" if settings.get("threads") else _IN_THE_CALLER.get(str(settings.get("backend")), "")


class MeasuredCrew(Protocol):
    """A group of workers to measure: an `Engine`, or the reading thread of `prefetch`."""

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
    """Collects a loader's measurements. `crews` returns the live groups of workers."""

    def __init__(
        self, name: str, settings: Callable[[], Mapping[str, Any]], crews: Callable[[], Iterable[MeasuredCrew]]
    ) -> None:
        self.name = name
        self.meter = Meter()
        self.settings, self.crews = settings, crews
        self.began = self.hired = 0  # when `iter()` was first called, and when the first workers were started
        self.shipped = 0.0
        self._first: list[int] | None = None  # the times of `first_batch`
        self.nothing = self.meter.snapshot([])
        self.epoch, self.base = 0, self.nothing  # the counters when the epoch began
        self.history: list[Moment] = []
        self._ticks, self._every = 0, 1
        self.epochs = 0
        self._turns = Turns()
        self.throttled: float | None = None  # read at the second tick, so that the first batch does not wait for it
        self.strain: Machine | None = None  # as it was when the loader was last read
        self.decisions: list[Decision] = []
        # Returns figures of the plan, such as the padding of batches, by the names of the fields of `Stats`.
        self.planned: Callable[[], Mapping[str, Any]] = dict
        self._tracing: Tracing | None = None
        self.meter.publish = partial(_publish, weakref.ref(self))  # a weak reference: the meter may live longer

    # Called when something happens.

    def begin_epoch(self, epoch: int) -> None:
        """Begins measuring an epoch. `iter()` calls this before the workers start the epoch."""
        if not self.began:
            self.began = self.hired = clock()
        self.first_batch()  # now, because later the workers that made it may be gone
        if self.throttled is not None and clock() - self.meter.asked > _PAUSE:
            # The time between two epochs does not count.
            before = 0.0 if self.strain is None else self.strain.throttled
            self.throttled = figures().throttled() - before
        self.epoch, self.base = epoch, self.snapshot()
        self.meter.begin_epoch()
        self.epochs += 1

    def started(self, engine: Engine) -> None:
        if not self.meter.first:
            self.hired, self.shipped = clock(), getattr(engine.backend, "shipped", 0.0)

    def end_epoch(self) -> None:
        """Records that an epoch was read to its end rather than abandoned."""
        self._turns.epoch_ended(clock() * 1e-9, self.stats)

    def tick(self) -> None:
        """Updates the figures that change over time. Called twice per second.

        Only some of the calls extend the history or publish the statistics.
        """
        self.meter.due = False
        self._ticks += 1
        if self._ticks % self._every == 0:
            self.history.append(figures().moment(self))
            if len(self.history) > _MOST_MOMENTS:
                self.history = self.history[::2]
                self._every *= 2
        if self._ticks % _PUBLISHED == 2:
            self.publish()
        if self._ticks == 2:
            self.throttled = figures().throttled()
        self._turns.tick(clock() * 1e-9, self.stats)

    def publish(self) -> None:
        # A late import: it takes a few milliseconds, and many loaders end before this is called.
        import_whole("penstock.stats._published")
        from penstock.stats._published import publish

        publish(self, self.stats())

    def trace(self, path: str | os.PathLike[str]) -> Tracing:
        """Starts tracing all crews, including those that start later."""
        from penstock._session.tracing import Tracing

        if self._tracing is not None and not self._tracing.closed:
            raise RuntimeError(f"This loader already writes a trace ({self._tracing.path}): close that one first.")
        worker = displayed_name(self.settings()) or "worker {}"
        self._tracing = Tracing(path, self.name, worker, self.crews)
        self.meter.follow = self._tracing.follow
        return self._tracing

    def close(self) -> None:
        page.withdraw(self)
        if self._tracing is not None:
            self._tracing.close()

    def decide(self, workers: int, prefetch_factor: int, reason: str) -> None:
        from penstock.stats._figures import Decision

        at = (clock() - self.began) * 1e-9
        self.decisions = [*self.decisions[1 - _MOST_DECISIONS :], Decision(at, workers, prefetch_factor, reason)]

    # The figures.

    def sums(self) -> tuple[Answer, list[Counts]]:
        snapshot = self.snapshot()
        return snapshot.sum().sums, list(snapshot.workers().values())

    def stats(self) -> Stats:
        stats: Stats = figures().stats(self)
        return stats

    def report(self, path: str | os.PathLike[str]) -> None:
        import_whole("penstock.stats._report")
        from penstock.stats._report import write

        write(self.stats(), path)

    def live(self) -> list[Gauges]:
        return [crew.gauges for crew in self.crews()]

    def snapshot(self) -> MeterSnapshot:
        """Returns a copy of all counters. Of a task that is being handed out, counts the steps so far."""
        crews = list(self.crews())
        answers = [answer for crew in crews if (answer := crew.open_answer()) is not None]
        return self.meter.snapshot([crew.gauges for crew in crews], answers)

    def first_batch(self) -> list[int] | None:
        """Returns the times of five events that led to the first batch, or None if there has been no batch yet.

        These are the times at which `iter()` was called, the workers were started, a worker became ready, a worker
        had fetched a sample, and the caller received the batch.
        """
        if self._first is None and self.meter.first:
            counts = self.meter.snapshot(self.live()).workers().values()
            began, hired, first = self.began, self.hired, self.meter.first
            ready = min((one.ready for one in counts if one.ready > began), default=hired)
            fetched = min((one.first for one in counts if one.first > began), default=first)
            at = [began, hired, max(hired, ready), fetched, first]
            # The first worker may be ready before all are started.
            self._first = [max(at[: number + 1]) for number in range(len(at))]
        return self._first


def _publish(measures: weakref.ref[Measures]) -> None:
    found = measures()
    if found is not None:
        found.publish()


def figures() -> Any:
    """Returns the module that computes `Stats`. The first call imports the module."""
    import_whole("penstock._session.figures")
    from penstock._session import figures

    return figures
