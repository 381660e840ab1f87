"""Writes a trace of what a loader's caller and workers do. A task with several batches is traced as a whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from penstock._engine.engine import Engine
from penstock._measure.gauges import Gauges
from penstock._measure.meter import clock
from penstock._schedule.course import Course
from penstock._session.measures import MeasuredCrew
from penstock._system.exit import ends_at_exit
from penstock._wire.task import Task, shorten
from penstock.stats._trace import Trace


class Tracing(AbstractContextManager["Tracing"]):
    """The trace that `loader.trace(path)` returns. It ends at `close()`, after the `with` block, or at exit."""

    def __init__(
        self, path: str | os.PathLike[str], name: str, worker: str, crews: Callable[[], Iterable[MeasuredCrew]]
    ) -> None:
        self._trace, self._worker, self._crews = Trace(path, name), worker, crews
        self.path = self._trace.path
        ends_at_exit(self)
        for crew in crews():
            self.follow(crew)

    @property
    def closed(self) -> bool:
        """True after `close()`, or once writing has stopped early, for example because the disk was full."""
        return self._trace.closed

    def follow(self, crew: MeasuredCrew) -> None:
        if crew.stopwatch.tracer is None and not self.closed:
            course = crew._course if isinstance(crew, Engine) else None
            crew.stopwatch.tracer = CrewTracer(self._trace, self._worker, course, crew.gauges)

    def close(self) -> None:
        """Ends the trace and completes the file."""
        for crew in self._crews():
            tracer, crew.stopwatch.tracer = crew.stopwatch.tracer, None
            if tracer is not None:
                tracer.end()
        self._trace.close()

    at_exit = close

    def __exit__(self, *error: object) -> None:
        self.close()


class CrewTracer:
    """Traces one crew. A tracer does not refer to the engine, because a reference would keep the workers alive."""

    def __init__(self, trace: Trace, worker: str, course: Course | None, gauges: Gauges) -> None:
        self._trace, self._worker, self._course, self._gauges = trace, worker, course, gauges
        self._lock = threading.RLock()  # another thread may end the trace, or a signal handler of this thread
        self._task: Task | None = None  # the last one that was delivered
        self._delivering = 0
        gauges.trace(True)

    def asked(self, answered: int, now: int) -> None:
        """Records that the caller has finished with the last task and asks for the next batch."""
        self._trace.span("work", answered, now, **_which(self._task))

    def delivers(self, seq: int) -> None:
        """Notes which task is about to be handed out, while the task's keys are still known."""
        self._task, self._delivering = self._find(seq), clock()
        self._drain()

    def answered(self, asked: int, now: int) -> None:
        began = max(asked, self._delivering)
        self._trace.span("wait", asked, began if self._delivering else now, **_which(self._task))
        if self._delivering:
            self._trace.span("deliver", began, now, **_which(self._task))
        self._delivering = 0

    def lost(self, who: str, how: str) -> None:
        self._trace.instant("lost", clock(), worker=who, how=how)

    def hired(self, seat: int, replaces: str) -> None:
        more = {"instead_of": replaces} if replaces else {}
        self._trace.instant("replaced" if replaces else "started", clock(), worker=self._worker.format(seat), **more)

    def resized(self, workers: int) -> None:
        self._trace.instant("resized", clock(), workers=workers)

    def end(self) -> None:
        self._gauges.trace(False)
        self._drain()

    def _find(self, seq: int) -> Task | None:
        return None if self._course is None else self._course.find(seq)

    def _drain(self) -> None:
        with self._lock:
            for seat in sorted(self._gauges.seats):
                for record in self._gauges.records(seat):
                    task = self._find(record.seq)
                    keys = "" if task is None or not isinstance(task.keys, (list, np.ndarray)) else shorten(task.keys)
                    self._trace.task(record, self._worker.format(seat), keys)


def _which(task: Task | None) -> dict[str, Any]:
    if task is None:
        return {}
    many = {"steps": task.steps} if task.steps > 1 else {}
    return {"step": task.step, "epoch": task.epoch, **many}
