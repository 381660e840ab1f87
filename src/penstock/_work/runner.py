"""Runs tasks. This part of a worker is the same for all backends: inline, threads and processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from penstock._at_work import at_work, set_worker_info
from penstock._fill.cast import Empty, FieldMemory
from penstock._fill.collate import collate
from penstock._measure.gauges import Gauge, NoGauge
from penstock._memory.layout import Writer
from penstock._system.interrupts import Loan
from penstock._wire.failure import Failure, caught, copied
from penstock._wire.task import Mended, Task
from penstock._wire.updates import Change
from penstock._work.focus import Focus
from penstock._work.generators import Generators
from penstock._work.job import Job
from penstock._work.outcomes import AtEnd, Done, Errored
from penstock.errors import CastError
from penstock.worker_info import WorkerInfo


class Runner:
    """A `TaskRunner` that runs tasks on one dataset. `who` is the worker's name in error messages."""

    make_generators = Generators

    def __init__(self, job: Job, who: str) -> None:
        assert job.fetch is not None
        self.who = who
        self._job = job
        # The operation, error and traceback of a failed start or update. Every later task fails with this error.
        self._broken: tuple[str, BaseException, TracebackType | None] | None = None
        # A collate function that can write its arrays straight into the batch's memory.
        self._into: Callable[[Any, Any], Any] | None = getattr(job.collate_fn, "into", None)
        # How the batch's numbers are converted. penstock's own collate converts them while it writes.
        self._field = None if job.cast is None else job.cast.root()
        self._end_together = job.drop_last and job.shard[1] > 1  # all ranks have the same number of steps
        self._generators = self.make_generators(job.seed)
        self._focus = Focus(job, who, self._generators)
        self._fetch = job.fetch(self._focus)

    def begin(self, seat: int, *, alone: bool) -> None:
        job = self._job
        if alone:
            self._focus.alone = self._focus.seeds = True
            self._generators.allow()
            self._generators.seed(-1, job.number(seat))
        set_worker_info(WorkerInfo(seat, job.num_workers, job.seed + seat, job.dataset), of_process=alone)
        if job.worker_init_fn is not None:
            try:
                job.worker_init_fn(seat)
            except BaseException as error:
                self._break("worker_init_fn, called before ", error)

    def change(self, changes: Iterable[Change]) -> None:
        if self._broken is None:
            try:
                for change in changes:
                    change(self._job.dataset)
                self._fetch.look_up()
            except BaseException as error:
                self._break("update(), made before ", error)

    def look_up(self) -> None:
        """Looks up the dataset's methods again, because the caller has changed the dataset that both share."""
        self._fetch.look_up()

    def _break(self, at: str, error: BaseException) -> None:
        kept = caught(error)
        self._broken = at, kept, kept.__traceback__

    def borrowed(self, task: Task) -> Loan:
        """Returns a loan (temporary use) of the caller's global random generators, seeded for the task."""
        return self._generators.borrowed(task.epoch, self._job.drawing(task.step))

    # One task.

    def run(
        self, task: Task, writer: Writer, gauge: Gauge | NoGauge, *, interruptible: bool = False
    ) -> Done | AtEnd | Errored:
        """Runs a task: see `TaskRunner`.

        If `interruptible` is True, a KeyboardInterrupt is raised, because it is meant for the caller.
        """
        outer, at_work.source = at_work.source, self._focus  # not by `working_at`, which takes 1 µs
        try:
            self._focus.begin(task, gauge)
            if self._broken is not None:
                at, error, trace = self._broken
                self._focus.doing(at, None)
                return self.failed(copied(error).with_traceback(trace), task, None)
            return self._run(task, writer, gauge)
        except BaseException as error:
            if interruptible and isinstance(error, KeyboardInterrupt):
                raise
            return self.failed(error, task, self._fetch.mark)
        finally:
            at_work.source = outer

    def _run(self, task: Task, writer: Writer, gauge: Gauge | NoGauge) -> Done | AtEnd:
        custom, fetch, mended = self._job.collate_fn, self._fetch, None
        into = None if self._field is None else FieldMemory(self._field, writer.empty)
        empty = writer.empty if into is None else into
        gathered = self._gather(task, empty)
        if gathered is not None:
            if gauge.detailed:
                gauge.fetched = perf_counter_ns()
            batch, rows = gathered
        else:
            fetched = fetch.samples(task)
            if fetched is None:
                return AtEnd(fetch.mark)
            if gauge.detailed:
                gauge.fetched = perf_counter_ns()
            samples, mended = fetched
            rows = len(samples)
            batch = None if rows == 0 and mended is not None else self._collate(samples, empty, mended)
        # penstock's own collate has already converted the numbers.
        if into is not None and rows and (custom is not None or gathered is not None or not self._job.batched):
            try:
                batch = into.finish(batch, rows)
            except CastError as error:
                self._focus.name_rows(error, mended)
                raise
        if self._end_together and not fetch.counts(task):
            return AtEnd(fetch.mark)
        return Done(batch, rows, mended, fetch.mark)

    def _gather(self, task: Task, empty: Empty) -> tuple[object, int] | None:
        return self._fetch.gather(task, empty) if self._job.collate_fn is None else None

    def _collate(self, samples: Sequence[Any], empty: Empty, mended: Mended | None) -> object:
        custom = self._job.collate_fn
        if not self._job.batched:
            return samples[0] if custom is None else custom(samples[0])
        self._focus.doing("collate of ", None)
        if custom is not None and self._into is None:
            try:
                return custom(samples)
            except BaseException:
                self._focus.name_all("collate_fn", mended)
                raise
        try:
            return (self._into or collate)(samples, empty)
        except Exception as error:
            self._focus.name_rows(error, mended)
            raise

    # A task that failed.

    def failed(self, error: BaseException, task: Task, mark: bytes | None) -> Errored:
        return Errored(error, self._focus.where(), tuple(self._focus.notes), mark)

    def capture(self, errored: Errored) -> bytes:
        return Failure.capture(errored.error, where=errored.where, notes=errored.notes)
