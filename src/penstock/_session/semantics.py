"""What differs between penstock's rules and torch's, as Protocols. Everything else in a session is the same for both.

`SeedSession` has penstock's rules: any worker may do a step, because a batch is a function of seed, epoch and step.
`penstock.torch` has torch's in `TorchSemantics`: each step belongs to one worker, whose past decides what is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from penstock._schedule.scheduler import Scheduler
from penstock._work.job import Job
from penstock.backends import Backend


class Semantics(Protocol):
    """The rules of one loader: what its workers do, which worker does which step, and what its readers need."""

    # For an engine: see `Session.hire`.

    def job(self) -> Job: ...
    def scheduler(self) -> Scheduler: ...
    def backend(self, job: Job) -> Backend: ...
    def manner(self) -> Mapping[str, Any]:
        """The keyword arguments of `Engine`."""

    # For a reader: see `Reader`.

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
