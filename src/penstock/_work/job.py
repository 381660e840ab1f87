"""The job of a crew of workers, and the interface of its task runners."""

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
    from penstock.plan._order import Order


class TaskRunner(Protocol):
    """Runs the tasks of one worker, one after the other. A backend uses only these methods."""

    def begin(self, seat: int, *, alone: bool) -> None:
        """Prepares the worker for its first task. `alone`: this process is this worker, and nothing else."""

    def change(self, changes: Iterable[Change]) -> None:
        """Applies changes to the dataset. If one fails, every later task fails with its error."""

    def run(self, task: Task, writer: Writer, gauge: Gauge | NoGauge) -> Done | AtEnd | Errored:
        """Makes the batch of a task. Its arrays are in the writer's slab if penstock collates it.

        An exception that `run` raises is not the task's error: it ends the worker.
        """

    def failed(self, error: BaseException, task: Task, mark: bytes | None) -> Errored:
        """The outcome of the latest task if its batch could not be sent."""

    def capture(self, errored: Errored) -> bytes:
        """The error as bytes, which `restore` reads in the caller's process."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Job:
    """Everything that is the same for all steps. Each worker of a crew gets it at the start."""

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
    on_error: str = "raise"
    order: Order | None = None  # replacements are drawn from it; None: from the step itself
    cast: Cast | None = None  # how the numbers in a batch are converted
    make_runner: Callable[[Job, str], TaskRunner] | None = None  # makes a runner of another class than `Runner`
    assigned: bool = False  # each task is for one certain worker, not for the first free one
    log: UpdateLog = field(default_factory=UpdateLog)

    def number(self, step: int) -> int:
        """The step's number among the steps of all ranks, so that each rank draws other random numbers."""
        rank, world = self.shard
        return step * world + rank
