"""Protocols for the differences between penstock's semantics and torch's.

`SeedSession` follows penstock's rules: any worker may do a step, because a batch is a function of seed, epoch and
step. `TorchSemantics` follows torch's: each step belongs to one worker, and depends on what that worker did before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from penstock._schedule.scheduler import Scheduler
from penstock._work.job import Job
from penstock.backends import Backend


class Semantics(Protocol):
    """The rules of one loader: what its workers do, which worker gets which step, and how batches are delivered."""

    # For an engine: see `Session.hire`.

    def job(self) -> Job: ...
    def scheduler(self) -> Scheduler: ...
    def backend(self, job: Job) -> Backend: ...
    def manner(self) -> Mapping[str, Any]:
        """Returns the keyword arguments for `Engine`."""

    # For a reader: see `Reader`.

    @property
    def timeout(self) -> float | None: ...
    @property
    def max_errors(self) -> int | None: ...
    @property
    def deliver(self) -> Callable[[Any], Any] | None:
        """A function that converts each batch for the caller, or None."""


class Position(Protocol):
    """The position in an epoch. A reader reports each step to this object."""

    def passed(self, step: int, mark: bytes | None, worker: int, /) -> None:
        """Records that a step was handed out, as a batch or an error. `mark` is the saved position after the step."""

    def finish(self, end: bytes | None, ends: Mapping[int, bytes], /) -> None:
        """Records that the caller has been told of the epoch's end.

        `end` is the saved stream position at which the next epoch begins. If each worker reads its own
        stream, `ends` holds one such position per worker.
        """
