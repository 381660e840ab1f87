"""Events, which tell the scheduler what has happened. The scheduler has no other input.

A `seq` is the number of a task. Seqs grow over the life of an engine, through all its runs. No seq is used
twice, and some are never used. A run is everything that one consumer reads, from `Opened` to `Finish`.

The scheduler calls a task a step. But a task may be a bundle: several steps of the plan that are done and delivered
together. The scheduler learns this only if a worker dies. The bundle is then split into single steps, so that a step
that kills workers does not affect the others.

Events are named tuples, because every batch needs three of them, and a frozen dataclass takes three times as long to
make. Events compare as plain tuples: `Asked() == Cancelled()` is True. To tell two events apart, also compare
their types, or compare what `repr` returns.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Opened(NamedTuple):
    """A consumer begins a run (one epoch). The previous run, if any, must be over or cancelled.

    If each worker has its own steps, the worker in `seat` gets the first step.
    """

    seat: int = 0


class Asked(NamedTuple):
    """The consumer wants its next batch. The answer is exactly one of Deliver, DeliverLost and Finish."""


class Bounded(NamedTuple):
    """The current run ends before the step `seq`. This step and later ones belong to the next run.

    `Opened` removes this limit. If the end of the new run is already known, another `Bounded` follows immediately.
    """

    seq: int


class Exhausted(NamedTuple):
    """No step is left for Post(seq) or for any later Post, until the next `Opened`.

    The engine carries out a whole list of commands before it reports new results from the backend. Until then, the
    scheduler gets only the events that these commands cause: `Exhausted`, `Bounded`, `Rescinded`, `StepFilled` by
    CALLER, and `WorkerLost` for a newly hired worker. These events come in the order of the commands.
    """

    seq: int


CALLER = -1
"""The worker id of a step that failed in the calling process and was not posted."""


class StepFilled(NamedTuple):
    """The result of a step has arrived. The scheduler does not distinguish batches from errors in the user's code."""

    seq: int
    worker: int


class StepEnded(NamedTuple):
    """A stream ended before this step, so the stream has no samples for later steps either.

    In all cases, the step's slab is freed. If the step was abandoned, nothing else happens. Otherwise, no more steps
    are posted until the next `Opened`. If the step belongs to the current run, this run ends before the step. If it
    belongs to the next run, the current run continues, and the engine must send `Bounded` after the next `Opened`,
    because the scheduler does not remember where the next run ends.

    If each worker has its own stream, other rules apply (see `assigned.py`).
    """

    seq: int
    worker: int


class WorkerLost(NamedTuple):
    """A worker died and all its messages have been handled, or a worker could not be started.

    `seq` is the task that the worker had claimed but not finished, or None. If this task was a bundle (`steps` > 1),
    it is now split into tasks of one step, with the numbers seq, seq + 1 and so on. `at` is the index of the step
    that the worker was doing, or None if unknown. `resumable` (only for streams) is True if the stream's position
    after an earlier step of the run is known.
    """

    worker: int
    seq: int | None
    steps: int = 1
    at: int | None = 0
    resumable: bool = False


class WorkerLeft(NamedTuple):
    """A worker has left, as requested. The worker has no step, and all its messages have been handled."""

    worker: int


class Resized(NamedTuple):
    """The number of workers or `window` (the largest number of undelivered steps) has changed.

    `retained` is the number of requests to leave that were withdrawn before a worker accepted them.
    """

    workers: int
    window: int
    retained: int = 0


class Changed(NamedTuple):
    """The dataset has changed. Steps that have not been handed out must be done again, with new task numbers."""


class SlabReturned(NamedTuple):
    """The consumer has dropped the last view of a batch, so the batch's slab is free."""

    slab: int


class Cancelled(NamedTuple):
    """The consumer has abandoned its run. Prefetched steps of the next run are dropped, too."""


class Rescinded(NamedTuple):
    """A posted task was withdrawn by Rescind(seq) before any worker claimed it."""

    seq: int


class Closed(NamedTuple):
    """The engine was closed. Later events are ignored."""


Event: TypeAlias = (
    Opened | Asked | Bounded | Exhausted | StepFilled | StepEnded | WorkerLost | WorkerLeft | Resized | Changed
    | SlabReturned | Cancelled | Rescinded | Closed
)  # fmt: skip
