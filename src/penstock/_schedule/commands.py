"""Commands, which tell the engine what to do next. They are the scheduler's only output.

The engine carries out a list of commands in order. Like events, commands compare as plain tuples.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Hire(NamedTuple):
    """Start a worker in a seat (a worker's slot). The worker id is always new, even if the seat was used before."""

    worker: int
    seat: int


class Retire(NamedTuple):
    """Ask one worker to exit after its current step. The event `WorkerLeft` follows.

    The first worker that becomes idle exits. With a fixed assignment of steps to workers, the worker in `seat` exits,
    after it has done all its posted steps.
    """

    seat: int = -1


class GiveUp(NamedTuple):
    """Leave a seat (a worker's slot) empty until the next run, because its workers crash at start-up.

    `worker` is the last worker that crashed.
    """

    seat: int
    worker: int


class Post(NamedTuple):
    """Offer a step to the workers. Draw the step first, unless one was already drawn for this `seq` (task number).

    If the id `slab` is new, allocate a slab (a memory block for one batch). If no step is left to draw (`Exhausted`),
    no slab is needed, and a later Post may name the same id.

    `seat` is the slot of the worker that must do the step; -1 means any free worker. If `resume` is True, a new
    reader does the step, so the task must contain the stream's position after the last filled step.
    """

    seq: int
    slab: int
    seat: int = -1
    resume: bool = False


class Rescind(NamedTuple):
    """Withdraw a posted task. If no worker has claimed it yet, the event `Rescinded` follows.

    Otherwise the worker that has claimed the task will report its outcome.
    """

    seq: int


class Deliver(NamedTuple):
    """Hand a filled step to the consumer. Its slab (memory block) is lent to the consumer until `SlabReturned`."""

    seq: int
    slab: int


class DeliverLost(NamedTuple):
    """Tell the consumer that this step has failed for good.

    `worker` is the last worker that died while doing the step. The step's slab (memory block) is free.
    """

    seq: int
    slab: int
    worker: int


class Break(NamedTuple):
    """End the run with an error before this step, because no worker can continue the stream.

    `worker` is the stream's reader, which has died. If `unknown` is True, the stream's position was lost with the
    worker. Otherwise, no retries are left, or the seat (the worker's slot) was given up.
    """

    seq: int
    worker: int
    unknown: bool


class Fail(NamedTuple):
    """Stop with an error, because this worker has died.

    With a fixed assignment of steps to workers, no other worker can replace it.
    """

    worker: int


class Finish(NamedTuple):
    """Tell the consumer that its run is over. This answers its request for a batch."""


class Cool(NamedTuple):
    """Give the memory pages of this free slab (memory block) back to the system. The slab may be used again later."""

    slab: int


Command: TypeAlias = (
    Hire | Retire | GiveUp | Post | Rescind | Deliver | DeliverLost | Break | Fail | Finish | Cool
)  # fmt: skip
