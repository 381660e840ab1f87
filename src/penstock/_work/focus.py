"""Tracks which task and sample a worker is processing. Random numbers and error messages depend on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock._at_work import Source
from penstock._measure.gauges import NO_GAUGE, Gauge, NoGauge
from penstock._system.interrupts import import_whole
from penstock._wire.failure import dict_of
from penstock._wire.task import Mended, Task, shorten, shorten_key

if TYPE_CHECKING:
    from numpy.random import Generator

    from penstock._measure.cached import CacheCounts
    from penstock._work.generators import Generators
    from penstock._work.job import Job

# A loop over samples: the keys, the iterator over the keys, and the rows of the keys. The number of keys that the
# iterator has left tells which sample is the current one. This costs nothing until it is needed.
KeyLoop = tuple[Sequence[Any], Any, Sequence[int]]


class Focus(Source):
    """The task and sample that a worker is processing. `who` is the worker's name in error messages."""

    task: Task
    alone = False  # the worker has a process of its own
    seeds = False  # the global generators are seeded when a task begins

    def __init__(self, job: Job, who: str, generators: Generators) -> None:
        assert job.fetch is not None
        self.job = job
        self.gauge: Gauge | NoGauge = NO_GAUGE
        self.notes: list[str] = []  # for the error of a failed task, which is the user's object and stays unchanged
        self.rngs: dict[int, Generator] = {}  # by row, and -1 for the step
        self.loop: KeyLoop | None = None  # set while samples are fetched one by one
        self.naming = job.fetch
        self._rank, self._world = job.shard
        if job.local_rows is not None:
            self._rank, self._world = job.local_rows[0], job.batch_size
        self._who, self._generators = who, generators

    def begin(self, task: Task, gauge: Gauge | NoGauge) -> None:
        self.task, self.gauge = task, gauge
        # The current operation and its keys. They become text only if the operation fails.
        self._at, self._keys = "", None
        if self.notes:
            self.notes.clear()
        self.loop = self.part = None
        # A loop over `each` that was left early because of an error. Its message names the loop's current sample.
        self._left: KeyLoop | None = None
        number = self._drawing = task.step * self._world + self._rank  # the same as `job.drawing`, without a call
        if self.rngs:
            self.rngs.clear()
        if self.seeds:
            self._generators.seed(task.epoch, number)

    # Random numbers.

    def draw_for(self, number: int) -> None:
        """Switches, during a task, to the random numbers of the step `number` (counted as by `Job.number`)."""
        self._drawing = number
        self.rngs.clear()
        if self._generators.may_seed:
            self._generators.seed(self.task.epoch, number)

    def rng(self) -> Generator:
        """Returns the random generator of the sample being fetched or, if there is none, that of the whole step."""
        item, row = (None, -1) if self.loop is None else _now(self.loop)
        found = self.rngs.get(row)
        if found is None:
            import_whole("penstock._work.seeding")
            from penstock._work import seeding  # late: see InlineBackend

            if row < 0:
                of = self._drawing, seeding.STEP
            else:
                of = seeding.number_of(self.naming.key(self.job, self.task, item, row)), seeding.SAMPLE
            found = self.rngs[row] = seeding.generator(self.job.seed, self.task.epoch, *of)
        return found

    def rng_of(self, key: Any) -> Generator:
        import_whole("penstock._work.seeding")
        from penstock._work import seeding  # late: see InlineBackend

        return seeding.generator(self.job.seed, self.task.epoch, seeding.number_of(key), seeding.SAMPLE)

    # The samples.

    @property
    def cache(self) -> CacheCounts | None:
        return self.gauge.cache

    def names(self) -> Sequence[Any]:
        return self.naming.names(self.job, self.task)

    def sample(self) -> tuple[Any, int]:
        """Returns the item from which the current sample is made, and the sample's row."""
        assert self.loop is not None
        return _now(self.loop)

    def each(self, keys: Sequence[Any]) -> Iterator[Any]:
        names = self.names()  # these may differ from `keys`, because a Subset asks its dataset for other keys
        rows = range(len(names)) if self.part is None else self.part
        # Inside of a sample, or if the counts differ, these keys are not the samples of the step.
        if self.loop is not None or len(keys) != len(rows):
            yield from keys
            return
        if self.part is not None:
            names = [names[row] for row in rows]
        left: Any = iter(names)
        self.loop = loop = names, left, rows
        try:
            for key, _ in zip(keys, left, strict=True):
                yield key
        except GeneratorExit:  # the loop was left early
            self._left = loop
            raise
        finally:
            if self.loop is loop:  # an error may keep this generator alive until another loop has begun
                self.loop = None

    def rows_asked_for(self) -> Sequence[int]:
        return range(len(self.names())) if self.part is None else self.part

    # For error messages.

    def doing(self, at: str, keys: Any) -> None:
        self._at, self._keys = at, keys

    def name_sample(self) -> None:
        """If samples are fetched one by one, records that the current sample caused an error."""
        loop = self.loop or self._left
        if loop is not None:
            key, row = _now(loop)
            self.doing(f"sample {shorten_key(key)} (row {row}), ", None)

    def name_rows(self, error: Exception, mended: Mended | None = None) -> None:
        """If an error names rows (see CollateError), adds a note with the keys of the samples in these rows."""
        keys = self.names() if mended is None else mended.keys
        rows = [row for row in dict_of(error).get("rows", ()) if row < len(keys)]
        if not self.job.batched and keys:
            self.notes.append(f"It is sample {shorten_key(keys[0], str)}.")
        elif rows:
            named = ", ".join(f"row {row} is sample {shorten_key(keys[row], str)}" for row in rows[:8])
            self.notes.append(f"{named}{', ...' if len(rows) > 8 else ''}.")
            reference = dict_of(error).get("reference")
            if reference is not None and reference < len(keys):
                they = "They differ" if len(rows) > 1 else "It differs"
                self.notes.append(
                    f"{they} from row {reference}, which is sample {shorten_key(keys[reference], str)}."
                )

    def name_all(self, at: str, mended: Mended | None = None) -> None:
        """Records that the operation `at` failed for the step as a whole. Does nothing if samples have no keys."""
        keys = self.names() if mended is None else mended.keys
        if len(keys):
            self.doing(f"{at} of samples ", keys)

    def where(self) -> str:
        """Returns a note for an error. The note names the operation or sample, the step, and the worker."""
        keys = "" if self._keys is None else f"{shorten(self._keys)}, "
        return f"In {self._at}{keys}step {self.task.step} of epoch {self.task.epoch}, in {self._who}."


def _now(loop: KeyLoop) -> tuple[Any, int]:
    keys, left, rows = loop
    at = len(keys) - left.__length_hint__() - 1
    return keys[at], rows[at]
