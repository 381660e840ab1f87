"""Decisions that a tuner would not make."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock._schedule.tuner import Resize


class Forced:
    """In the place of a loader's tuning: the numbers are those of a list, one pair after the other."""

    def __init__(self, numbers: Iterable[tuple[int, int]]) -> None:
        self._numbers = iter(numbers)
        self.extra = False

    def ask(self, engine: Any) -> Resize | None:
        found = next(self._numbers, None)
        return None if found is None else Resize(*found, "A test wants 1.")


def force(loader: Any, numbers: Iterable[tuple[int, int]]) -> None:
    """Lets the loader change its numbers (workers, prefetch_factor) with each batch that it hands out."""
    session = getattr(loader, "_session", None) or loader._penstock
    session.tuning = Forced(numbers)
    session.measures.meter.every = -1
    session.measures.meter.next_tick = 0
