"""A feed obtains the samples for a loader. The loader chooses a feed once, and no other code depends on the choice.

A feed makes runs. A run draws the steps of one epoch, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._at_work import Source, at_work
from penstock._resume.reading import Mark, Reading, initial, opened, taken
from penstock._system.interrupts import Loan, import_whole, with_loan
from penstock._system.panics import ordinary
from penstock._wire.failure import caught
from penstock._wire.task import Mended, Opening, Raised, Task
from penstock._work.fetch import Fetch
from penstock.errors import StateError
from penstock.plan import ComputedPlan, Draw, LocalRows, RowsOfSteps, SamplerPlan

if TYPE_CHECKING:
    from numpy.random import Generator

    from penstock._options import Options
    from penstock.source._history import WeightHistory

AnyPlan = ComputedPlan | SamplerPlan

Now = Callable[[], tuple[AnyPlan | None, int]]
"""A function that returns the loader's current plan and epoch."""

T = TypeVar("T")

Borrow = Callable[..., Loan]


class Begin(NamedTuple):
    steps: int = 0  # the first steps, which were already handed out
    beyond: frozenset[int] = frozenset()  # later steps that were handed out, too
    mark: Mark | None = None  # where a sampler or stream that has a state continues
    resumed: bool = False  # the position comes from a loaded state


class Run:
    """The steps of one epoch, in order. A run is changed only by its own methods.

    If the user's sampler or stream raises an exception, the exception takes the place of one step. Any other
    exception while drawing ends the run.

    - `keys`: the keys of each step, beginning with step `at.steps`. The steps in `at.beyond` are left out, because
      these steps were already handed out.
    - `repeats`: if True, the steps in `at.beyond` are drawn again, because a stream's reader must read every step.
      The consumer skips the repeated steps.
    - `read_from`: the sampler or stream from which the caller's process reads the keys, if any.
    - `what`: the name of the sampler or stream in error messages.
    - `numbers`: the iterator from which each run takes its number.
    - `local_rows`: if not None, only the keys of these rows of each step are drawn.
    - `seat`: the index of the worker that gets the first step (torch semantics only).
    - `raises_at_once`: if True, an error that ends the run is raised by the `next()` call that tried to draw.
      Otherwise, the error is raised after the steps that were drawn earlier.
    """

    def __init__(
        self,
        numbers: Iterator[int],
        epoch: int,
        keys: Iterator[Any],
        plan: AnyPlan | None,
        at: Begin,
        *,
        repeats: bool = False,
        read_from: Reading | None = None,
        what: str = "the sampler",
        seat: int = 0,
        raises_at_once: bool = False,
        local_rows: LocalRows | None = None,
    ) -> None:
        self.number = next(numbers)
        self.epoch = epoch
        self.plan = plan
        self.seat = seat
        self.raises_at_once = raises_at_once
        self.repeated = at.beyond if repeats else frozenset()
        self.error: BaseException | None = None
        self.is_over = False
        self.is_left = False
        self.end: bytes | None = None  # after the end: the mark that the next epoch begins with
        self.ends: dict[int, bytes] = {}  # the same for each worker, if each reads its own stream
        self._numbers = numbers
        self._local_rows = local_rows
        if local_rows is not None:
            keys = keys.of_rows(local_rows) if isinstance(keys, Draw) else RowsOfSteps(keys, local_rows)
        self._keys = keys
        # Several batches are drawn at a time only if the order is known, because drawing has no side effects then.
        bundled = isinstance(keys, Draw) and keys.batched
        self._take = keys.take if bundled else None  # type: ignore[attr-defined]
        self.begins_later = at.steps > 0
        """True if the run does not begin at the start of the epoch."""
        self._step = at.steps
        self._skip = set() if repeats else set(at.beyond)
        self._reading = read_from
        self._what = what

    def follow(self) -> Run | None:
        """Returns the run for the next epoch, or None if drawing keys early could have side effects."""
        plan, epoch = None if self.plan is None else self.plan.after(), self.epoch + 1
        if plan is None:
            return None
        return Run(self._numbers, epoch, plan.draw(epoch), plan, Begin(), local_rows=self._local_rows)

    def draw(self, seq: int, most: int = 1) -> Task | None:
        """Returns a task of up to `most` steps, or None at the end or after an error. `seq` is the task's number."""
        task = self._draw(seq, 1 if self._skip else most)
        while task is not None and task.step in self._skip:
            self._skip.discard(task.step)
            task = self._draw(seq, 1)
        return task

    def _draw(self, seq: int, most: int) -> Task | None:
        if self.is_over or self.error is not None:
            return None
        try:
            keys, count = self._next_keys(most)
        except StopIteration:
            self.is_over = True
            if self._reading is not None and self.end is None:
                self.end = taken(self._reading.source, self._reading.end)
            return None
        if isinstance(keys, Raised) and (self._reading is None or isinstance(keys.error, StateError)):
            self.error = keys.error
            return None
        mark = None if self._reading is None else taken(self._reading.source, self._reading.mark)
        task = Task(seq, self.number, self.epoch, self._step, keys, count, mark)
        self._step += count
        return task

    def _next_keys(self, most: int) -> tuple[Any, int]:
        """Returns the keys of the next steps (or a `Raised` if the sampler raises) and the number of steps."""
        try:
            return (next(self._keys), 1) if self._take is None else self._take(most)
        except StopIteration:
            raise
        except BaseException as error:
            if not isinstance(ordinary(error), Exception):
                raise
            where = f"While {self._what} was asked for step {self._step} of epoch {self.epoch}."
            return Raised(caught(error, where)), 1

    # Called by the engine.

    def fail(self, error: BaseException) -> None:
        self.error = error

    def take_error(self) -> BaseException | None:
        """Returns the run's error, if any, and clears `error`, so that the error is raised only once."""
        error, self.error = self.error, None
        return error

    def ended(self, worker: int, mark: bytes) -> None:
        """Records that a worker's stream has ended. The next epoch starts at `mark`."""
        self.end = self.ends[worker] = mark

    def finish(self) -> BaseException | None:
        """Ends the run. Returns the error to raise instead of StopIteration, if any."""
        self.is_over = True
        return self.take_error()

    def leave(self) -> None:
        """Records that the next epoch has begun, although the caller never received this epoch's StopIteration."""
        self.is_left = True

    def continued(self, task: Task, position: bytes | None) -> Task:
        """Returns the task for a replacement worker, which must first open the stream at `position`."""
        mark = opened(position)
        if mark is None or isinstance(task.keys, Opening):  # the first task of the run says where it begins
            return task
        return task._replace(keys=Opening(task.keys, mark))


class Feed:
    """The caller's half of a feed: makes runs, finds the keys of rows, and describes itself for resume states."""

    names: ClassVar[tuple[str, str]]  # in resume states: if samples are batched, and if they are not
    fetch: ClassVar[type[Fetch]]  # the worker's half
    one_reader = False
    """True if one worker reads the whole stream. The steps are then done in order, and cannot be repeated."""
    knows_end = False
    """True if the end of an epoch is known when its last step is handed out, without trying to draw another step."""
    local_rows: LocalRows | None = None
    """The rows of each step that this process loads, or None if it loads all of them."""

    history: WeightHistory | None = None
    """The weights of a mixture in this loader, or None if the dataset is not a mixture."""

    def __init__(self, dataset: Any, options: Options, borrow: Borrow | None = None) -> None:
        self.dataset = dataset
        self.options = options
        given = (options.batch_size, options.batch_sampler, options.batch_tokens)
        self.batched = any(each is not None for each in given)
        self._borrow = borrow  # seeds the global generators while a sampler or stream is read in this process
        self.check()

    def check(self) -> None:
        """Raises or warns if the dataset and the options do not fit together."""

    @property
    def source(self) -> Any:
        """The dataset whose keys are put in order."""
        return self.dataset

    # For resume states.

    @property
    def name(self) -> str:
        return self.names[not self.batched]

    @property
    def order_name(self) -> str:
        return "stream"

    def length(self) -> int | None:
        """Returns the current length of a dataset with keys, or None for a stream or a dataset without a length."""
        return None

    def keeps_state(self) -> bool:
        """True if a dataset with keys has a state. False for a stream, because its position includes its state."""
        return False

    # One epoch.

    def plan(self, seed: int) -> AnyPlan | None:
        """Returns the keys of each step of a whole epoch, or None for a stream."""
        return None

    def forget(self) -> None:
        """Forgets what was computed from the dataset, because the dataset was changed."""

    def run(self, numbers: Iterator[int], epoch: int, seed: int, plan: AnyPlan | None, at: Begin) -> Run:
        raise NotImplementedError

    def drawing(self, seed: int, epoch: int, number: int, work: Callable[..., T], *args: Any) -> T:
        """Calls `work` with generators seeded from these numbers, which do not depend on the rank or on a resume."""
        import_whole("penstock._work.seeding")
        from penstock._work.seeding import READ, Borrowed  # late: see InlineBackend

        of = seed, epoch, number, READ
        loan, source = (self._borrow or Borrowed)(*of), StepSource(*of)
        # Not `working_at`, because an interrupt could skip the end of its block.
        outer, at_work.source = at_work.source, source
        try:
            return with_loan(loan, work, *args)
        finally:
            at_work.source = outer

    def read_from(self) -> Any:
        """Returns the sampler or stream that the user passed, or None if there is only a dataset with keys."""
        return None

    def beginning(self, *, is_fresh: bool) -> bytes | None:
        """Returns the pickled mark at which the next epoch would begin, or None if it is unknown: see `initial`."""
        return initial(self.read_from(), is_fresh=is_fresh)

    def replacements(self, plan: AnyPlan | None) -> Any:
        """Returns the order from which replacement keys are drawn, or None if it is unknown or not needed."""
        return None

    def steps(self, epoch: int, plan: AnyPlan | None) -> int:
        """Returns the number of batches in an epoch. Raises TypeError if it is unknown."""
        raise NotImplementedError

    def count(self, yielded: int) -> None:
        """Tells the feed how many batches of this epoch were handed out so far."""

    # One batch.

    def index(self, task: Task, rows: int, mended: Mended | None) -> NDArray[np.uint64] | None:
        """Returns the key of each row, or for a stream its position. Returns None if a key is not an integer >= 0."""
        if mended is not None:
            return as_index(mended.keys)
        rank, world = self.options.shard
        start = (task.step * world + rank) * (self.options.batch_size or 1)
        if self.local_rows is not None:
            return start + np.array(self.local_rows, np.uint64)
        return np.arange(start, start + rows, dtype=np.uint64)

    def pad(self, plan: AnyPlan | None, task: Task, mended: Mended | None) -> int:
        """Returns the number of padding rows at the end of a batch."""
        return 0

    # For the attributes of the loader.

    def sampler(self, now: Now) -> Any:
        """Returns the user's sampler, or the keys of the current epoch if there is none.

        Returns None for a stream or a batch_sampler.
        """
        return self.options.sampler

    def batch_sampler(self, now: Now) -> Any:
        return self.options.batch_sampler


def displayed_settings(feed: Feed, face: str) -> dict[str, Any]:
    return {**feed.options.shown(), "one_reader": feed.one_reader, "face": face}


def as_index(keys: Any) -> NDArray[np.uint64] | None:
    if isinstance(keys, np.ndarray):
        return keys.astype(np.uint64)
    if all(isinstance(key, (int, np.integer)) and key >= 0 for key in keys):
        return np.array(keys, np.uint64)
    return None


class StepSource(Source):
    """Provides `penstock.rng()` while the caller's process reads the keys or light items of a step."""

    def __init__(self, seed: int, epoch: int, step: int, use: int) -> None:
        self._of = seed, epoch, step, use
        self._rng: Generator | None = None

    def rng(self) -> Generator:
        if self._rng is None:
            import_whole("penstock._work.seeding")
            from penstock._work.seeding import generator  # late: see InlineBackend

            self._rng = generator(*self._of)
        return self._rng
