"""What has happened outside the scheduler: its only input.

A `seq` numbers a step over the life of an engine: it grows, spans runs, and is never used twice (some numbers are
never used at all). A run is what one consumer reads from `Opened` to `Finish`.

A step of the scheduler may be a bundle: several steps of the plan that are done and delivered as one. The scheduler
learns this only if a worker dies: then the bundle becomes single steps, so that a step that kills workers does not
affect the others.

Events are named tuples because three of them are made for every batch, and a named tuple costs a third of a frozen
dataclass. The price: they compare as plain tuples, so `Asked() == Cancelled()`. Compare their types too, or their
`repr`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Opened(NamedTuple):
    """A consumer begins a run. Legal if there was none, or the last one is over or cancelled.

    With a fixed assignment, the worker in `seat` gets the first step.
    """

    seat: int = 0


class Asked(NamedTuple):
    """The consumer wants its next batch. Exactly one of Deliver, DeliverLost and Finish answers it."""


class Bounded(NamedTuple):
    """The current run ends before `seq`. Steps posted from there on belong to the next run.

    `Opened` resets the bound: if the bound of the new run is known, `Bounded` follows at once.
    """

    seq: int


class Exhausted(NamedTuple):
    """There is nothing to draw for Post(seq), nor for any later one until the next `Opened`.

    The answer to each Post of one list of commands comes before any other kind of event (except `Bounded`, and
    `WorkerLost` for a worker that the same list hires).
    """

    seq: int


CALLER = -1
"""Stands for a worker: the step failed in the calling process, and was not posted."""


class StepFilled(NamedTuple):
    """The result of a step arrived: a batch or the user's error, which makes no difference here."""

    seq: int
    worker: int


class StepEnded(NamedTuple):
    """A stream ended before this step, so no later step of this stream has samples either.

    For a step of the next run it only frees the slab and stops posting: tell `Bounded` after `Opened`.
    """

    seq: int
    worker: int


class WorkerLost(NamedTuple):
    """A worker died, and everything it had sent was handled; or it could not be started.

    `seq` is the task that it had claimed but not finished: a bundle of `steps` steps of the plan. It was doing step
    number `at` of these (None if unknown). From now on they are single steps: seq, seq + 1 and so on. `resumable`
    matters for streams: a position after an earlier step of the run is known.
    """

    worker: int
    seq: int | None
    steps: int = 1
    at: int | None = 0
    resumable: bool = False


class WorkerLeft(NamedTuple):
    """A worker left, as it was asked to: it has no step, and everything that it had sent was handled."""

    worker: int


class Resized(NamedTuple):
    """The new number of workers, and the new number of steps that may be undelivered.

    `retained`: the number of requests to leave that were withdrawn just before, because no worker had taken them.
    """

    workers: int
    window: int
    retained: int = 0


class Changed(NamedTuple):
    """The dataset changed: every step that was not handed out yet must be done again, under another seq."""


class SlabReturned(NamedTuple):
    """The last view of a lent batch is gone."""

    slab: int


class Cancelled(NamedTuple):
    """The consumer abandoned its run, and with it the prefetched steps of the next one."""


class Rescinded(NamedTuple):
    """Rescind(seq) withdrew the task before any worker had claimed it."""

    seq: int


class Closed(NamedTuple):
    """The end. Later events are ignored."""


Event: TypeAlias = (
    Opened | Asked | Bounded | Exhausted | StepFilled | StepEnded | WorkerLost | WorkerLeft | Resized | Changed
    | SlabReturned | Cancelled | Rescinded | Closed
)  # fmt: skip
