"""What the engine must do next: the only output of the scheduler.

A list of commands is carried out in its order. Like events, commands compare as plain tuples.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Hire(NamedTuple):
    """Start a worker in a seat. The worker id is always new, even if the seat is not."""

    worker: int
    seat: int


class Retire(NamedTuple):
    """Ask the first worker that becomes free to exit, after its current step. `WorkerLeft` answers.

    With a fixed assignment the worker in `seat` leaves, after all steps that were posted for it.
    """

    seat: int = -1


class GiveUp(NamedTuple):
    """Leave a seat empty until the next run, because its workers crash at start-up. `worker` was the last one."""

    seat: int
    worker: int


class Post(NamedTuple):
    """Offer a step to the workers: the one drawn for this seq before, or else draw it now.

    A slab id not seen before means: allocate one. (If the draw ends in `Exhausted`, nothing need be allocated, and
    a later Post may name the same id.)

    `seat` is the worker that must do the step; -1 means any free worker. `resume`: a new reader does the step, so the
    task carries the position of the stream after the last filled step.
    """

    seq: int
    slab: int
    seat: int = -1
    resume: bool = False


class Rescind(NamedTuple):
    """Withdraw a posted task. `Rescinded` answers if no worker had claimed it; otherwise its worker will report."""

    seq: int


class Deliver(NamedTuple):
    """Hand a filled step to the consumer. Its slab is lent until `SlabReturned`."""

    seq: int
    slab: int


class DeliverLost(NamedTuple):
    """Tell the consumer that this step failed for good; `worker` was the last to die of it. Its slab is free."""

    seq: int
    slab: int
    worker: int


class Break(NamedTuple):
    """The run ends before this step, with an error: its reader, `worker`, died, and no other can continue the stream.

    `unknown` says why: the position of the stream died with the worker. Otherwise the step has used up its retries.
    """

    seq: int
    worker: int
    unknown: bool


class Fail(NamedTuple):
    """Stop with an error: this worker died, and with a fixed assignment no other worker can replace it."""

    worker: int


class Finish(NamedTuple):
    """Tell the asking consumer that its run is over."""


class Cool(NamedTuple):
    """Give the pages of this free slab back to the system. It may be posted again."""

    slab: int


Command: TypeAlias = (
    Hire | Retire | GiveUp | Post | Rescind | Deliver | DeliverLost | Break | Fail | Finish | Cool
)  # fmt: skip
