"""The job of a loader's workers, and the interface of the objects that run the workers' tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from penstock._wire.updates import Change, UpdateLog

if TYPE_CHECKING:
    from penstock._fill.cast import Cast
    from penstock._measure.gauges import Gauge, NoGauge
    from penstock._memory.layout import Writer
    from penstock._wire.task import Task
    from penstock._work.fetch import Fetch
    from penstock._work.outcomes import AtEnd, Done, Errored
    from penstock.plan import LocalRows
    from penstock.plan._order import Order


class TaskRunner(Protocol):
    """Runs the tasks of one worker, one after the other. Backends use only these methods."""

    def begin(self, seat: int, *, alone: bool) -> None:
        """Prepares the worker in slot `seat` for its first task. `alone` is True for a worker in its own process."""

    def change(self, changes: Iterable[Change]) -> None:
        """Applies changes to the dataset. If a change fails, every later task fails with the same error."""

    def run(self, task: Task, writer: Writer, gauge: Gauge | NoGauge) -> Done | AtEnd | Errored:
        """Makes a task's batch, in the slab if penstock collates it. If `run` itself raises, the worker ends."""

    def failed(self, error: BaseException, task: Task, mark: bytes | None) -> Errored:
        """Returns the outcome of the latest task, whose batch could not be sent because of `error`."""

    def capture(self, errored: Errored) -> bytes:
        """Returns the error as bytes, which `restore` converts back to an exception in the caller's process."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Job:
    """The dataset and the settings that all steps share. Each worker gets the job when it starts."""

    dataset: Any
    fetch: type[Fetch] | None  # the worker's half of the feed; None if the runner fetches by itself
    collate_fn: Any
    worker_init_fn: Callable[[int], object] | None
    num_workers: int
    seed: int
    drop_last: bool
    shard: tuple[int, int] = (0, 1)  # the rank that this crew works for, and the number of ranks
    batched: bool = True
    batch_size: int = 1  # samples in each step of a stream, except the last
    local_rows: LocalRows | None = None  # the rows of each step that this crew makes; None for all
    on_error: str = "raise"
    order: Order | None = None  # replacements are drawn from this order, or from the step itself if it is None
    cast: Cast | None = None  # how the numbers in a batch are converted
    make_runner: Callable[[Job, str], TaskRunner] | None = None  # makes a runner that is not a `Runner`
    assigned: bool = False  # each task is for a particular worker, not for the first free one
    log: UpdateLog = field(default_factory=UpdateLog)

    def number(self, step: int) -> int:
        """Returns a step's index among the steps of all ranks, so that each rank has its own random numbers."""
        rank, world = self.shard
        return step * world + rank

    def drawing(self, step: int) -> int:
        """Returns the number from which the global generators of a step are seeded.

        Crews that make different rows of the step get different numbers. Two crews have the same rows, or none in
        common.
        """
        return self.number(step) if self.local_rows is None else step * self.batch_size + self.local_rows[0]
