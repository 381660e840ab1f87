"""Backends, which decide where workers run: in the calling process, in threads, in processes, or on other machines.

To write your own backend, define a class with the methods of `Backend`, and `register` it under a name.
`penstock.testing.conformance` checks that a backend keeps penstock's guarantees. docs/own-backend.md has an example.

Each outcome that a backend reports is one of these:

    >>> from penstock import backends
    >>> def described(outcome: backends.Outcome) -> str:
    ...     match outcome:
    ...         case backends.Filled(seq=seq, rows=rows):
    ...             return f"task {seq}: a batch of {rows} rows"
    ...         case backends.Bundle(seq=seq, steps=steps):
    ...             return f"task {seq}: {len(steps)} batches"
    ...         case backends.Failed(seq=seq, error=error):
    ...             return f"task {seq}: {error!r}"
    ...         case backends.Ended(seq=seq):
    ...             return f"task {seq}: the stream has ended"
    ...         case backends.Lost(who=who, how=how):
    ...             return f"{who} {how}"
    ...         case backends.Left(worker=worker):
    ...             return f"worker {worker} has left"
    >>> described(backends.Failed(3, 0, KeyError("x")))
    "task 3: KeyError('x')"
    >>> described(backends.Ended(4, 0))
    'task 4: the stream has ended'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock._measure.gauges import Gauge, Gauges
from penstock._memory.layout import Writer
from penstock._memory.slabs import Slabs
from penstock._wire.task import Bundle, Ended, Failed, Filled, Task
from penstock._wire.updates import Change
from penstock._work.job import Job
from penstock._work.runner import Runner
from penstock.backends import _ours as _ours  # registers penstock's own backends
from penstock.backends._base import HUNG, Backend, Doing, Left, Lost, Outcome, known, make, register, unregister

if TYPE_CHECKING:
    from penstock.backends._local import run_task

__all__ = [
    "HUNG",
    "Backend",
    "Bundle",
    "Change",
    "Doing",
    "Ended",
    "Failed",
    "Filled",
    "Gauge",
    "Gauges",
    "Job",
    "Left",
    "Lost",
    "Outcome",
    "Runner",
    "Slabs",
    "Task",
    "Writer",
    "known",
    "make",
    "register",
    "run_task",
    "unregister",
]


def __getattr__(name: str) -> Any:
    if name == "run_task":  # late: only backends without worker processes need its module
        from penstock.backends._local import run_task

        return run_task
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
