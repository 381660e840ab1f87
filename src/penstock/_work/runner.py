"""Runs tasks: the part of a worker that is the same inline, in a thread and in a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import numpy as np

from penstock._at_work import at_work, set_worker_info
from penstock._fill.cast import Into
from penstock._fill.collate import Empty, collate, convert
from penstock._memory.layout import Writer
from penstock._resume.marks import NOT_LOST, opened, packed, taken
from penstock._resume.reading import Mark, Reading
from penstock._wire.failure import Failure, annotate, keep
from penstock._wire.task import BATCHED, PULLED, Job, Kind, Mended, Task, shorten
from penstock._wire.updates import Change
from penstock.errors import CastError, CollateError, StateError, WorkerLost
from penstock.plan._plan import check_reached
from penstock.plan._seeds import mix
from penstock.source._kind import method_of
from penstock.worker_info import WorkerInfo

# How many others are tried in the place of a sample that failed: if half of all samples were bad, one in
# 65,000 would find none.
_MOST_REPLACEMENTS = 16


Fetching = tuple[Sequence[Any], Any, Sequence[int]]


class StreamEnded(Exception):
    """There is nothing left for this step in the stream."""


class Runner:
    """Does one task after another with one dataset. `who` names the worker in errors.

    After a task, `rows` is the number of samples that went into its batch, `mended` tells of those that
    failed on the way, where they may, and `mark` of where a stream with a state is, also if the task failed.
    """

    def __init__(self, job: Job, who: str) -> None:
        self._job = job
        self.who = who
        # What every task fails with, once there is such a thing: where, with which traceback and notes it came.
        self._broken: tuple[str, BaseException, TracebackType | None, list[str]] | None = None
        self._stream = Reading(())  # whose batches are those of other ranks too
        self._stream_run = -1
        self._stream_begin = 0  # so many batches were handed out before the run was resumed
        # What the worker before this one left behind when it died: see `Backend.hire`.
        self.heritage: tuple[int, bytes | None] | None = None
        # Where the generators are this process's own. Threads share them with the caller.
        self._seed_step: Callable[[int, int, int], int] | None = None
        self._rank, self._world = job.shard
        # What is being done, and to which keys: put into words only when it fails.
        self._at = ""
        self._keys: Any = None
        # The samples that are fetched one by one, those that are left of them, and their rows.
        self._fetching: Fetching | None = None
        # The same of a loop over `each` that was left before its end: by an error, which names its sample.
        self._abandoned: Fetching | None = None
        self._rngs: dict[int, np.random.Generator] = {}  # by row, and -1 for the step
        self.part: Sequence[int] | None = None
        self._keep: Callable[..., Any] = keep
        self._mends = job.on_error != "raise"
        self.rows = 0
        self.mended: Mended | None = None
        self.mark: bytes | None = None

        # A collate function that can write its arrays where they belong.
        self._into: Callable[[Any, Any], Any] | None = getattr(job.collate_fn, "into", None)
        # What becomes of the batch's numbers. Our own collate does it while it writes.
        self._field = None if job.cast is None else job.cast.root()
        self.look_up()

    def look_up(self) -> None:
        """Finds the dataset's ways to its samples: at the beginning, and whenever it was changed."""
        dataset, custom = self._job.dataset, self._job.collate_fn
        self._getitems: Callable[[Any], Any] | None = method_of(dataset, "__getitems__")
        self._gather: Callable[[Any, Any], Any] | None = None
        if custom is None:
            self._gather = method_of(dataset, "__gather__")
        self._finishes = custom is not None or self._gather is not None
        self._load: Callable[[Any], Any] | None = getattr(dataset, "load", None)

    def begin(self, seat: int, *, alone: bool) -> None:
        """What a worker does before its first task. An error in it is every task's error.

        `alone`: this process is this worker, and no other.
        """
        job = self._job
        if alone:
            from penstock._work.seeding import seed_step  # late: see InlineBackend

            self._seed_step = seed_step
            self._keep = Failure.capture
            self.seed(-1, self._number(seat))
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
                    change(self._job.dataset)
                self.look_up()
            except BaseException as error:
                self._break("update(), made before ", error)

    def _break(self, at: str, error: BaseException) -> None:
        self._broken = at, error, error.__traceback__, list(getattr(error, "__notes__", ()))

    def prepare(self, task: Task) -> int:
        """In a process of its own: sets the global random generators for the task; the number for it."""
        return self.seed(task.epoch, self._number(task.step))

    def seed(self, epoch: int, number: int) -> int:
        """Sets the global random generators for the step with this number among those of all ranks."""
        assert self._seed_step is not None
        return self._seed_step(self._job.seed, epoch, number)

    def borrowed(self, task: Task) -> AbstractContextManager[int]:
        """In the caller's own process: the same, and the generators are put back afterwards."""
        from penstock._work.seeding import borrowed_generators, seed_step  # late: see InlineBackend

        self._seed_step = seed_step
        return borrowed_generators(self._job.seed, task.epoch, self._number(task.step))

    def _number(self, step: int) -> int:
        """The step's number among those of all ranks: ranks that are at the same step draw different numbers."""
        return step * self._world + self._rank

    def run(self, task: Task, writer: Writer) -> object:
        """The batch. Its arrays are in the writer's slab where collate is ours."""
        self._at = ""
        self._keys = self._fetching = self._abandoned = self.part = self.mended = self.mark = None
        self._rngs.clear()
        self._task, self._drawing = task, self._number(task.step)
        outer, at_work.source = at_work.source, self  # as `working_at`, which costs 1 µs
        try:
            batch = self._run(task, writer)
            if task.kind in PULLED and self._job.drop_last and self._world > 1:
                self._finish_round(task)
            return batch
        except StreamEnded:
            stream, self._stream = self._stream, Reading(())  # so that the state at the end is asked for once
            self.mark = taken(stream.source, stream.end)
            raise
        except StopIteration as error:
            raise RuntimeError(
                "The dataset (or collate_fn, or worker_init_fn) raised StopIteration. That is an error, and does not "
                "end the epoch: raise IndexError for a missing sample, or derive from IterableDataset for a stream."
            ) from error
        finally:
            at_work.source = outer

    def rng(self) -> np.random.Generator:
        """See `penstock.rng`. One generator for each sample, and one for what is done to the step."""
        item, row = (None, -1) if self._fetching is None else _at(self._fetching)
        found = self._rngs.get(row)
        if found is None:
            from penstock._work import seeding as randomness  # late: see InlineBackend

            if row < 0:
                of = self._drawing, randomness.STEP
            else:
                of = randomness.number_of(self._key(item, row)), randomness.SAMPLE
            found = self._rngs[row] = randomness.generator(self._job.seed, self._task.epoch, *of)
        return found

    def each(self, keys: Sequence[Any]) -> Iterator[Any]:
        """See `penstock.each`. A sample is named by the step's key in its row: a Subset asks for other keys."""
        rows = self.rows_asked_for()
        # Within a sample, and where a dataset asks another for more or fewer, these are no samples of the step.
        if self._fetching is not None or len(keys) != len(rows):
            yield from keys
            return
        names = _plain(self._task.keys)
        if self.part is not None:
            names = [names[row] for row in rows]
        left: Any = iter(names)
        self._fetching = fetching = names, left, rows
        try:
            for key, _ in zip(keys, left, strict=True):
                yield key
        except GeneratorExit:  # the loop was left
            self._abandoned = fetching
            raise
        finally:
            if self._fetching is fetching:  # an error may keep this generator until another sample is at work
                self._fetching = None

    def rows_asked_for(self) -> Sequence[int]:
        if self.part is not None:
            return self.part
        return range(len(self._task.keys) if self._task.kind is Kind.KEYS else 0)

    def _run(self, task: Task, writer: Writer) -> object:
        if self._broken is not None:
            self._at, error, trace, notes = self._broken
            error.__notes__ = list(notes)  # not those of the step before
            raise error.with_traceback(trace)
        if self._field is None:
            return self._batch(task, writer.empty)
        into = Into(self._field, writer.empty)
        batch = self._batch(task, into)
        if not self.rows or (task.kind in BATCHED and not self._finishes):
            return batch
        try:
            return into.finish(batch, self.rows)
        except CastError as error:
            self._name_rows(error, task)
            raise

    def _batch(self, task: Task, empty: Empty) -> object:
        custom = self._job.collate_fn
        if self._gather is not None and task.kind is Kind.KEYS:
            self.rows = len(task.keys)
            self._at, self._keys = "__gather__ of samples ", task.keys
            try:
                return self._gather(np.asarray(task.keys), empty)
            except CollateError as error:
                self._name_rows(error, task)
                raise
            except BaseException as error:
                if not self._mends or not isinstance(error, Exception):
                    self._name_sample()
                    raise
                samples: Sequence[Any] = self._each(self._job.dataset.__getitem__, _plain(task.keys))
        else:
            samples = self._samples(task)
        self.rows = len(samples)
        if self.rows == 0 and self.mended is not None:
            return None
        if task.kind not in BATCHED:
            return convert(samples[0]) if custom is None else custom(samples[0])
        self._at, self._keys = "collate of ", None
        if custom is not None and self._into is None:
            return custom(samples)
        try:
            return (self._into or collate)(samples, empty)
        except Exception as error:
            self._name_rows(error, task)
            raise

    def _name_rows(self, error: Exception, task: Task) -> None:
        """Which samples the rows are that an error speaks of (see CollateError), where they have keys."""
        keys = task.keys if self.mended is None else self.mended.keys
        rows = [row for row in getattr(error, "rows", ()) if task.kind is Kind.KEYS and row < len(keys)]
        if task.kind is Kind.KEY:
            error.add_note(f"It is sample {task.keys!s}.")
        elif rows:
            named = ", ".join(f"row {row} is sample {keys[row]!s}" for row in rows[:8])
            error.add_note(f"{named}{', ...' if len(rows) > 8 else ''}.")

    def capture(self, error: BaseException, task: Task) -> bytes:
        """The error that just came out of `run`, as it travels to the caller."""
        return Failure.capture(error, where=self.where(task))

    def where(self, task: Task) -> str:
        """Which sample of which step failed, and who was at it: for the error that just came out."""
        keys = "" if self._keys is None else f"{shorten(self._keys)}, "
        return f"In {self._at}{keys}step {task.step} of epoch {task.epoch}, in {self.who}."

    def _samples(self, task: Task) -> Sequence[Any]:
        match task.kind:
            case Kind.KEYS:
                return self._fetch(_plain(task.keys))
            case Kind.KEY:
                return self._each(self._job.dataset.__getitem__, [task.keys])
            case Kind.ITEMS:
                return self._each(self._loader(), task.keys)
            case Kind.ITEM:
                return self._each(self._loader(), [task.keys])
            case Kind.PULL:
                return self._pull(task)
            case Kind.PULL_ONE:
                return self._pull(task)

    def _fetch(self, keys: list[Any]) -> Sequence[Any]:
        if not self._getitems:
            return self._each(self._job.dataset.__getitem__, keys)
        self._at, self._keys = "__getitems__ of samples ", keys
        try:
            samples: Sequence[Any] = self._getitems(keys)
        except BaseException as error:
            if not self._mends or not isinstance(error, Exception):
                self._name_sample()
                raise
            return self._each(self._job.dataset.__getitem__, keys)
        if len(samples) != len(keys):
            raise ValueError(
                f"__getitems__ returned {len(samples)} samples for {len(keys)} keys. "
                "It must return one for each key, in the order of the keys."
            )
        return samples

    def _each(self, get: Callable[[Any], Any], keys: Sequence[Any]) -> list[Any]:
        self._keys = None
        samples = self._mend(get, keys) if self._mends else self._get(get, keys)
        self._fetching = None
        return samples

    def _get(self, get: Callable[[Any], Any], keys: Sequence[Any], first: int = 0) -> list[Any]:
        # How much is left of the iterator tells which sample is at work, at no cost until somebody asks.
        left: Any = iter(keys)
        self._fetching = keys, left, range(first, first + len(keys))
        try:
            return [get(key) for key in left]
        except BaseException:
            self._name_sample()
            raise

    def _name_sample(self) -> None:
        """For an error: which sample it came from, where samples are fetched one by one."""
        fetching = self._fetching or self._abandoned
        if fetching is not None:
            key, row = _at(fetching)
            self._at, self._keys = f"sample {key!r} (row {row}), ", None

    def _key(self, item: Any, row: int) -> Any:
        """What names a sample: the items of a stream may be alike, their positions are not."""
        if self._task.kind in (Kind.ITEMS, Kind.ITEM):
            return self._number(self._task.step) * self._job.batch_size + row
        return item

    def _mend(self, get: Callable[[Any], Any], keys: Sequence[Any]) -> list[Any]:
        """The samples of these keys without those that fail, or with others in their place."""
        samples: list[Any] = []
        mended = Mended([], [], [])
        most = _MOST_REPLACEMENTS if self._job.on_error == "replace" else 0
        for row, key in enumerate(keys):
            tried: list[Any] = []
            while len(tried) <= most:
                item = self._another(row, len(tried)) if tried else key
                self._rngs.clear()
                try:
                    samples += self._get(get, [item], row)
                except Exception as error:
                    if 0 < most == len(tried):
                        others = f"{len(tried) - 1} others in its place: {shorten(tried[1:])}"
                        annotate(error, f"It stood in for sample {key!r}, which failed, as did {others}.")
                        raise
                    kept = self._keep(error, where=self.where(self._task))
                    mended.errors.append((self._key(item, row), kept))
                    tried.append(item)
                else:
                    mended.keys.append(self._key(item, row))
                    mended.rows.append(row)
                    break
        if mended.errors:
            self.mended = mended
        return samples

    def _another(self, row: int, attempt: int) -> Any:
        """What stands in for the sample of a row: from anywhere in the epoch's order, or else from its step."""
        from penstock._work.seeding import REPLACE  # late: see InlineBackend

        (_, _, epoch, step, _, keys, *_), order = self._task, self._job.order
        number = mix(self._job.seed, epoch, self._number(step), row, attempt, REPLACE)
        if order is None:
            return _plain(keys)[number % len(keys)]
        return order.at(epoch, np.array([number % order.size(epoch)])).tolist()[0]

    def _loader(self) -> Callable[[Any], Any]:
        assert self._load is not None, "only streams that define load() have items"
        return self._load

    def _pull(self, task: Task) -> list[Any]:
        count, resumed, mark = _pulled(task)
        if task.run != self._stream_run:
            self._open_stream(task, resumed, mark)
        self._pass_over(task, count, self._number(task.step))
        if resumed:
            behind = task.step * self._world
            check_reached(behind - self._stream.read, behind, self._world)
        samples = self._take(count)
        self.mark = taken(self._stream.source, self._stream.mark)
        if not samples or (self._stream.ended and self._job.drop_last):
            raise StreamEnded
        return samples

    def _take(self, count: int) -> list[Any]:
        self._at = f"the stream's next {count} samples, "
        return self._stream.take(count)

    def _pass_over(self, task: Task, count: int, until: int) -> None:
        """Reads batches that were handed out elsewhere: by other ranks, or before this run was resumed.

        Each is read with the random numbers that it was read with there, so the stream is the same stream.
        """
        stream = self._stream
        if stream.read >= until:
            return
        while stream.read < until and not stream.ended:
            if stream.read > 0:  # the first has those that the stream was opened with
                self._reseed(task.epoch, stream.read)
            try:
                self._take(count)
            except Exception:
                if stream.read > self._stream_begin:  # else it was raised the first time
                    raise
        self._reseed(task.epoch, until)

    def _reseed(self, epoch: int, number: int) -> None:
        self._drawing = number
        self._rngs.clear()
        if self._seed_step is not None:
            self.seed(epoch, number)

    def _finish_round(self, task: Task) -> None:
        """Where ranks end together, a step counts only if every rank has its batch of it."""
        self._pass_over(task, _pulled(task)[0], (task.step + 1) * self._world)
        if self._stream.ended:
            raise StreamEnded

    def _open_stream(self, task: Task, resumed: bool, mark: Mark | None) -> None:
        self._stream_run = task.run
        self._stream_begin = task.step * self._world if resumed else 0
        self._stream = Reading(())  # which stays, where it cannot be opened
        lost = NOT_LOST
        try:
            inherited = self._inherited(task)
        except StateError as error:
            inherited, lost = None, str(error)
        if not resumed:
            mark = inherited
        if task.step > 0 and not resumed and mark is None:
            raise WorkerLost(
                f"The worker that read the stream died before step {task.step} of epoch {task.epoch}, and the "
                "stream's position died with it: the epoch ends here. The samples before were delivered.\n"
                f"  {lost}"
            )
        self._at = "iter(dataset), "
        if self._number(task.step) > 0:
            self._reseed(task.epoch, 0)
        stream = Reading(self._job.dataset)
        anew = stream.open(mark)
        self._stream = stream
        if anew:
            self._reseed(task.epoch, stream.read)
        if mark is not None and mark.states is None and mark.kept is not None:
            # Nothing is left now, and nothing was restored: the next epoch begins with this.
            self.heritage = task.run, packed(Mark(0, {}, mark.kept))

    def _inherited(self, task: Task) -> Mark | None:
        """Where the worker before this one was, if that is where this worker's first task goes on."""
        (run, data), self.heritage = self.heritage or (-1, None), None
        mark = opened(data)
        if mark is None or (mark.read > 0 and run != task.run):
            return None
        # If there is more between, it could not be read, and would have to be.
        return mark if self._number(task.step) < mark.read + self._world else None


def _at(fetching: Fetching) -> tuple[Any, int]:
    """What is being fetched, and its row."""
    keys, left, rows = fetching
    at = len(keys) - left.__length_hint__() - 1
    return keys[at], rows[at]


def _plain(keys: Any) -> Any:
    return keys.tolist() if isinstance(keys, np.ndarray) else keys


def _pulled(task: Task) -> tuple[int, bool, Mark | None]:
    """How many samples to take from the stream, and whether the run was resumed at this task, and from which mark."""
    return (task.keys[0], True, task.keys[1]) if isinstance(task.keys, tuple) else (task.keys, False, None)
