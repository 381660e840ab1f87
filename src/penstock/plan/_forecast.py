"""Forecasts tell a dataset which keys a loader will ask for, and when, so that the dataset can fetch data early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.plan._grouping import Grouping, InnerBlocks, KeyArray
from penstock.plan._order import Order, Sequential
from penstock.plan._plan import ComputedPlan, Upcoming


class Forecast:
    """The order of a loader in this epoch and all later epochs, and the loader's current position.

    A loader whose order is known passes a forecast to its dataset's `__foresee__(forecast)`. Positions count the
    samples of all ranks and continue from epoch to epoch: position p of an epoch with base b is position b + p of the
    forecast. Other threads may read the forecast while the loader runs.

    >>> from penstock.plan import OrderPlan, Sequential
    >>> forecast = Forecast(OrderPlan(Sequential(3), batch_size=2), epoch=0, steps=lambda: 1)
    >>> forecast.position, forecast.keys(2, 7).tolist()
    (2, [2, 0, 1, 2, 0])
    """

    def __init__(self, plan: ComputedPlan, epoch: int, steps: Callable[[], int]) -> None:
        # Plan, its order, epoch, its base, and `steps()`, which returns how many of its steps have been handed out.
        # Replaced as a whole, so that another thread sees all of it or nothing.
        self._now = plan, _known(plan, epoch), epoch, 0, steps
        self.counts: Any = None  # the loader's counters (`CacheCounts`) for data that is fetched ahead of time

    def continues(self, plan: ComputedPlan, epoch: int, steps: Callable[[], int]) -> bool:
        """Moves the forecast on to the next epoch. Returns False if `plan` and `epoch` are not the next ones."""
        before, known, last, base, _ = self._now
        if epoch != last + 1 or plan != before.after():
            return False
        self._now = plan, _known(plan, epoch), epoch, base + known.order.size(last), steps
        return True

    def snapshot(self) -> Forecast:
        """Returns a copy that stays in the current epoch."""
        copy = Forecast.__new__(Forecast)
        copy._now = self._now
        return copy

    @property
    def root(self) -> Forecast:
        """The forecast for the loader's own dataset, from which this one is derived."""
        return self

    @property
    def order(self) -> Order:
        return self._now[1].order

    @property
    def position(self) -> int:
        """The first position that has not been handed out yet."""
        _, known, _, base, steps = self._now
        return base + known.reached(steps())

    def epochs(self) -> Iterator[tuple[int, int, int]]:
        """Yields the number, base and size of the current epoch and of each later one, without end."""
        _, known, epoch, base, _ = self._now
        while True:
            size = known.order.size(epoch)
            yield epoch, base, size
            epoch, base = epoch + 1, base + size

    def keys(self, start: int, stop: int) -> NDArray[np.int64]:
        """Returns the keys at the positions `start` to `stop - 1`. None of them may be before the current epoch."""
        found = [np.empty(0, np.int64)]
        for epoch, base, size in self.epochs():
            if base >= stop or not size:
                break
            first, last = max(start, base) - base, min(stop, base + size) - base
            if first < last:
                found.append(self.order.at(epoch, np.arange(first, last)))
        return np.concatenate(found)

    def inner(self, keys: KeyArray) -> KeyArray:
        """Converts keys of the loader's dataset to keys of this dataset, or to -1 if they are not in it."""
        return keys

    def knows(self, blocks: Grouping) -> bool:
        """True if the order determines when each of these blocks is needed. `spans` requires this."""
        return blocks.is_of(self.order) or (type(self.order) is Sequential and blocks.keys is None)

    def spans(self, blocks: Grouping, epoch: int) -> tuple[KeyArray, KeyArray, KeyArray]:
        """Returns the non-empty blocks, the first position that may need each, and the position after the last."""
        order: Any = self.order
        if type(order) is Sequential:
            first, stop = blocks.edges[:-1], blocks.edges[1:]
        else:
            first, stop = getattr(order, "order", order).spans(epoch)
        some = np.flatnonzero(np.diff(blocks.edges))  # a block may be empty
        return some, first[some], stop[some]


def _known(plan: ComputedPlan, epoch: int) -> Upcoming:
    found = plan.upcoming(epoch)
    assert found is not None, "the loader makes no forecast otherwise"
    return found


class InnerForecast(Forecast):
    """The forecast for a wrapped dataset. Positions are the same as in the outer forecast.

    `keys(outer_keys)` converts keys of the outer dataset to keys of the wrapped dataset. A key that the wrapped
    dataset does not have becomes -1. `blocks()` returns how the blocks of the two datasets correspond, or None if
    the correspondence is unknown. `blocks` is called only if the result is needed.
    """

    def __init__(
        self, outer: Forecast, keys: Callable[[KeyArray], KeyArray], blocks: Callable[[], InnerBlocks | None]
    ) -> None:
        self._outer, self._keys, self._blocks = outer, keys, blocks
        self._inside: InnerBlocks | None = None
        self.counts = outer.counts

    @property
    def root(self) -> Forecast:
        return self._outer.root

    @property
    def order(self) -> Order:
        return self.root.order

    @property
    def position(self) -> int:
        return self.root.position

    def epochs(self) -> Iterator[tuple[int, int, int]]:
        return self.root.epochs()

    def keys(self, start: int, stop: int) -> KeyArray:
        return self.inner(self.root.keys(start, stop))

    def inner(self, keys: KeyArray) -> KeyArray:
        return self._keys(self._outer.inner(keys))

    def knows(self, blocks: Grouping) -> bool:
        if self._inside is None:
            self._inside = self._blocks()
        inside = self._inside
        return inside is not None and inside.inner == blocks and self._outer.knows(inside.outer)

    def spans(self, blocks: Grouping, epoch: int) -> tuple[KeyArray, KeyArray, KeyArray]:
        assert self._inside is not None
        outer, first, stop = self._outer.spans(self._inside.outer, epoch)
        numbers = self._inside.numbers[outer]
        here = numbers >= 0
        return numbers[here], first[here], stop[here]
