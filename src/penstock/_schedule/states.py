"""The scheduler's states, its record of a step, and its event log for bug reports."""

from __future__ import annotations

import re
from collections import deque
from enum import Enum
from typing import NamedTuple

from penstock._schedule.commands import Command
from penstock._schedule.events import Event, WorkerLost


class Phase(Enum):
    NEW = "new"
    OPEN = "open"
    IDLE = "idle"
    CLOSED = "closed"


class StepState(Enum):
    POSTED = "posted"
    FILLED = "filled"
    LOST = "lost"
    ABANDONED = "abandoned"


class SlabState(Enum):
    FREE = "free"
    HELD = "held"
    LENT = "lent"


# The members by bare names: looking one up in its class costs 0.1 µs in Python 3.11, and a batch looks up a dozen.
NEW, OPEN, IDLE, CLOSED = Phase
POSTED, FILLED, LOST, ABANDONED = StepState
FREE, HELD, LENT = SlabState


class Step(NamedTuple):
    """An undelivered step. Steps are immutable, so a copy of a table of steps is a snapshot."""

    state: StepState
    slab: int
    attempt: int = 0
    worker: int = -1  # the last worker that died while doing the step
    seat: int = -1  # the seat whose worker must do the step; -1 means any


def method_for(kind: type) -> str:
    """Returns the name of the method that handles an event or command, such as `_step_filled` for StepFilled."""
    return re.sub("(?=[A-Z])", "_", kind.__name__).lower()


class EventLog(deque[Event | Command]):
    """The last thousand events and commands."""

    def __init__(self) -> None:
        super().__init__(maxlen=1000)

    def about(self, seq: int) -> list[str]:
        """Returns the entries that mention a step, or a bundle that contains the step."""
        return [repr(entry) for entry in self if _concerns(entry, seq)]

    def report(self) -> str:
        recent = "\n    ".join(map(repr, list(self)[-50:]))
        return (
            "  This is a bug in penstock, not in your program. Please report it with this text.\n"
            f"  The last events and commands:\n    {recent}"
        )


def _concerns(entry: Event | Command, seq: int) -> bool:
    first = getattr(entry, "seq", None)
    if first is None:
        return False
    return bool(first <= seq < first + (entry.steps if isinstance(entry, WorkerLost) else 1))
