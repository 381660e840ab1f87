"""A job: what all workers of a crew have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock._fill.cast import Cast
from penstock._wire.updates import Log
from penstock.plan._order import Order


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Job:
    """What each worker of a crew has from its start: everything that is the same for all steps."""

    dataset: Any
    fetch: Any  # the worker's half of the feed: called with the runner
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
    make_runner: Callable[..., Any] | None = None  # for workers that run tasks in another way
    assigned: bool = False  # each task is for one worker, and not for the first that is free
    log: Log = field(default_factory=Log)
