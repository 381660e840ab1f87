"""Decides what `penstock profile` tries next and what it recommends. All functions here are pure.

The trials are, in this order:

    1  the plain loop, without workers
    2  two threads and two processes; each number is then doubled repeatedly, until doubling no longer helps
    3  25 % fewer and 50 % more workers than the best number so far; if the best number so far is 2, only 1 worker

If processes are not faster than the same number of threads, larger numbers of processes are tried only above the
number at which threads stop scaling. For a stream with one reader, only one thread and one process are tried. As soon
as the training loop no longer waits for data, only fewer workers are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock._system.platform import HAS_PROCESSES
from penstock.stats._units import count, seconds, share

HELPS = 1.1
"""Only a speedup by more than this factor counts, because timings vary by a few percent."""

SCALES = 0.8
"""Threads count as scaling if their rate per thread exceeds this share of the first threaded trial's."""

AS_GOOD = 0.95
"""A trial with at least this share of the best rate counts as equally fast. Fewer workers are then preferred."""

NOT_WAITING = 0.01
"""The training loop is the bottleneck if it waits for data for less than this share of the time."""

SHORT = 0.001
"""If the plain loop loads a batch in less than this many seconds, loading during the training step gains nothing."""


class Choice(NamedTuple):
    """The settings of one trial. `backend` is "inline" (with 0 workers), "thread" or "process"."""

    backend: str
    workers: int

    def __str__(self) -> str:
        if not self.workers:
            return "the plain loop"
        noun = {"process": "processes", "thread": "threads"}[self.backend] if self.workers > 1 else self.backend
        return f"{self.workers} {noun}"


INLINE = Choice("inline", 0)
_KINDS = ("thread", "process") if HAS_PROCESSES else ("thread",)


@dataclass(frozen=True, slots=True)
class Trial:
    choice: Choice
    rate: float = 0.0  # batches per second
    waiting: float = 1.0  # the share of the time that the loop waited
    first: float = 0.0  # seconds until the first batch
    error: str = ""  # why the trial failed


@dataclass(frozen=True, slots=True)
class Limits:
    cpus: float = 1.0
    most: int = 32  # the largest number of workers to try
    one_reader: bool = False  # the dataset is a stream that only one worker can read
    step: float = 0.0  # seconds of the simulated training step


def next_choice(done: Sequence[Trial], limits: Limits) -> Choice | None:
    tried = {trial.choice for trial in done}
    if INLINE not in tried:
        return INLINE
    return next((choice for choice in _wanted(done, limits) if choice not in tried), None)


def _wanted(done: Sequence[Trial], limits: Limits) -> Iterator[Choice]:
    """Yields the settings to try, most important first, including some that have already been tried."""
    rates = {trial.choice: trial.rate for trial in done}
    enough = any(trial.waiting < NOT_WAITING for trial in done)
    begin = 1 if limits.one_reader else min(2, limits.most)
    if not enough:
        for kind in _KINDS:
            yield Choice(kind, begin)
        if not limits.one_reader:
            yield from _more(rates, limits.most)
    best = _best(done)
    if best.choice.workers > 1:
        kind, workers = best.choice
        yield Choice(kind, workers - max(1, workers // 4))
        if not enough and workers > 2 and Choice(kind, min(2 * workers, limits.most)) in rates:
            yield Choice(kind, min(workers + workers // 2, limits.most))


def _more(rates: dict[Choice, float], most: int) -> Iterator[Choice]:
    """Yields settings for threads, then for processes, doubling the number of workers as long as that helps."""
    begin = min(2, most)
    for kind in _KINDS:
        workers, before = begin, rates[INLINE]
        while workers < most and (rate := rates.get(Choice(kind, workers), 0.0)) > HELPS * before:
            if kind == "process" and rate < HELPS * rates.get(Choice("thread", workers), 0.0):
                scaled = [n for n in range(workers, most + 1) if _scales(rates, n, begin)]
                workers = max([workers, *scaled])  # up to this number, threads are as fast as processes
                if workers == most:
                    break
            before, workers = rate, min(2 * workers, most)
            yield Choice(kind, workers)


def _scales(rates: dict[Choice, float], workers: int, begin: int) -> bool:
    """True if threads scale from `begin` to `workers`: the rate per thread stays almost the same."""
    first = rates.get(Choice("thread", begin), 0.0) / begin
    return rates.get(Choice("thread", workers), 0.0) / workers > SCALES * first


def _best(done: Sequence[Trial]) -> Trial:
    """Returns the fastest trial. Among equally fast ones, prefers fewer workers, then threads over processes."""
    fastest = max(trial.rate for trial in done)
    as_good = [trial for trial in done if trial.rate >= AS_GOOD * fastest]
    return min(as_good, key=lambda trial: (trial.choice.workers, trial.choice.backend == "process"))


class Advice(NamedTuple):
    trial: Trial
    reason: str


def advice(done: Sequence[Trial], limits: Limits) -> Advice:
    inline = next(trial for trial in done if trial.choice == INLINE)
    best = _best(done)
    beside = [trial for trial in done if trial.choice.workers and not trial.error]
    if best is inline and beside and not limits.step and limits.cpus > 1 and 1 / inline.rate > SHORT:
        # A trial only loads data. In training, workers also load while the step computes, so they gain more there.
        best = _best(beside)
        return Advice(best, f"{_compared(best, inline)} Unlike the plain loop, they load while your step computes.")
    return Advice(best, " ".join([_compared(best, inline), *_reasons(best, done, limits)]))


def best_processes(done: Sequence[Trial]) -> Trial | None:
    found = [trial for trial in done if trial.choice.backend == "process" and not trial.error]
    return _best(found) if found else None


def _compared(best: Trial, inline: Trial) -> str:
    if best is inline:
        return f"The plain loop makes {count(best.rate)} batches a second, {seconds(1 / best.rate)} each."
    times = best.rate / inline.rate
    return f"{_capital(best.choice)}: {count(best.rate)} batches a second, {times:.1f} times the plain loop."


def _reasons(best: Trial, done: Sequence[Trial], limits: Limits) -> Iterator[str]:
    if limits.step:
        waits = f"With a step of {seconds(limits.step)} the loop waits for {share(best.waiting)} of the time"
        yield f"{waits}: nothing is left to gain." if best.waiting < NOT_WAITING else f"{waits}."
    kind, workers = best.choice
    others = [trial for trial in done if trial.choice.workers and trial is not best and not trial.error]
    if not workers:
        if others:
            most = max(others, key=lambda trial: trial.rate)
            yield f"Workers do not pay: {most.choice} make {count(most.rate)}."
        return
    more = [trial for trial in others if trial.choice.backend == kind and trial.choice.workers > workers]
    if more:
        next_ = min(more, key=lambda trial: trial.choice.workers)
        yield f"{_capital(next_.choice)} make {count(next_.rate)}."
    other = [trial for trial in others if trial.choice.backend != kind]
    if other:
        rival = max(other, key=lambda trial: (trial.rate, -trial.choice.workers))
        plain = next(trial.rate for trial in done if trial.choice == INLINE)
        locked = kind == "process" and rival.rate < HELPS * plain < best.rate
        why = ": the code of the dataset holds the global interpreter lock" if locked else ""
        yield f"{_capital(rival.choice)} make {count(rival.rate)}{why}."


def _capital(choice: Choice) -> str:
    return f"{str(choice)[0].upper()}{str(choice)[1:]}"
