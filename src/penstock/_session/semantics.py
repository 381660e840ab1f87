"""What differs between penstock's rules and torch's, as Protocols. Everything else in a session is the same for both.

`SeedSession` has penstock's rules: any worker may do a step, because a batch is a function of seed, epoch and step.
`penstock.torch` has torch's in `TorchSemantics`: each step belongs to one worker, whose past decides what is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from penstock._fill.cast import Cast
from penstock._schedule.scheduler import Scheduler
from penstock._work.job import Job
from penstock.backends import Backend


class Settings(Protocol):
    """The settings of workers that every face has, by torch's names: `Options`, or a loader of torch's."""

    @property
    def collate_fn(self) -> Any: ...
    @property
    def worker_init_fn(self) -> Any: ...
    @property
    def drop_last(self) -> bool: ...


class Semantics(Protocol):
    """The rules of one loader: what its workers do, who does which step, and what its readers need to know."""

    # The crew: see `new_engine`.

    @property
    def dataset(self) -> Any: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def default_collate(self) -> Any:
        """The `collate_fn` that the runner does by itself."""

    @property
    def batched(self) -> bool: ...
    @property
    def crew_size(self) -> int:
        """The number of workers; 0 runs tasks in the calling process."""

    @property
    def cast(self) -> Cast | None: ...
    def work(self) -> Mapping[str, Any]:
        """The fields of a `Job` that only these semantics have: the runner, and what it draws from."""

    def scheduler(self) -> Scheduler: ...
    def backend(self, job: Job) -> Backend: ...
    def manner(self) -> Mapping[str, Any]:
        """How the engine works: its keyword arguments."""

    # The epoch: see `Reader`.

    @property
    def timeout(self) -> float | None: ...
    @property
    def max_errors(self) -> int | None: ...
    @property
    def deliver(self) -> Callable[[Any], Any] | None:
        """Is called with each batch, and returns what the caller gets; None hands out the batch itself."""


class Position(Protocol):
    """The position of an epoch. A reader reports to it: `Progress`, torch's `Cursor`, or one that reports later."""

    def passed(self, step: int, mark: bytes | None, worker: int, /) -> None:
        """A step was handed out, as a batch or as an error; `mark`: see `Task`."""

    def finish(self, end: bytes | None, ends: Mapping[int, bytes], /) -> None:
        """The caller was told that the epoch is over; `end` and `ends`: see `Run`."""
