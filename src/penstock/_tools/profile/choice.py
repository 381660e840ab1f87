"""What `penstock profile` tries next, and what it recommends: pure functions of the trials so far.

    1  the plain loop
    2  two threads and two processes; of each the double, as long as that helps
    3  around the best: half as many workers more, and a quarter fewer; 1 beside 2

If processes are not faster than the same number of threads, more processes are tried only beyond the number at which
threads stop scaling. A stream with one reader gets one worker of each kind. Once the loop no longer waits, only fewer
workers are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.stats._units import count, seconds, share

HELPS = 1.1
"""More workers are tried if a trial was this many times as fast. Timings of a few seconds vary by a few percent."""

SCALES = 0.8
"""Threads scale while each does at least this share of what each of the first threads did."""

AS_GOOD = 0.95
"""A trial with at least this share of the best rate counts as equally fast; then fewer workers win."""

NOT_WAITING = 0.01
"""The caller is the bottleneck if it waits less than this share of the time."""

SHORT = 0.001
"""Seconds. For batches that take less, a worker that loads beside the training step gains nothing."""


class Choice(NamedTuple):
    """The settings that are chosen. `backend` is "inline" (with 0 workers), "thread" or "process"."""

    backend: str
    workers: int

    def __str__(self) -> str:
        if not self.workers:
            return "the plain loop"
        noun = {"process": "processes", "thread": "threads"}[self.backend] if self.workers > 1 else self.backend
        return f"{self.workers} {noun}"


INLINE = Choice("inline", 0)
_KINDS = ("thread", "process")


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a choice. `rate`: batches a second. `waiting`: share of the time. `first`: seconds to the first
    batch. `error`: why there are no figures.
    """

    choice: Choice
    rate: float = 0.0
    waiting: float = 1.0
    first: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """`cpus`: processors. `most`: workers. `step`: seconds of the simulated training step, 0 if there is none."""

    cpus: float = 1.0
    most: int = 32
    one_reader: bool = False
    step: float = 0.0


def next_choice(done: Sequence[Trial], limits: Limits) -> Choice | None:
    """The choice to try next; None if nothing is left to try."""
    tried = {trial.choice for trial in done}
    if INLINE not in tried:
        return INLINE
    return next((choice for choice in _wanted(done, limits) if choice not in tried), None)


def _wanted(done: Sequence[Trial], limits: Limits) -> Iterator[Choice]:
    """The choices to try, most important first."""
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
    """Twice as many workers, as long as that has helped."""
    begin = min(2, most)
    for kind in _KINDS:
        workers, before = begin, rates[INLINE]
        while workers < most and (rate := rates.get(Choice(kind, workers), 0.0)) > HELPS * before:
            if kind == "process" and rate < HELPS * rates.get(Choice("thread", workers), 0.0):
                scaled = [n for n in range(workers, most + 1) if _scales(rates, n, begin)]
                workers = max([workers, *scaled])  # up to here, threads do as well as processes
                if workers == most:
                    break
            before, workers = rate, min(2 * workers, most)
            yield Choice(kind, workers)


def _scales(rates: dict[Choice, float], workers: int, begin: int) -> bool:
    """Whether each of this many threads does almost as much as each of the first threads did."""
    first = rates.get(Choice("thread", begin), 0.0) / begin
    return rates.get(Choice("thread", workers), 0.0) / workers > SCALES * first


def _best(done: Sequence[Trial]) -> Trial:
    """The fastest trial; of those that are as good, the one with the fewest workers, threads before processes."""
    fastest = max(trial.rate for trial in done)
    as_good = [trial for trial in done if trial.rate >= AS_GOOD * fastest]
    return min(as_good, key=lambda trial: (trial.choice.workers, trial.choice.backend == "process"))


class Advice(NamedTuple):
    """The recommended trial, and the reason."""

    trial: Trial
    reason: str


def advice(done: Sequence[Trial], limits: Limits) -> Advice:
    """The settings to use, with the reason."""
    inline = next(trial for trial in done if trial.choice == INLINE)
    best = _best(done)
    beside = [trial for trial in done if trial.choice.workers and not trial.error]
    if best is inline and beside and not limits.step and limits.cpus > 1 and 1 / inline.rate > SHORT:
        # The loop of a trial does nothing but load. Beside a training step a worker is worth more than here.
        best = _best(beside)
        return Advice(best, f"{_compared(best, inline)} Unlike the plain loop, they load while your step computes.")
    return Advice(best, " ".join([_compared(best, inline), *_reasons(best, done, limits)]))


def best_processes(done: Sequence[Trial]) -> Trial | None:
    """The best trial with processes, for loaders without threads; None if all of these failed."""
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
