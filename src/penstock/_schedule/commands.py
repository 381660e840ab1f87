"""Commands, which tell the engine what to do next, in order. The scheduler has no other output.

Like events, commands compare as plain tuples.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Hire(NamedTuple):
    """Start a worker in a seat. The worker's id is new, even if the seat was used before."""

    worker: int
    seat: int


class Retire(NamedTuple):
    """Ask one worker to exit: the first worker that becomes idle. The event `WorkerLeft` follows.

    If each worker has its own steps, the worker in `seat` is asked instead, and exits after all its posted steps.
    """

    seat: int = -1


class GiveUp(NamedTuple):
    """Leave a seat empty until the next run, because too many workers crashed there at start-up.

    `worker` is the last of these workers.
    """

    seat: int
    worker: int


class Post(NamedTuple):
    """Offer a step to the workers. If this `seq` has no step yet, first draw one from the plan.

    The result goes into the slab with the id `slab`. If the id is new, the slab must be allocated first. If no step
    is left to draw (`Exhausted`), no slab is needed, and a later Post may use the same id.

    Only the worker in `seat` may do the step; -1 means any free worker. If `resume` is True, the worker has not read
    the stream before, so the task must contain the stream's position after the last filled step.
    """

    seq: int
    slab: int
    seat: int = -1
    resume: bool = False


class Rescind(NamedTuple):
    """Withdraw a posted task. `Rescinded` follows, unless a worker has already claimed the task."""

    seq: int


class Deliver(NamedTuple):
    """Hand a filled step to the consumer. The step's slab is lent to the consumer until `SlabReturned`."""

    seq: int
    slab: int


class DeliverLost(NamedTuple):
    """Tell the consumer that a step failed for good. The step's slab is free.

    `worker` is the last worker that died while doing this step. If the step failed because no worker is left,
    `worker` is the last worker that died.
    """

    seq: int
    slab: int
    worker: int


class Break(NamedTuple):
    """End the run with an error before this step, because no worker can continue the stream.

    `worker` is the dead worker that was reading the stream. If `unknown` is True, the stream's position was lost.
    Otherwise, no retries are left, or the seat was given up.
    """

    seq: int
    worker: int
    unknown: bool


class Fail(NamedTuple):
    """Stop with an error: this worker has died, and cannot be replaced because it has its own steps."""

    worker: int


class Finish(NamedTuple):
    """Answer the consumer's request for a batch: the run is over."""


class Cool(NamedTuple):
    """Give the memory pages of this free slab back to the system. The slab may be used again."""

    slab: int


Command: TypeAlias = (
    Hire | Retire | GiveUp | Post | Rescind | Deliver | DeliverLost | Break | Fail | Finish | Cool
)  # fmt: skip
