"""Decides from measurements how many workers a running loader has, and how far ahead they work.

    state    SETTLING --all workers have done a step since they started--> MEASURING
             MEASURING --a rule applies: Resize--> SETTLING        --no rule applies--> RESTING
             RESTING --the first measurements, taken together, ask for a Resize--> SETTLING
             RESTING --the load has been different for some time--> as if MEASURING
             any --memory is nearly used up: Resize--> SETTLING

At the end of a measurement, the first of these rules that applies decides:

    what was measured                                                        Resize to
    1  the last Resize was an attempt, and it did not help                   the numbers before the attempt
    2  the load has changed, the caller waits, and all processors are busy   as many workers as processors
    3  the caller waits, and needs more workers                              up to twice as many workers (attempt)
    4  the caller waits, although there are enough workers on average        twice as far ahead (attempt)
    5  the caller does not wait, and needs at most 3/4 of the workers        as many workers as the caller needs

A load is three numbers: the seconds that a worker spends on a step, the seconds that the caller spends on a batch
without waiting, and the share of the time that the caller waits. The first two give the number of workers needed.

While the load stays the same, the tuner remembers which numbers of workers made the caller wait, so that rule 5 does
not return to them, and which attempts failed, so that rules 3 and 4 do not repeat them. This ensures that the tuner
eventually rests. When the load changes, the tuner wakes up and forgets both.

The tuner has no clock, and does not look at the machine. Its decisions depend only on the intervals that it is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

# The caller counts as waiting if it waits for more than this share of the time. Less is not worth another worker.
WAITS = 0.03
# The shortest measurement in seconds, and the seconds after which a measurement ends even if few steps were done.
_SHORTEST, _LONGEST = 0.5, 10.0
_FEWEST_STEPS = 4
# The number of workers for each one that the caller needs on average, because steps do not all take the same time.
_HEADROOM = 1.3
# The share of the ideal gain that an attempt must give: with twice the workers, 10 % more steps.
_GAIN = 0.1
# With more workers, the caller must get at least this share of the batches that it got before.
_NOT_LESS = 0.9
# An attempt to work farther ahead must leave less than this share of the waiting.
_LESS_WAITING = 0.75
# A load is different if seconds differ by this factor, or the share of waiting by this much.
_OTHER, _OTHER_WAITING = 1.6, 0.08
# The share of waiting is noisy, so it is averaged over this many measurements: at the start of a rest, and later.
_FIRST, _LATELY = 16, 8
# If workers are idle, more of them are tried only if the caller waits for more than this share.
_UNSTEADY = 0.1
# Workers that compute for less than this share of their busy time mostly wait, and may outnumber the processors.
_MOSTLY_CPU = 0.7
# Shares of the memory limit: nothing grows beyond the first, and something shrinks beyond the second.
_USABLE, _FULL = 0.85, 0.92
# How many measurements in a row must differ to end a rest. The number doubles when an attempt fails.
_PATIENCE, _MOST_PATIENCE = 2, 16


class Range(NamedTuple):
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits for the tuner. `prefetch` is in batches per worker, `memory` in bytes."""

    workers: Range
    prefetch: Range
    cpus: float
    memory: int

    @property
    def processors(self) -> int:
        return max(1, math.ceil(self.cpus - 0.1))


@dataclass(frozen=True, slots=True)
class Interval:
    """The measurements over a fraction of a second. Times are in seconds.

    - `waited`, `worked`: the time that the caller spent inside and outside of `next()`.
    - `caller_cpu`: the time in which the caller used a processor or waited for a processor.
    - `batches`: the number of steps that were handed out. `done`: the number of steps that workers finished.
    - `busy`: the time in which workers were busy. `busy`, `cpu` and `delayed` are sums over all workers.
    - `cpu`: the time in which workers used a processor. `delayed`: the time in which workers waited for a processor.
    - `workers`: the number of live workers that have done a step.
    - `memory`: the number of bytes in use, counted in the same way as for the memory limit.
    """

    waited: float
    worked: float
    caller_cpu: float
    batches: int
    done: int
    busy: float
    cpu: float
    delayed: float
    workers: int
    memory: int = 0

    @property
    def seconds(self) -> float:
        return self.waited + self.worked

    def and_then(self, later: Interval) -> Interval:
        return Interval(
            self.waited + later.waited,
            self.worked + later.worked,
            self.caller_cpu + later.caller_cpu,
            self.batches + later.batches,
            self.done + later.done,
            self.busy + later.busy,
            self.cpu + later.cpu,
            self.delayed + later.delayed,
            later.workers,
            later.memory,
        )


@dataclass(frozen=True, slots=True)
class Resize:
    """A new number of workers, and a new limit on how many batches each worker may prefetch."""

    workers: int
    prefetch_factor: int
    reason: str


class TunerState(Enum):
    SETTLING = "settling"
    MEASURING = "measuring"
    RESTING = "resting"


SETTLING, MEASURING, RESTING = TunerState


@dataclass(frozen=True, slots=True)
class Load:
    """What the tuner computes from one measurement to choose the number of workers.

    - `step`: seconds that a worker spends on a step.
    - `turn`: seconds that the caller spends on a batch, without waiting.
    - `waiting`: share of the time that the caller waits.
    - `compute`: share of the workers' busy time in which they used or waited for a processor.
    - `cpu`: share of the workers' busy time in which they used a processor.
    """

    workers: int
    step: float
    turn: float
    seconds: float
    quick: float  # a caller that takes no longer than this is too quick for all possible workers
    waiting: float
    compute: float
    cpu: float
    rate: float
    processors_used: float
    batches: int
    memory: int

    @classmethod
    def of(cls, sum_: Interval, workers: int, most: int) -> Load:
        step = sum_.busy / sum_.done
        # Processor time inside `next()` is not waiting: with tiny steps it is most of the time.
        caller = min(sum_.seconds, max(sum_.worked, sum_.caller_cpu))
        return cls(
            workers,
            step,
            max(caller / max(1, sum_.batches), 1e-9),
            sum_.seconds,
            step / (2 * most),
            1 - caller / sum_.seconds,
            min(1.0, (sum_.cpu + sum_.delayed) / sum_.busy),
            min(1.0, sum_.cpu / sum_.busy),
            sum_.batches / sum_.seconds,
            sum_.cpu / sum_.seconds,
            sum_.batches,
            sum_.memory,
        )

    @property
    def waits(self) -> bool:
        return self.waiting > WAITS

    @property
    def capacity(self) -> float:
        return self.workers / max(self.step, 1e-9)

    @property
    def need(self) -> int:
        return max(1, math.ceil(_HEADROOM * self.step / self.turn))

    def is_other(self, before: Load) -> bool:
        """True if the workers or the caller have become much slower or faster."""
        share = self.workers / before.workers  # more workers slow each other down: up to this factor is ignored
        slower = self.step / max(before.step, 1e-9)
        turns = [max(load.turn, self.quick, before.quick) for load in (self, before)]
        return not min(1, share) / _OTHER <= slower <= max(1, share) * _OTHER or max(turns) > _OTHER * min(turns)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A change that the next measurement will judge. The fields hold the settings and the load before the change."""

    workers: int
    prefetch: int
    load: Load
    farther: bool = False  # the attempt was to work farther ahead, not to add workers


@dataclass(frozen=True, slots=True)
class Findings:
    """Limits for the current load: fewer workers than `least` are not enough, and more than `most` do not help."""

    least: int = 1
    most: int = 1 << 30
    farthest: int = 1 << 30  # a larger prefetch_factor does not help


@dataclass(slots=True)
class RestMeasurements:
    usual: Load  # at the beginning of the rest
    sum: Interval | None = None  # of the first measurements
    left: int = _FIRST  # measurements to sum up
    waiting: float = 0.0  # share of the time that the caller has waited recently
    others: int = 0  # measurements of another load, in a row

    def take(self, measured: Interval, load: Load) -> None:
        if self.left:
            self.left -= 1
            self.sum = measured if self.sum is None else self.sum.and_then(measured)
            self.waiting = self.usual.waiting
        else:
            self.waiting += (load.waiting - self.waiting) / _LATELY
        other = load.is_other(self.usual) or abs(self.waiting - self.usual.waiting) > _OTHER_WAITING
        self.others = self.others + 1 if other else 0


@dataclass(slots=True)
class Tuner:
    """Decides, from short measurements, when to change the number of workers or `prefetch_factor`."""

    bounds: Bounds
    workers: int
    prefetch_factor: int
    state: TunerState = SETTLING
    _sum: Interval | None = None
    _attempt: Attempt | None = None
    _last: Load | None = None  # the load that led to a Resize or to a rest
    _rest: RestMeasurements | None = None
    _patience: int = _PATIENCE
    _known: Findings = field(default_factory=Findings)
    _each: float | None = None  # bytes of memory that one more worker takes
    _saves_memory: bool = False

    def restart(self) -> None:
        """Drops the unfinished measurement when workers start for another epoch, but keeps all findings."""
        self.state, self._sum = SETTLING, None

    def decide(self, interval: Interval) -> Resize | None:
        """Adds a short interval to the current measurement. Returns the change to make now, or None."""
        if interval.seconds <= 0:
            return None
        self._sum = interval if self._sum is None else self._sum.and_then(interval)
        if not (self._saves_memory and self.state is SETTLING):
            resize = self._save_memory(interval.memory)
            if resize is not None:
                return resize
        if not self._is_enough(self._sum):
            return None
        done, self._sum = self._sum, None
        if self.state is SETTLING:
            self.state, self._saves_memory = MEASURING, False
            return None
        load = Load.of(done, self.workers, self.bounds.workers.most)
        if self.state is MEASURING:
            return self._judge(load, done)
        return self._go_on_resting(load, done)

    def _go_on_resting(self, load: Load, measured: Interval) -> Resize | None:
        rest = self._rest
        assert rest is not None
        look = rest.left == 1
        rest.take(measured, load)
        if rest.others >= self._patience:
            self._known = Findings()
            return self._apply(self._wish(load, changed=True), load)
        if not look or rest.sum is None:
            return None
        load = rest.usual = Load.of(rest.sum, self.workers, self.bounds.workers.most)
        rest.waiting = load.waiting
        wish = self._wish(load, changed=False)
        return None if wish is None else self._apply(wish, load)

    def _is_enough(self, sum_: Interval) -> bool:
        late = sum_.seconds >= _LONGEST
        if self.state is SETTLING:
            return late or (sum_.workers == self.workers and sum_.done >= self.workers)
        if not sum_.done or sum_.busy <= 0:
            return False
        if self._attempt is not None and sum_.done >= 4 * self.workers:
            return True  # enough to see a success, but not to begin a rest
        return late or (sum_.seconds >= _SHORTEST and sum_.done >= max(self.workers, _FEWEST_STEPS))

    def _resize(self, workers: int, prefetch: int, reason: str) -> Resize:
        self.state, self._sum = SETTLING, None
        self.workers, self.prefetch_factor = workers, prefetch
        return Resize(workers, prefetch, reason)

    def _save_memory(self, used: int) -> Resize | None:
        limit, least = self.bounds.memory, self.bounds.workers.least
        if used <= _FULL * limit:
            return None
        fewer, nearer = max(least, self.workers * 3 // 4), self.bounds.prefetch.least
        if nearer < self.prefetch_factor:
            fewer = self.workers
        elif fewer == self.workers:
            return None
        self._attempt, self._saves_memory = None, True
        self._known = replace(self._known, most=fewer, farthest=nearer)
        what = _workers(fewer) if fewer < self.workers else f"prefetch_factor={nearer}"
        why = f"{used / 1e9:.1f} of {limit / 1e9:.1f} GB of memory are in use"
        return self._resize(fewer, nearer, f"{why}: down to {what}.")

    # The rules.

    def _judge(self, load: Load, sum_: Interval) -> Resize | None:
        attempt = self._attempt
        why = "" if attempt is None else self._failure(attempt, load)
        if why and load.seconds < _SHORTEST:
            self._sum = sum_  # a failure needs more evidence
            return None
        self._attempt = None
        if self._last is not None and load.is_other(self._last):
            self._known = Findings()
        elif attempt is not None:
            if load.workers > attempt.workers:
                self._each = max(0, load.memory - attempt.load.memory) / (load.workers - attempt.workers)
            if why:
                return self._take_back(attempt, why)
            self._patience = _PATIENCE
        return self._apply(self._wish(load, changed=False), load)

    def _apply(self, wish: tuple[int, int, str] | None, load: Load) -> Resize | None:
        self._last = load
        if wish is None:
            self.state, self._rest = MEASURING if load.seconds < _SHORTEST else RESTING, RestMeasurements(load)
            return None
        workers, prefetch, reason = wish
        if workers > self.workers:
            self._known = replace(self._known, least=self.workers + 1)
        if workers > self.workers or prefetch > self.prefetch_factor:
            self._attempt = Attempt(self.workers, self.prefetch_factor, load, prefetch > self.prefetch_factor)
        return self._resize(workers, prefetch, reason)

    def _failure(self, attempt: Attempt, load: Load) -> str:
        """Returns why the attempt did not help, or "" if the attempt helped."""
        before, (now, past) = attempt.load, self._named(attempt)
        if attempt.farther or before.need <= attempt.workers:
            if load.waiting <= max(WAITS, _LESS_WAITING * before.waiting):
                return ""
            return f"The caller waits {_percent(load.waiting)} with {now}, {_percent(before.waiting)} with {past}"
        ideal, gain = self.workers / attempt.workers - 1, load.capacity / before.capacity - 1
        if gain < _GAIN * ideal:
            return f"{now} can do {load.capacity:.3g} batches/s, {past} could do {before.capacity:.3g}"
        many = min(load.batches, before.batches) >= 8 * self.workers
        if many and load.rate < _NOT_LESS * before.rate:
            return f"The caller gets {load.rate:.3g} batches/s with {now}, {before.rate:.3g} with {past}"
        return ""

    def _named(self, attempt: Attempt) -> tuple[str, str]:
        """Returns texts for messages: the current setting, and the setting before the attempt."""
        if attempt.farther:
            return f"prefetch_factor={self.prefetch_factor}", f"prefetch_factor={attempt.prefetch}"
        return _workers(self.workers), _workers(attempt.workers)

    def _take_back(self, attempt: Attempt, why: str) -> Resize:
        self._patience = min(_MOST_PATIENCE, 2 * self._patience)
        if attempt.farther:
            self._known = replace(self._known, farthest=attempt.prefetch)
        else:
            self._known = replace(self._known, most=attempt.workers)
        _, past = self._named(attempt)
        return self._resize(attempt.workers, attempt.prefetch, f"{why}: back to {past}.")

    def _wish(self, load: Load, changed: bool) -> tuple[int, int, str] | None:
        now, bounds, known, need = self.workers, self.bounds, self._known, load.need
        ahead, processors = self.prefetch_factor, bounds.processors
        waits = f"The caller waits {_percent(load.waiting)}"
        if not load.waits:
            fewer = max(need, known.least, bounds.workers.least)
            if fewer > now * 3 // 4:
                return None
            why = f"{waits}, and keeps {load.step / load.turn:.1f} of {now} workers busy on average"
            return fewer, ahead, f"{why}: down to {_workers(fewer)}."
        fewer = max(processors, bounds.workers.least)
        if changed and now > fewer and load.processors_used >= 0.8 * bounds.cpus:
            why = f"Steps or caller have changed, and {now} workers use all of {bounds.cpus:g} processors"
            return fewer, ahead, f"{why}: down to {_workers(fewer)}."
        more = min(2 * now, max(need, now + 1), known.most, bounds.workers.most, self._most_by_cpu(load))
        if need <= now:
            farther = min(2 * ahead, known.farthest, bounds.prefetch.most)
            if farther > ahead and self._more_workers_that_fit(load.memory) > 0:
                why = f"{waits}, though {_workers(now)} can do as many batches as it takes"
                return now, farther, f"{why}: trying prefetch_factor={farther}."
            more = min(more, now + max(1, now // 4)) if load.waiting > _UNSTEADY else now
        more = min(more, now + self._more_workers_that_fit(load.memory))
        if more <= now:
            return None
        why = f"A step takes a worker {_seconds(load.step)}, and the caller {_seconds(load.turn)}"
        return more, ahead, f"{waits}. {why}: trying {_workers(more)}."

    def _most_by_cpu(self, load: Load) -> int:
        """Returns the largest number of workers for which there are enough processors."""
        processors = self.bounds.processors
        if load.compute > _MOSTLY_CPU:
            return processors
        return max(processors, math.ceil(_HEADROOM * self.bounds.cpus / max(load.cpu, 1e-3)))

    def _more_workers_that_fit(self, used: int) -> int:
        """Returns how many workers can be added before the memory is used up."""
        left = _USABLE * self.bounds.memory - used
        # Until an attempt has shown what a worker takes, all memory in use is attributed to the current workers.
        each = used / self.workers if self._each is None else self._each
        return 0 if left <= 0 else min(self.bounds.workers.most, int(left / max(each, 1.0)))

    def check(self) -> None:
        """Asserts the invariants. Only tests call it."""
        workers, prefetch = self.bounds.workers, self.bounds.prefetch
        assert workers.least <= self.workers <= workers.most, "workers within the bounds"
        assert prefetch.least <= self.prefetch_factor <= prefetch.most, "prefetch_factor within the bounds"
        assert self._known.least <= workers.most
        assert 1 <= self._patience <= _MOST_PATIENCE
        assert self._attempt is None or self._attempt.load.waits, "an attempt is made if the caller waits"
        assert (self.state is RESTING) <= (self._attempt is None), "no attempt is left without a judgement"


def _workers(number: int) -> str:
    return f"{number} worker{'s' * (number != 1)}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} % of the time"


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
