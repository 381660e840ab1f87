"""Races: one program on torch's engine and on penstock's, in turn, until it is known whether penstock is slower.

Every run of penstock's is between two of torch's, in the same process, and is compared with those two. So all have
the same load beside them. The same comparison between torch's own runs is the control.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

SLOWDOWN = 1.2  # a program that takes so many times as long as on torch is found
MARGIN = 1.1  # one that takes less than this many times as long is not called slower
LOOKS = (6, 9, 12, 17, 23)  # rounds after which the ratios are judged; fewer than 6 prove nothing
SECONDS = 150.0  # after so long, the race ends at the next look


@dataclass(frozen=True)
class Cost:
    """Seconds of the clock for the timed epochs of one run, and seconds of CPU, with those of its workers."""

    clock: float
    cpu: float


class Ratio:
    """The median of some ratios, and bounds of it by order statistics, which assume nothing of the noise."""

    def __init__(self, ratios: list[float]) -> None:
        self._ordered = sorted(ratios)
        self.median = statistics.median(ratios)

    def bounds(self, doubt: float) -> tuple[float, float]:
        """The true median is below the first, or above the second, with at most this probability each."""
        count = len(self._ordered)
        outside = -1  # so many ratios are left out at each end
        while sum(math.comb(count, k) for k in range(outside + 2)) / 2**count <= doubt:
            outside += 1
        return (self._ordered[outside], self._ordered[-1 - outside]) if outside >= 0 else (0.0, math.inf)

    @property
    def verdict(self) -> str:
        if self.bounds(0.025)[1] < SLOWDOWN:
            return "no slower"
        return "slower" if self.bounds(0.005)[0] > MARGIN else "undecided"

    def __str__(self) -> str:
        return "{:.2f} ({:.2f}-{:.2f})".format(self.median, *self.bounds(0.025))


@dataclass
class Race:
    """The runs so far. torch has one more than penstock."""

    torch: list[Cost] = field(default_factory=list)
    penstock: list[Cost] = field(default_factory=list)

    @classmethod
    def read(cls, found: dict[str, Any]) -> Race:
        return cls(*([Cost(**cost) for cost in found[engine]] for engine in ("torch", "penstock")))

    def ratio(self, kind: str) -> Ratio:
        """penstock's time, "clock" or "cpu", as a multiple of torch's."""
        ours, theirs = ([getattr(cost, kind) for cost in costs] for costs in (self.penstock, self.torch))
        around = zip(ours, pairwise(theirs), strict=True)
        return Ratio([mine / math.sqrt(before * after) for mine, (before, after) in around])

    def control(self, kind: str) -> Ratio:
        costs = [getattr(cost, kind) for cost in self.torch]
        return Ratio([after / before for before, after in pairwise(costs)])

    @property
    def verdict(self) -> str:
        """The clock's. Where other programs disturb it too much, CPU time decides, if the clock's median agrees."""
        clock, cpu = self.ratio("clock"), self.ratio("cpu")
        leaning = "no slower" if clock.median < MARGIN else "slower"
        return leaning if clock.verdict == "undecided" and cpu.verdict == leaning else clock.verdict

    @classmethod
    def held(cls, run: Callable[[str], Cost], now: Callable[[], float] = time.monotonic) -> Race:
        """Runs until the verdict is known, or until the time is over."""
        race, end = cls(), now() + SECONDS
        run("penstock")  # what happens only once in a process is not timed; torch has run already
        race.torch.append(run("torch"))
        for look in LOOKS:
            while len(race.penstock) < look:
                race.penstock.append(run("penstock"))
                race.torch.append(run("torch"))
            if race.verdict != "undecided" or now() > end:
                break
        return race
