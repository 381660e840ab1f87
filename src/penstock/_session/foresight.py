"""Tells a dataset with a `__foresee__` method which keys the loader will ask for."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from penstock._feed.base import AnyPlan
from penstock._measure.cached import CacheCounts
from penstock._resume.state import Progress
from penstock._system.exit import ends_at_exit
from penstock._system.interrupts import finalizer, interrupts_deferred
from penstock.plan import ComputedPlan
from penstock.plan._forecast import Forecast
from penstock.source._nested import Foresee, foresee_of


class Foresight:
    """A forecast of the keys that a loader will request, and the object that `__foresee__` returned for the forecast.

    A `Foresight` is kept from one epoch to the next, so that the dataset can fetch data between epochs. The returned
    object is closed when an epoch is abandoned, the loader is closed, or the `Foresight` is garbage collected.
    """

    _returned: Any = None
    _start: Any = None

    def __init__(self, told: Foresee, plan: ComputedPlan, progress: Progress, counts: CacheCounts) -> None:
        self._process = os.getpid()
        self._progress = progress
        self._forecast = Forecast(plan, progress.epoch, partial(getattr, progress, "reached"))
        self._forecast.counts = counts
        with interrupts_deferred():  # otherwise the returned object might be lost, and never closed
            ends_at_exit(self)
            self._returned = told(self._forecast)
            self._start = getattr(self._returned, "start", None)

    def start(self) -> None:
        """Lets the dataset start its threads. Call this method only after the workers have been forked."""
        with interrupts_deferred():
            start, self._start = self._start, None
            if start is not None:
                start()

    def continues(self, plan: ComputedPlan, progress: Progress) -> bool:
        """Moves the forecast to the epoch that is starting. Returns False if a new `Foresight` is needed."""
        over = self._returned is not None and self._progress.is_over and self._process == os.getpid()
        if not over or not self._forecast.continues(plan, progress.epoch, partial(getattr, progress, "reached")):
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
    last: Foresight | None, dataset: Any, plan: AnyPlan | None, progress: Progress, counts: CacheCounts
) -> Foresight | None:
    """Returns the `Foresight` for the epoch that is starting: `last` if it can continue, otherwise a new one.

    If the keys cannot be forecast, or no dataset has a `__foresee__` method, returns None instead. Call this function
    before the workers get their first task. Call `Foresight.start` only after the workers have started, because a
    process with several threads cannot fork safely.
    """
    told = foresee_of(dataset) if isinstance(plan, ComputedPlan) else None
    if told is None or not isinstance(plan, ComputedPlan) or plan.upcoming(progress.epoch) is None:
        return None
    if last is not None and last.continues(plan, progress):
        return last
    return Foresight(told, plan, progress, counts)
