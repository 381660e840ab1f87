"""The recent events and commands of a scheduler, for reports of bugs."""

from __future__ import annotations

from collections import deque

from penstock._schedule.commands import Command
from penstock._schedule.events import Event, WorkerLost


class Log(deque[Event | Command]):
    """The last thousand: those of all steps on their way, and more."""

    def __init__(self, entries: object = ()) -> None:
        super().__init__(entries, 1000)  # type: ignore[call-overload]

    def about(self, seq: int) -> list[str]:
        """The entries that name a step, also as part of a bundle."""
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
