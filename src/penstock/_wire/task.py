"""A task: one step of the plan, as it travels to whoever does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from penstock._fill.cast import Cast
from penstock._wire.updates import Log
from penstock.plan._order import Order

# How many steps may be done as one task.
MOST_STEPS = 32


class Task(NamedTuple):
    """One step of the plan, as it travels to the worker that does it; or several steps (a bundle).

    `seq` is unique in the life of an engine, `run` in the life of a loader: each `iter()` is one run. The feed that
    drew `keys` knows what they are. Steps that take a few microseconds travel several in one task: `steps` equal
    shares of `keys`.

    `mark` tells where the sampler or stream was when the step had been read, if it has a state. It stays with the
    caller, or comes from the worker that reads.
    """

    seq: int
    run: int
    epoch: int
    step: int
    keys: Any
    steps: int = 1
    mark: bytes | None = None

    def single(self) -> list[Task]:
        """Its steps as tasks of their own. Their seqs follow its own, which leaves room for them."""
        seq, run, epoch, step, keys, count, _ = self
        if count == 1:
            return [self]
        share = len(keys) // count
        return [Task(seq + i, run, epoch, step + i, keys[i * share : (i + 1) * share]) for i in range(count)]


class Opening(NamedTuple):
    """The keys of a task at which a worker may have to open a stream, in the place of `size` alone.

    The stream continues from `mark`, or begins if there is none. Of its batches, `replayed` were handed out before. A
    worker that has read the run number `after` to its end holds the stream in that state already.
    """

    size: int
    mark: Any
    replayed: int
    after: int = -1


class Mended(NamedTuple):
    """How a step was done although samples of it failed.

    `keys` are of the rows that are there, `rows` where these would be if none had failed. `errors` tell what
    failed, and how: a key and an exception each, which is in bytes while it travels. In a stream, a key is a
    position.
    """

    keys: list[Any]
    rows: list[int]
    errors: list[tuple[Any, Any]]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Job:
    """What each worker of a crew has from the beginning: all that does not change from step to step."""

    dataset: Any
    fetch: Any  # the worker's half of the feed: called with the runner
    collate_fn: Any
    worker_init_fn: Callable[[int], object] | None
    num_workers: int
    seed: int
    drop_last: bool
    slots: int
    shard: tuple[int, int] = (0, 1)  # which rank this crew works for, and of how many
    batched: bool = True
    batch_size: int = 1  # samples in each step of a stream but the last
    on_error: str = "raise"
    order: Order | None = None  # where a replacement is taken from; None: from the step itself
    cast: Cast | None = None  # what becomes of the numbers in a batch
    make_runner: Callable[..., Any] | None = None  # for workers that run tasks in another way
    assigned: bool = False  # tasks are for one worker each, and not for whoever is free
    log: Log = field(default_factory=Log)


def shorten(keys: Any) -> str:
    """The keys of a step for a message: the first few, and how many there are."""
    if not isinstance(keys, (list, np.ndarray)):
        return repr(keys)
    shown = ", ".join(repr(key) for key in (keys[:6].tolist() if isinstance(keys, np.ndarray) else keys[:6]))
    return f"[{shown}, ... {len(keys)} in all]" if len(keys) > 6 else f"[{shown}]"
