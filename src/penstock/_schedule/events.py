"""What has happened outside: the only way in for the scheduler.

A `seq` is the place of a step in the life of a crew: it grows, spans runs, and is never used twice (some
are never used at all). A run is what one consumer reads from `Opened` to `Finish`.

What is called a step here may be several steps of the plan, done and delivered as one, and nobody here
knows: only when a worker dies of them they are told apart, so that one of them cannot take the others along.

Events are named tuples because three of them are made for every batch, and a named tuple costs a third of
a frozen dataclass. The price: they compare as plain tuples, so `Asked() == Cancelled()`. Compare their types
too, or their `repr`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Opened(NamedTuple):
    """A consumer begins a run. Legal when there was none, it is over, or it was cancelled.

    Where steps belong to seats, the first one is for this.
    """

    seat: int = 0


class Asked(NamedTuple):
    """The consumer wants its next batch. Exactly one of Deliver, DeliverLost and Finish answers it."""


class Bounded(NamedTuple):
    """The current run ends before `seq`. What is posted from there on belongs to the next run.

    `Opened` forgets it: where the bound of the new run is known, say so right after.
    """

    seq: int


class Exhausted(NamedTuple):
    """There is nothing to draw for Post(seq), nor for any later one until the next `Opened`.

    The answer to each Post of one list comes before any other kind of event (but `Bounded`, and `WorkerLost` of
    one that was to be hired by the same list).
    """

    seq: int


class StepFilled(NamedTuple):
    """The result of a step is in: a batch or the user's error, which is the same here."""

    seq: int
    worker: int


class StepEnded(NamedTuple):
    """A stream ran dry before this step. No later step of this stream holds anything.

    For a step of the next run it only frees the slab and stops posting: say `Bounded` after `Opened`.
    """

    seq: int
    worker: int


class WorkerLost(NamedTuple):
    """A worker is dead, and all that it sent has been handled; or it could not be started.

    `seq` is what it had claimed, unfinished. That was `steps` steps of the plan, and the worker died in the one
    at `at`. From here on they are steps of their own: seq, seq + 1 and so on.
    """

    worker: int
    seq: int | None
    steps: int = 1
    at: int = 0


class SlabReturned(NamedTuple):
    """The last view of a lent batch is gone."""

    slab: int


class Cancelled(NamedTuple):
    """The consumer has abandoned its run, and with it what was prefetched for the next."""


class Rescinded(NamedTuple):
    """Rescind(seq) found the task open on the board and took it off: no worker has seen it."""

    seq: int


class Closed(NamedTuple):
    """The end. Whatever is handled later is ignored."""


Event: TypeAlias = (
    Opened | Asked | Bounded | Exhausted | StepFilled | StepEnded | WorkerLost | SlabReturned | Cancelled
    | Rescinded | Closed
)  # fmt: skip
