"""Loads for the tuner: a loader, its machine and its caller as a few formulas, a quarter of a second at a time."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from penstock._schedule.tuner import Bounds, Interval, Range, Resize, Tuner

TICK = 0.25  # seconds


@dataclass(frozen=True)
class Simulated:
    """A step takes a worker `wait + cpu` seconds, of which `cpu` on a processor; the caller takes `turn` for a batch.

    `own`: processor seconds of the caller for each batch inside of `next()`. `at_once`: how many steps a device that
    all workers share (a disk, the memory bus, the GIL) can do at the same time. `unsteady`: share of the time that
    the caller waits with one batch ahead for a slow step, though workers are idle. `boot`: seconds until a new worker
    is there. Bytes: `base` of the caller, `each` worker and `batch`.
    """

    cpu: float = 0.0
    wait: float = 0.0
    turn: float = 0.0
    own: float = 20e-6
    cpus: float = 2.0
    at_once: float = 1e9
    unsteady: float = 0.0
    boot: float = 0.1
    noise: float = 0.0
    base: int = 0
    each: int = 0
    batch: int = 0

    def step(self, workers: int) -> float:
        """Seconds for a step, beside so many busy workers."""
        alone = self.wait + self.cpu
        return max(alone, workers * self.cpu / self.cpus, workers * alone / self.at_once)

    def rate(self, workers: int, prefetch: int = 2) -> float:
        """Batches per second that the caller gets."""
        quickest = 1 / (self.turn + self.own)
        return min(workers / self.step(workers), quickest * (1 - self.unsteady / (workers * prefetch)))

    def best(self, most: int) -> float:
        return max(self.rate(workers) for workers in range(1, most + 1))


NO_LIMIT = 1 << 60  # bytes


def beginning(bounds: Bounds) -> Tuner:
    """A tuner that begins with two workers, if it may."""
    workers, prefetch = bounds.workers, bounds.prefetch
    first = max(workers.least, min(2, bounds.processors, workers.most))
    return Tuner(bounds, first, max(prefetch.least, min(2, prefetch.most)))


class Run:
    """A tuner beside a simulated load, which may be replaced by another while it runs."""

    def __init__(self, load: Simulated, bounds: Bounds, seed: int = 0) -> None:
        self.load, self.tuner = load, beginning(bounds)
        self.now = 0.0
        self.live = 0
        self.changes: list[tuple[float, Resize]] = []
        self.intervals: list[Interval] = []
        self._arrive: list[float] = [load.boot] * self.tuner.workers
        self._half = 0.0  # of a step, which the next interval finishes
        self._random = random.Random(seed)

    def rate(self) -> float:
        return self.load.rate(self.tuner.workers, self.tuner.prefetch_factor)

    def run(self, seconds: float) -> list[tuple[float, Resize]]:
        """The changes in this time, each with its moment."""
        known, until = len(self.changes), self.now + seconds
        while self.now < until:
            interval = self._measure()
            self.intervals.append(interval)
            resize = self.tuner.decide(interval)
            self.tuner.check()
            if resize is not None:
                self.changes.append((self.now, resize))
                more = resize.workers - self.live - len(self._arrive)
                self._arrive += [self.now + self.load.boot] * more
                self.live = min(self.live, resize.workers)
        return self.changes[known:]

    def _measure(self) -> Interval:
        self.now += TICK
        self.live += sum(at <= self.now for at in self._arrive)
        self._arrive = [at for at in self._arrive if at > self.now]
        load, live = self._noisy(), self.live
        used = self.load.base + live * self.load.each + live * self.tuner.prefetch_factor * self.load.batch
        if not live:
            return Interval(TICK, 0.0, 0.0, 0, 0, 0.0, 0.0, 0.0, 0, used)
        rate, step = load.rate(live, self.tuner.prefetch_factor), load.step(live)
        self._half += rate * TICK
        done = int(self._half)
        self._half -= done
        worked = rate * TICK * load.turn
        own = rate * TICK * load.own
        delayed = done * max(0.0, live * load.cpu / load.cpus - load.wait - load.cpu)
        return Interval(
            TICK - worked, worked, worked + own, done, done, done * step, done * load.cpu, delayed, live, used
        )

    def _noisy(self) -> Simulated:
        def about(value: float) -> float:
            return value * self._random.uniform(1 - self.load.noise, 1 + self.load.noise)

        load = self.load
        slower = about(1.0)
        return replace(load, cpu=load.cpu * slower, wait=load.wait * slower, turn=about(load.turn))


def bounds(most: int = 32, *, cpus: float = 2.0, prefetch: int = 2, memory: int = NO_LIMIT) -> Bounds:
    return Bounds(Range(1, most), Range(2, prefetch), cpus, memory)


LOADS = {
    "computing": Simulated(cpu=20e-3),
    "computing, 16 processors": Simulated(cpu=20e-3, cpus=16),
    "half computing": Simulated(cpu=10e-3, wait=10e-3),
    "waiting": Simulated(cpu=1e-3, wait=80e-3),
    "waiting long": Simulated(cpu=1e-3, wait=1.0),
    "waiting for a device": Simulated(cpu=1e-3, wait=20e-3, at_once=6),
    "tiny": Simulated(cpu=8e-6, own=20e-6),
    "copying": Simulated(cpu=10e-3, cpus=16, at_once=3),
    "a slow caller": Simulated(cpu=5e-3, turn=50e-3),
    "a caller that needs five": Simulated(wait=50e-3, cpu=1e-3, turn=11e-3),
    "holding one lock": Simulated(cpu=10e-3, cpus=8, at_once=1),
    "unsteady": Simulated(cpu=5e-3, turn=20e-3, unsteady=0.3),
}
