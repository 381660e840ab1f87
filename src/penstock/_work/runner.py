"""Runs tasks: the part of a worker that is the same inline, in a thread and in a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import numpy as np

from penstock._memory.layout import Writer
from penstock._work.collate import collate, convert
from penstock._work.failure import Failure
from penstock._work.info import WorkerInfo, set_worker_info
from penstock._work.task import BATCHED, Job, Kind, Task, shorten
from penstock.errors import CollateError, WorkerLost


class StreamEnded(Exception):
    """There is nothing left for this step in the stream."""


class Runner:
    """Does one task after another with one dataset. `who` names the worker in errors.

    After a task, `rows` is the number of samples that went into its batch.
    """

    def __init__(self, job: Job, who: str) -> None:
        self._job = job
        self._who = who
        self._init_error: BaseException | None = None
        self._init_notes: list[str] = []
        self._stream: Iterator[Any] = iter(())
        self._stream_run = -1
        self._stream_read = 0  # batches, those of other ranks too
        self._stream_ended = False
        # Where the generators are this process's own. Threads share them with the caller.
        self._seed_step: Callable[[int, int, int], int] | None = None
        self._rank, self._world = job.shard
        # What is being done, and to which keys: put into words only when it fails.
        self._at = ""
        self._keys: Any = None
        self.rows = 0

        dataset, custom = job.dataset, job.collate_fn
        self._getitems: Callable[[Any], Any] | None = getattr(dataset, "__getitems__", None)
        self._gather: Callable[[Any, Any], Any] | None = None
        if custom is None:
            self._gather = getattr(dataset, "__gather__", None)
        # A collate function that can write its arrays where they belong.
        self._into: Callable[[Any, Any], Any] | None = getattr(custom, "into", None)
        self._load: Callable[[Any], Any] | None = getattr(dataset, "load", None)

    def begin(self, seat: int, *, alone: bool) -> None:
        """What a worker does before its first task. An error in it is every task's error.

        `alone`: this process is this worker, and no other.
        """
        job = self._job
        if alone:
            from penstock._work.randomness import seed_step  # late: see InlineBackend

            self._seed_step = seed_step
            self.seed(-1, self._number(seat))
        set_worker_info(WorkerInfo(seat, job.num_workers, job.seed + seat, job.dataset), of_process=alone)
        if job.worker_init_fn is not None:
            try:
                job.worker_init_fn(seat)
            except BaseException as error:
                self._init_error = error
                self._init_notes = list(getattr(error, "__notes__", ()))

    def prepare(self, task: Task) -> int:
        """In a process of its own: sets the global random generators for the task; the number for it."""
        return self.seed(task.epoch, self._number(task.step))

    def seed(self, epoch: int, number: int) -> int:
        """Sets the global random generators for the step with this number among those of all ranks."""
        assert self._seed_step is not None
        return self._seed_step(self._job.seed, epoch, number)

    def borrowed(self, task: Task) -> AbstractContextManager[int]:
        """In the caller's own process: the same, and the generators are put back afterwards."""
        from penstock._work.randomness import borrowed_generators, seed_step  # late: see InlineBackend

        self._seed_step = seed_step
        return borrowed_generators(self._job.seed, task.epoch, self._number(task.step))

    def _number(self, step: int) -> int:
        """The step's number among those of all ranks: ranks that are at the same step draw different numbers."""
        return step * self._world + self._rank

    def run(self, task: Task, writer: Writer) -> object:
        """The batch. Its arrays are in the writer's slab where collate is ours."""
        self._at = ""
        self._keys = None
        try:
            batch = self._run(task, writer)
            if task.kind in (Kind.PULL, Kind.PULL_ONE) and self._job.drop_last and self._world > 1:
                self._finish_round(task)
            return batch
        except StopIteration as error:
            raise RuntimeError(
                "The dataset (or collate_fn, or worker_init_fn) raised StopIteration. That is an error, and does not "
                "end the epoch: raise IndexError for a missing sample, or derive from IterableDataset for a stream."
            ) from error

    def _run(self, task: Task, writer: Writer) -> object:
        if self._init_error is not None:
            self._at = "worker_init_fn, called before "
            self._init_error.__notes__ = list(self._init_notes)  # not those of the step before
            raise self._init_error
        custom = self._job.collate_fn
        if self._gather is not None and task.kind is Kind.KEYS:
            self.rows = len(task.keys)
            self._at, self._keys = "__gather__ of samples ", task.keys
            return self._gather(np.asarray(task.keys), writer.empty)
        samples = self._samples(task)
        if task.kind not in BATCHED:
            self.rows = 1
            return convert(samples) if custom is None else custom(samples)
        self.rows = len(samples)
        self._at, self._keys = "collate of ", None
        if self._into is not None:
            return self._into(samples, writer.empty)
        if custom is not None:
            return custom(samples)
        try:
            return collate(samples, writer.empty)
        except CollateError as error:
            _name_rows(error, task)
            raise

    def capture(self, error: BaseException, task: Task) -> bytes:
        """The error that just came out of `run`, as it travels to the caller."""
        return Failure.capture(error, where=self.where(task))

    def where(self, task: Task) -> str:
        """Which sample of which step failed, and who was at it: for the error that just came out."""
        keys = "" if self._keys is None else f"{shorten(self._keys)}, "
        return f"In {self._at}{keys}step {task.step} of epoch {task.epoch}, in {self._who}."

    def _samples(self, task: Task) -> Any:
        match task.kind:
            case Kind.KEYS:
                return self._fetch(task.keys)
            case Kind.KEY:
                return self._each(self._job.dataset.__getitem__, [task.keys])[0]
            case Kind.ITEMS:
                return self._each(self._loader(), task.keys)
            case Kind.ITEM:
                return self._each(self._loader(), [task.keys])[0]
            case Kind.PULL:
                return self._pull(task)
            case Kind.PULL_ONE:
                return self._pull(task)[0]

    def _fetch(self, keys: Any) -> Sequence[Any]:
        keys = keys.tolist() if isinstance(keys, np.ndarray) else keys
        if not self._getitems:
            return self._each(self._job.dataset.__getitem__, keys)
        self._at, self._keys = "__getitems__ of samples ", keys
        samples: Sequence[Any] = self._getitems(keys)
        if len(samples) != len(keys):
            raise ValueError(
                f"__getitems__ returned {len(samples)} samples for {len(keys)} keys. "
                "It must return one for each key, in the order of the keys."
            )
        return samples

    def _each(self, get: Callable[[Any], Any], keys: Sequence[Any]) -> list[Any]:
        # How much is left of the iterator tells which key failed, at no cost while none does.
        left: Any = iter(keys)
        try:
            return [get(key) for key in left]
        except BaseException:
            row = len(keys) - left.__length_hint__() - 1
            self._at = f"sample {keys[row]!r} (row {row}), "
            raise

    def _loader(self) -> Callable[[Any], Any]:
        assert self._load is not None, "only streams that define load() have items"
        return self._load

    def _pull(self, task: Task) -> list[Any]:
        count, resumed = _pulled(task)
        if task.run != self._stream_run:
            self._open_stream(task, resumed)
        self._pass_over(task, count, self._number(task.step))
        samples = self._take(count)
        if not samples or (self._stream_ended and self._job.drop_last):
            raise StreamEnded
        return samples

    def _take(self, count: int) -> list[Any]:
        self._at = f"the stream's next {count} samples, "
        samples = list(islice(self._stream, count))
        self._stream_read += 1
        if len(samples) < count:
            self._stream = iter(())  # some iterators begin again when asked after their end
            self._stream_ended = True
        return samples

    def _pass_over(self, task: Task, count: int, until: int) -> None:
        """Reads batches that were handed out elsewhere: by other ranks, or before this run was resumed.

        Each is read with the random numbers that it was read with there, so the stream is the same stream.
        """
        if self._stream_read >= until:
            return
        while self._stream_read < until and not self._stream_ended:
            if self._stream_read > 0:  # the first has those that the stream was opened with
                self._reseed(task.epoch, self._stream_read)
            self._take(count)
        self._reseed(task.epoch, until)

    def _reseed(self, epoch: int, number: int) -> None:
        if self._seed_step is not None:
            self.seed(epoch, number)

    def _finish_round(self, task: Task) -> None:
        """Where ranks end together, a step counts only if every rank has its batch of it."""
        self._pass_over(task, _pulled(task)[0], (task.step + 1) * self._world)
        if self._stream_ended:
            raise StreamEnded

    def _open_stream(self, task: Task, resumed: bool) -> None:
        self._stream_run = task.run
        self._stream_read, self._stream_ended = 0, False
        self._stream = iter(())
        if task.step > 0 and not resumed:
            raise WorkerLost(
                f"The worker that read the stream died before step {task.step} of epoch {task.epoch}, and the "
                "stream's position died with it: the epoch ends here. The samples before this step were "
                "delivered. A stream that hands out light items and defines load(item) is read in the calling "
                "process instead, and loses nothing when a worker dies."
            )
        self._at = "iter(dataset), "
        if self._number(task.step) > 0:
            self._reseed(task.epoch, 0)
        self._stream = iter(self._job.dataset)


def _pulled(task: Task) -> tuple[int, bool]:
    """How many samples to take from the stream, and whether the run was resumed at this task."""
    return task.keys if isinstance(task.keys, tuple) else (task.keys, False)


def _name_rows(error: CollateError, task: Task) -> None:
    rows = error.rows
    if rows and task.kind is Kind.KEYS:
        keys = task.keys
        named = ", ".join(f"row {row} is sample {keys[row]!s}" for row in rows[:8])
        error.add_note(f"{named}{', ...' if len(rows) > 8 else ''}.")
