"""Protocols for the differences between penstock's semantics and torch's. The rest of a session is common to both.

`SeedSession` has penstock's rules: any worker may do a step, because a batch is a function of seed, epoch and step.
`TorchSemantics` in `penstock.torch` has torch's: each step belongs to one worker, and depends on the worker's past.
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
        """Called with each batch; returns what the caller gets. None: the caller gets the batch itself."""


class Position(Protocol):
    """The position in an epoch, to which a reader reports: `Progress`, torch's `Cursor`, or a `SharedEpoch`."""

    def passed(self, step: int, mark: bytes | None, worker: int, /) -> None:
        """Called when a step was handed out, as a batch or as an error. `mark`: see `Task`."""

    def finish(self, end: bytes | None, ends: Mapping[int, bytes], /) -> None:
        """Called when the caller has been told that the epoch is over. `end` and `ends`: see `Run`."""
