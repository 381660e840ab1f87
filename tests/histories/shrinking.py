"""Makes a history that fails shorter, for as long as it fails in the same way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from tests.histories.running import Ran, run
from tests.histories.writing import History, program, simpler

Still = Callable[[History], bool]


def how_often(history: History, times: int = 10) -> int:
    """How many of so many runs fail."""
    text = program(history)
    return sum(bool(run(text).finding) for _ in range(times))


def shrunk(history: History, found: Ran, seconds: float = 120) -> tuple[History, str]:
    """The shortest history that was found in this time, and a sentence that says how often it fails."""
    failed = how_often(history, 5)
    # A history that fails one time in five is tried often enough to fail with probability 0.9.
    tries = 1 if failed == 5 else min(20, math.ceil(2.3 / -math.log(1 - max(failed, 0.5) / 5.5)))
    end = time.monotonic() + seconds

    def still(candidate: History) -> bool:
        text = program(candidate)
        for _ in range(tries):
            if time.monotonic() > end:
                return False
            again = run(text, 15)
            if again.finding == found.finding and _alike(again, found):
                return True
        return False

    short = _without_operations(history, still)
    short = _simplified(short, still)
    short = _without_operations(short, still)
    often = how_often(short)
    if not often and failed:  # shortened beyond what fails often enough to be seen
        short, often = history, how_often(history)
    return short, f"It failed {often} times of 10."


def _alike(one: Ran, other: Ran) -> bool:
    return one.signature[:60] == other.signature[:60]


def _without_operations(history: History, still: Still) -> History:
    """Removes ever smaller parts of the operations: Zeller's ddmin, without its complements."""
    size = len(history.operations) // 2
    while size:
        at = 0
        while at < len(history.operations):
            operations = (*history.operations[:at], *history.operations[at + size :])
            shorter = replace(history, operations=operations)
            ends = bool(operations) and operations[-1][0] == "end"
            if ends and program(shorter) != program(history) and still(shorter):
                history = shorter
            else:
                at += size
        size //= 2
    return history


def _simplified(history: History, still: Still) -> History:
    progress = True
    while progress:
        progress = False
        for candidate in simpler(history):
            if program(candidate) != program(history) and still(candidate):
                history, progress = candidate, True
                break
    return history
