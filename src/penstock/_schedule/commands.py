"""What the outside must do next: the only way out of the scheduler.

A list of commands is carried out in its order. Like events, they compare as plain tuples.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Hire(NamedTuple):
    """Start a worker in a seat. The id is new even where the seat is not."""

    worker: int
    seat: int


class GiveUp(NamedTuple):
    """Leave a seat empty until the next run: who is hired for it dies. `worker` was the last; others live."""

    seat: int
    worker: int


class Post(NamedTuple):
    """Put a step on the board: one that was drawn for this seq before, or else draw it now.

    A slab id not seen before means: allocate one. (Where the draw ends in `Exhausted` nothing need be
    allocated, and a later Post may name the same id.)

    `seat`: who must do it; -1 where workers are alike, and whoever is free does it.
    """

    seq: int
    slab: int
    attempt: int
    seat: int = -1


class Rescind(NamedTuple):
    """Take a task off the board. `Rescinded` answers if it was there; else its worker will be heard of."""

    seq: int


class Deliver(NamedTuple):
    """Hand a filled step to the consumer. Its slab is lent until `SlabReturned`."""

    seq: int
    slab: int


class DeliverLost(NamedTuple):
    """Tell the consumer that this step is lost; `worker` was the last to die. Its slab is free again."""

    seq: int
    slab: int
    worker: int


class Finish(NamedTuple):
    """Tell the asking consumer that its run is over."""


class Cool(NamedTuple):
    """Give the pages of this free slab back to the system. It may be posted again."""

    slab: int


class Stop(NamedTuple):
    """End everything."""


Command: TypeAlias = Hire | GiveUp | Post | Rescind | Deliver | DeliverLost | Finish | Cool | Stop
