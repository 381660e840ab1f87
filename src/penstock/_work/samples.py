"""The samples of one step, fetched one by one: which one is at work, and what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._at_work import Source
from penstock._measure.gauges import Slow
from penstock._system.interrupts import import_whole
from penstock._system.panics import raise_ordinary
from penstock._system.shortage import is_shortage
from penstock._wire.failure import keep, shown
from penstock._wire.task import Mended, Task, shorten
from penstock._work.paths import path_of
from penstock.plan._seeds import mix

if TYPE_CHECKING:
    from penstock._fill.cast import Empty
    from penstock._measure.cached import CacheCounts
    from penstock._work.runner import Runner

# How many other samples are tried in the place of one that failed: if half of all samples were bad, one in 65,000
# would find none.
_MOST_REPLACEMENTS = 16


_NOT_BAD = (
    "A lack of memory, descriptors or disk space is not a bad sample: on_error= does not skip it. Use fewer workers "
    "or smaller batches, or raise the limit."
)


class StreamEnded(Exception):
    """The stream has nothing left for the task that it is raised with."""


def is_end(error: BaseException, task: Task) -> bool:
    """True if the stream has ended at this task. A StreamEnded that a dataset raises is an error like any other."""
    return type(error) is StreamEnded and len(error.args) == 1 and error.args[0] is task


class Fetch:
    """The worker's half of a feed: gets the samples of a task."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._job = runner.job
        self.look_up()

    def look_up(self) -> None:
        """Finds the methods of the dataset: at the beginning, and whenever the dataset was changed."""

    def gather(self, task: Task, empty: Empty) -> object:
        """The whole batch, if the dataset can make it at once; else NotImplemented."""
        return NotImplemented

    def samples(self, task: Task) -> Sequence[Any]:
        """The samples, one for each row. A stream that has none raises StreamEnded."""
        raise NotImplementedError

    def finish(self, task: Task) -> None:
        """The batch of the task is made."""

    def names(self, task: Task) -> Sequence[Any]:
        """The key of each row, if rows have keys."""
        return ()

    def key(self, task: Task, item: Any, row: int) -> Any:
        """What names the sample of a row, that was made from `item`."""
        return item


# A loop over samples: the keys, the iterator over them, and their rows. How much is left of the iterator tells which
# sample is at work, at no cost until somebody asks.
_Loop = tuple[Sequence[Any], Any, Sequence[int]]


class Samples(Source):
    """Fetches samples one by one for a runner, and knows which one is at work: see `_at_work.Source`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._job = runner.job
        self.mends = runner.job.on_error != "raise"
        self.keep: Callable[..., Any] = keep
        self._rngs: dict[int, np.random.Generator] = {}  # by row, and -1 for the step
        self.begin(0)

    @property
    def cache(self) -> CacheCounts | None:
        return self._runner.gauge.cache

    def begin(self, number: int) -> None:
        """Another step begins, the one with this number among those of all ranks."""
        self._drawing = number
        self._rngs.clear()
        self._loop: _Loop | None = None
        # A loop over `each` that was left before its end: by an error, which names its sample.
        self._left: _Loop | None = None
        self.part = None
        self.mended: Mended | None = None

    def draw_for(self, number: int) -> None:
        """From here on random numbers are those of the step with this number."""
        self._drawing = number
        self._rngs.clear()

    def rng(self) -> np.random.Generator:
        """See `penstock.rng`. One generator for each sample, and one for work on the whole step."""
        item, row = (None, -1) if self._loop is None else _now(self._loop)
        found = self._rngs.get(row)
        if found is None:
            import_whole("penstock._work.seeding")
            from penstock._work import seeding  # late: see InlineBackend

            runner = self._runner
            if row < 0:
                of = self._drawing, seeding.STEP
            else:
                of = seeding.number_of(runner.fetch.key(runner.task, item, row)), seeding.SAMPLE
            found = self._rngs[row] = seeding.generator(self._job.seed, runner.task.epoch, *of)
        return found

    def fetch(self, get: Callable[[Any], Any], keys: Sequence[Any]) -> list[Any]:
        """`[get(key) for key in keys]`, without the samples that fail if `on_error` allows that."""
        self._runner.doing("", None)
        samples = self._mend(get, keys) if self.mends else self._get(get, keys)
        self._loop = None
        return samples

    def _get(self, get: Callable[[Any], Any], keys: Sequence[Any], first: int = 0) -> list[Any]:
        left: Any = iter(keys)
        self._loop = keys, left, range(first, first + len(keys))
        try:
            return self._timed(get, left) if self._runner.gauge.times else [get(key) for key in left]
        except BaseException as error:
            self.name_sample()
            raise_ordinary(error)
            raise

    def _timed(self, get: Callable[[Any], Any], left: Any) -> list[Any]:
        """`[get(key) for key in left]`, and how long each sample takes."""
        samples, gauge, clock = [], self._runner.gauge, perf_counter_ns
        gauge.begin_epoch(self._runner.task.epoch)
        before = clock()
        for key in left:
            samples.append(get(key))
            now = clock()
            if gauge.sample(now - before):
                self.note_slow(now - before)
            before = now
        return samples

    def note_slow(self, ns: int) -> None:
        """The sample at work is one of the slowest."""
        assert self._loop is not None
        runner, (item, row) = self._runner, _now(self._loop)
        key = runner.fetch.key(runner.task, item, row)
        path = path_of(self._job.dataset, item)
        runner.gauge.note(Slow(ns, runner.task.epoch, runner.task.step, shown(key, repr), path))

    def name_sample(self) -> None:
        """For an error: says which sample it came from, if samples are fetched one by one."""
        loop = self._loop or self._left
        if loop is not None:
            key, row = _now(loop)
            self._runner.doing(f"sample {shown(key, repr)} (row {row}), ", None)

    def each(self, keys: Sequence[Any]) -> Iterator[Any]:
        """See `penstock.each`."""
        names = self._runner.fetch.names(self._runner.task)  # a Subset asks its dataset for other keys
        rows = range(len(names)) if self.part is None else self.part
        # Within a sample, or if a dataset asks another for more or fewer, the keys are not the samples of the step.
        if self._loop is not None or len(keys) != len(rows):
            yield from keys
            return
        if self.part is not None:
            names = [names[row] for row in rows]
        left: Any = iter(names)
        self._loop = loop = names, left, rows
        try:
            for key, _ in zip(keys, left, strict=True):
                yield key
        except GeneratorExit:  # the loop was left
            self._left = loop
            raise
        finally:
            if self._loop is loop:  # an error may keep this generator until another sample is at work
                self._loop = None

    def rows_asked_for(self) -> Sequence[int]:
        """All of the step, or those that `among` has chosen."""
        return range(len(self._runner.fetch.names(self._runner.task))) if self.part is None else self.part

    def _mend(self, get: Callable[[Any], Any], keys: Sequence[Any]) -> list[Any]:
        """The samples without those that fail, or with others in their place."""
        runner, task, fetch = self._runner, self._runner.task, self._runner.fetch
        samples: list[Any] = []
        mended = Mended([], [], [])
        most = _MOST_REPLACEMENTS if self._job.on_error == "replace" else 0
        for row, key in enumerate(keys):
            tried: list[Any] = []
            while len(tried) <= most:
                item = self._another(task, row, len(tried)) if tried else key
                self._rngs.clear()
                try:
                    samples += self._get(get, [item], row)
                except Exception as error:
                    if is_shortage(error):
                        runner.notes.append(_NOT_BAD)
                        raise
                    if 0 < most == len(tried):
                        others = f"{len(tried) - 1} others in its place: {shorten(tried[1:])}"
                        named = shown(key, repr)
                        runner.notes.append(f"It stood in for sample {named}, which failed, as did {others}.")
                        raise
                    kept = self.keep(error, where=runner.where(task))
                    mended.errors.append((fetch.key(task, item, row), kept))
                    tried.append(item)
                else:
                    mended.keys.append(fetch.key(task, item, row))
                    mended.rows.append(row)
                    break
        if mended.errors:
            self.mended = mended
        return samples

    def _another(self, task: Task, row: int, attempt: int) -> Any:
        """What replaces the sample of a row: a sample from anywhere in the epoch's order, or else from its step."""
        import_whole("penstock._work.seeding")
        from penstock._work.seeding import REPLACE  # late: see InlineBackend

        order = self._job.order
        number = mix(self._job.seed, task.epoch, self._runner.number(task.step), row, attempt, REPLACE)
        if order is None:
            return plain(task.keys)[number % len(task.keys)]
        return order.at(task.epoch, np.array([number % order.size(task.epoch)])).tolist()[0]


def _now(loop: _Loop) -> tuple[Any, int]:
    """The key at work, and its row."""
    keys, left, rows = loop
    at = len(keys) - left.__length_hint__() - 1
    return keys[at], rows[at]


def plain(keys: Any) -> Any:
    """Keys as the dataset gets them: Python integers."""
    return keys.tolist() if isinstance(keys, np.ndarray) else keys
