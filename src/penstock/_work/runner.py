"""Runs tasks: the part of a worker that is the same inline, in a thread and in a process; and the job they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from penstock._at_work import at_work, set_worker_info
from penstock._fill.cast import Cast, Empty, Into
from penstock._fill.collate import collate, convert
from penstock._measure.gauges import NO_GAUGE, Gauge, NoGauge
from penstock._memory.layout import Writer
from penstock._system.interrupts import Loan, import_whole
from penstock._wire.failure import Failure, caught, copied, dict_of, shown
from penstock._wire.task import Mended, Task, shorten
from penstock._wire.updates import Change, Log
from penstock._work.samples import Fetch, Samples
from penstock.errors import CastError
from penstock.plan._order import Order
from penstock.worker_info import WorkerInfo


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Job:
    """What each worker of a crew has from its start: everything that is the same for all steps."""

    dataset: Any
    fetch: Any  # the worker's half of the feed: called with the runner
    collate_fn: Any
    worker_init_fn: Callable[[int], object] | None
    num_workers: int
    seed: int
    drop_last: bool
    shard: tuple[int, int] = (0, 1)  # the rank that this crew works for, and the number of ranks
    batched: bool = True
    batch_size: int = 1  # samples in each step of a stream, except the last
    on_error: str = "raise"
    order: Order | None = None  # replacements are drawn from it; None: from the step itself
    cast: Cast | None = None  # how the numbers in a batch are converted
    make_runner: Callable[..., Any] | None = None  # for workers that run tasks in another way
    assigned: bool = False  # each task is for one worker, and not for the first that is free
    log: Log = field(default_factory=Log)


class Runner:
    """Does one task after another with one dataset. `who` names the worker in errors.

    After a task, `rows` is the number of samples that went into its batch, `mended` tells of those that failed and
    were left out or replaced, and `mark` tells where a stream with a state is, even if the task failed.
    """

    def __init__(self, job: Job, who: str) -> None:
        self.job = job
        self.who = who
        # What every task fails with, once there is such a thing: where, and the error with its traceback.
        self._broken: tuple[str, BaseException, TracebackType | None] | None = None
        # Only where the global generators belong to this process alone: threads share them with the caller.
        self._seed_step: Callable[[int, int, int], int] | None = None
        self._rank, self._world = job.shard
        # What is being done, and to which keys: put into words only when it fails.
        self._at = ""
        self._keys: Any = None
        self.notes: list[str] = []  # about the error that comes out of `run`, and not for the user's object itself
        self.task: Task
        self.gauge: Gauge | NoGauge = NO_GAUGE  # the backend gives it another
        self.rows = 0
        self.mark: bytes | None = None
        self.samples = Samples(self)
        # A collate function that can write its arrays straight into the batch's memory.
        self._into: Callable[[Any, Any], Any] | None = getattr(job.collate_fn, "into", None)
        # What becomes of the batch's numbers. Our own collate converts them while it writes.
        self._field = None if job.cast is None else job.cast.root()
        self.fetch: Fetch = job.fetch(self)

    @property
    def mended(self) -> Mended | None:
        return self.samples.mended

    def begin(self, seat: int, *, alone: bool) -> None:
        """What a worker does before its first task. An error in it is every task's error.

        `alone`: this process is this worker, and nothing else.
        """
        job = self.job
        if alone:
            import_whole("penstock._work.seeding")
            from penstock._work.seeding import seed_step  # late: see InlineBackend

            self._seed_step = seed_step
            self.samples.keep = Failure.capture
            self.seed(-1, self.number(seat))
        set_worker_info(WorkerInfo(seat, job.num_workers, job.seed + seat, job.dataset), of_process=alone)
        if job.worker_init_fn is not None:
            try:
                job.worker_init_fn(seat)
            except BaseException as error:
                self._break("worker_init_fn, called before ", error)

    def change(self, changes: Iterable[Change]) -> None:
        """Makes changes of the dataset. An error in one is the error of every task from then on."""
        if self._broken is None:
            try:
                for change in changes:
                    change(self.job.dataset)
                self.fetch.look_up()
            except BaseException as error:
                self._break("update(), made before ", error)

    def _break(self, at: str, error: BaseException) -> None:
        kept = caught(error)
        self._broken = at, kept, kept.__traceback__

    # Random numbers.

    def prepare(self, task: Task) -> int:
        """In a process of its own: sets the global random generators for the task, and returns their seed."""
        return self.seed(task.epoch, self.number(task.step))

    def seed(self, epoch: int, number: int) -> int:
        """Sets the global random generators for the step with this number among those of all ranks."""
        assert self._seed_step is not None
        return self._seed_step(self.job.seed, epoch, number)

    def borrowed(self, task: Task) -> Loan:
        """In the caller's own process: as `prepare`, and the generators are put back afterwards (see `with_loan`)."""
        import_whole("penstock._work.seeding")
        from penstock._work.seeding import Borrowed, seed_step  # late: see InlineBackend

        self._seed_step = seed_step
        return Borrowed(self.job.seed, task.epoch, self.number(task.step))

    def number(self, step: int) -> int:
        """The step's number among those of all ranks: ranks at the same step draw different numbers."""
        return step * self._world + self._rank

    def reseed(self, epoch: int, number: int) -> None:
        """In the middle of a task: from here on random numbers are those of another step."""
        self.samples.draw_for(number)
        if self._seed_step is not None:
            self.seed(epoch, number)

    # One task.

    def run(self, task: Task, writer: Writer) -> object:
        """The batch. Its arrays are in the writer's slab if penstock collates it."""
        self._at, self.rows = "", 0
        self._keys = self.mark = None
        self.notes.clear()
        self.task = task
        self.samples.begin(self.number(task.step))
        outer, at_work.source = at_work.source, self.samples  # as `working_at`, which costs 1 µs
        try:
            batch = self._run(task, writer)
            self.fetch.finish(task)
            return batch
        finally:
            at_work.source = outer

    def _run(self, task: Task, writer: Writer) -> object:
        if self._broken is not None:
            self._at, error, trace = self._broken
            raise copied(error).with_traceback(trace)
        if self._field is None:
            return self._batch(task, writer.empty)
        into = Into(self._field, writer.empty)
        batch = self._batch(task, into)
        if not self.rows or self._is_converted:
            return batch
        try:
            return into.finish(batch, self.rows)
        except CastError as error:
            self.name_rows(error, task)
            raise

    def _batch(self, task: Task, empty: Empty) -> object:
        custom = self.job.collate_fn
        self._is_converted = False
        if custom is None:
            batch = self.fetch.gather(task, empty)
            if batch is not NotImplemented:
                if self.gauge.detailed:
                    self.gauge.fetched = perf_counter_ns()
                return batch
        samples = self.fetch.samples(task)
        if self.gauge.detailed:
            self.gauge.fetched = perf_counter_ns()
        self.rows = len(samples)
        if self.rows == 0 and self.mended is not None:
            return None
        if not self.job.batched:
            return convert(samples[0]) if custom is None else custom(samples[0])
        self.doing("collate of ", None)
        if custom is not None and self._into is None:
            return custom(samples)
        self._is_converted = custom is None
        try:
            return (self._into or collate)(samples, empty)
        except Exception as error:
            self.name_rows(error, task)
            raise

    # For error messages.

    def doing(self, at: str, keys: Any) -> None:
        """What is done from here on, and to which keys."""
        self._at, self._keys = at, keys

    def name_rows(self, error: Exception, task: Task) -> None:
        """Notes for an error about rows (see CollateError) which samples they are, if samples have keys."""
        keys = self.fetch.names(task) if self.mended is None else self.mended.keys
        rows = [row for row in dict_of(error).get("rows", ()) if row < len(keys)]
        if not self.job.batched and keys:
            self.notes.append(f"It is sample {shown(keys[0])}.")
        elif rows:
            named = ", ".join(f"row {row} is sample {shown(keys[row])}" for row in rows[:8])
            self.notes.append(f"{named}{', ...' if len(rows) > 8 else ''}.")

    def capture(self, error: BaseException, task: Task) -> bytes:
        """The error that just came out of `run`, as it travels to the caller."""
        return Failure.capture(error, where=self.where(task), notes=self.notes)

    def caught(self, error: BaseException, task: Task) -> BaseException:
        """The same, for a worker that is not a process."""
        return caught(error, *self.notes, self.where(task))

    def where(self, task: Task) -> str:
        """Which sample of which step failed, and in which worker: for the error that just came out."""
        keys = "" if self._keys is None else f"{shorten(self._keys)}, "
        return f"In {self._at}{keys}step {task.step} of epoch {task.epoch}, in {self.who}."
