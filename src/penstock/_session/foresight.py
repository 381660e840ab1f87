"""Tells a dataset what its loader will ask for, if the dataset wants to know."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from penstock._feed.base import AnyPlan
from penstock._measure.cached import CacheCounts
from penstock._resume.state import Progress
from penstock._system.exit import ends_at_exit
from penstock._system.interrupts import finalizer, interrupts_deferred
from penstock.plan import OrderPlan
from penstock.plan._forecast import Forecast
from penstock.source._nested import Foresee, foresee_of


class NoForesight:
    """For a dataset that does not want to know."""

    def start(self) -> None:
        """The workers are up: now threads may be started."""

    def continues(self, plan: OrderPlan, progress: Progress) -> bool:
        """Whether it is good for this epoch, which is about to begin, too."""
        return False

    def close(self) -> None:
        """The epoch is abandoned, or the loader is closed."""


NO_FORESIGHT = NoForesight()


class Foresight(NoForesight):
    """A forecast, and what the dataset's `__foresee__` returned for it, which is closed in the end.

    It is kept from one epoch to the next: what was fetched between the two is there when the next one begins. It ends
    when an epoch is abandoned, when the loader is closed, and when nothing refers to it any more.
    """

    _returned: Any = None
    _start: Any = None

    def __init__(self, told: Foresee, plan: OrderPlan, progress: Progress, counts: CacheCounts) -> None:
        self._process = os.getpid()
        self._progress = progress
        self._forecast = Forecast(plan, progress.epoch, partial(getattr, progress, "steps"))
        self._forecast.counts = counts
        with interrupts_deferred():  # what it returns must not be lost
            ends_at_exit(self)
            self._returned = told(self._forecast)
            self._start = getattr(self._returned, "start", None)

    def start(self) -> None:
        with interrupts_deferred():
            start, self._start = self._start, None
            if start is not None:
                start()

    def continues(self, plan: OrderPlan, progress: Progress) -> bool:
        over = self._returned is not None and self._progress.is_over and self._process == os.getpid()
        if not over or not self._forecast.continues(plan, progress.epoch, partial(getattr, progress, "steps")):
            return False
        self._progress = progress
        return True

    def close(self) -> None:
        with interrupts_deferred():
            returned, self._returned, self._start = self._returned, None, None
            if returned is not None and self._process == os.getpid():
                returned.close()

    at_exit = close
    __del__ = finalizer(close)


def foresee(
    last: NoForesight, dataset: Any, plan: AnyPlan | None, progress: Progress, counts: CacheCounts
) -> NoForesight:
    """The foresight for an epoch that begins: the last one, a new one, or none if the dataset does not want any.

    Called before workers have anything to do. After they were started, call `start`: a process that has more threads
    cannot fork them.
    """
    told = foresee_of(dataset) if isinstance(plan, OrderPlan) else None
    if told is None or not isinstance(plan, OrderPlan):
        return NO_FORESIGHT
    if last.continues(plan, progress):
        return last
    return Foresight(told, plan, progress, counts)
