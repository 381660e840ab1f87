"""Deals the samples of each step to the ranks so that all ranks have about the same cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import StateError
from penstock.plan._budget import LengthTable
from penstock.plan._plan import FirstOpen, OrderPlan
from penstock.plan._samplers import KEYS_AT_ONCE, positive

Int64s = NDArray[np.int64]

# Exchanges stop when the largest cost is within 1/512 of the mean, or after this many plus two for each rank.
_CLOSE, _EXCHANGES = 512, 48


def deal(costs: Int64s, ranks: int, each: int) -> Int64s:
    """Divides samples among ranks, `each` samples per rank, so that all ranks have about the same cost.

    `costs` has ranks * each entries. The result has a row of sample numbers for each rank. In each round, each
    rank gets one of the costliest samples that remain: the costliest of all goes to the rank with the lowest cost so
    far, and so on. After the last round, samples are swapped between the rank with the highest cost and the rank with
    the lowest cost, as long as this helps. Costs are integers, so the result is the same on every machine.

    >>> deal(np.array([1, 9, 5, 4]), ranks=2, each=2).tolist()
    [[1, 0], [2, 3]]
    """
    costs = np.asarray(costs, np.int64)
    if costs.shape != (ranks * each,):
        raise ValueError(f"{ranks} ranks with {each} samples each need {ranks * each} costs, got {costs.shape}.")
    left = np.argsort(-costs, kind="stable").reshape(each, ranks)
    values = costs[left]
    dealt, loads = np.empty((ranks, each), np.int64), np.zeros(ranks, np.int64)
    for number in range(each):
        by_load = np.argsort(loads, kind="stable")
        dealt[by_load, number] = left[number]
        loads[by_load] += values[number]
    _exchange(dealt, costs[dealt], loads)
    return dealt


def _exchange(dealt: Int64s, costs: Int64s, loads: Int64s) -> None:
    """Swaps samples between the costliest and the cheapest rank for as long as this helps, up to a maximum number.

    Modifies the arrays in place.
    """
    ranks = len(loads)
    total = int(loads.sum())
    for _ in range(_EXCHANGES + 2 * ranks):
        high, low = int(loads.argmax()), int(loads.argmin())
        gap = int(loads[high] - loads[low])
        if gap < 2 or (int(loads[high]) * ranks - total) * _CLOSE <= total:
            return
        moved = costs[high][:, None] - costs[low]
        # The closer to half of the gap, the better. A difference outside 1..gap-1 would not help.
        best = int(np.abs(2 * moved - gap).argmin())
        one, other = divmod(best, len(moved))
        amount = int(moved[one, other])
        if not 0 < amount < gap:
            return
        for array in (dealt, costs):
            array[high, one], array[low, other] = array[low, other], array[high, one]
        loads[high] -= amount
        loads[low] += amount


@dataclass(frozen=True, slots=True)
class BalancedPlan(OrderPlan):
    """An `OrderPlan` that divides the samples of each step among the ranks by cost instead of by position.

    The cost of a sample is its length to the power of `power`. All ranks together get the same samples in each step
    as with an `OrderPlan`, unless `accumulate` is above 1.

    With `accumulate=k`, the samples of k steps are dealt together, and a sample may move to another of these steps.
    Over the k steps, all ranks have about the same total cost, and the cost of each rank is spread evenly over the
    steps. If fewer than k steps are left at the end of the epoch, these steps are dealt one by one. An incomplete
    last step is not balanced.

    >>> from penstock.plan._order import Sequential
    >>> lengths = LengthTable([9, 8, 1, 2])
    >>> [BalancedPlan(Sequential(4), 2, rank=rank, world=2, lengths=lengths).keys(0, 0).tolist() for rank in (0, 1)]
    [[0, 2], [1, 3]]
    """

    lengths: LengthTable = field(default_factory=lambda: LengthTable([1]))
    power: int = 1
    accumulate: int = 1

    def __post_init__(self) -> None:
        OrderPlan.__post_init__(self)
        positive("power", self.power)
        positive("accumulate", self.accumulate)
        if self.batch_size is None:
            raise ValueError("balance needs batches, but batch_size is None.")
        if self.rollover:
            raise ValueError('balance is not possible with last_batch="rollover".')

    @property
    def at_once(self) -> int:
        return max(1, KEYS_AT_ONCE // self._stride // self.accumulate) * self.accumulate

    def reached(self, epoch: int, step: int) -> int:
        """Returns the first position of this step. For a step in a group, this is the first position of the group."""
        alone = step >= self._dealt_alone(epoch)
        return OrderPlan.reached(self, epoch, step if alone else step - (step - self.first_step) % self.accumulate)

    def first_open(self, epoch: int, step: int) -> FirstOpen:
        """Returns the start of this step or, if the step is inside a group, the start of the next group."""
        inside = (step - self.first_step) % self.accumulate if step < self._dealt_alone(epoch) else 0
        step += self.accumulate - inside if inside else 0
        return FirstOpen(self.reached(epoch, step), step)

    def expected(self, epoch: int) -> range:
        found = OrderPlan.expected(self, epoch)
        return range(found.start, max(found.stop, found.start + self.accumulate))

    def content(self) -> tuple[Any, ...]:
        return self.order, self.lengths.numbers, self.power, self.accumulate

    def check_regrouped(self, steps: int, stride: int, start: int) -> None:
        """Raises StateError if the state was taken in the middle of a group of steps that are dealt together."""
        inside = steps - -(-start // stride)
        if inside % self.accumulate:
            raise StateError(
                f"The resume state was taken after {inside % self.accumulate} of {self.accumulate} steps whose "
                f"samples were dealt together (accumulate={self.accumulate}), so another number of ranks cannot "
                f"continue it. Continue with the same number, or take the state after every {self.accumulate} steps."
            )

    def block(self, epoch: int, first: int, last: int) -> Int64s:
        blocks, step, begin = [np.empty(0, np.int64)], first, self.first_step
        whole = begin + max(0, self.order.size(epoch) - self.start) // self._stride  # steps that are complete
        together = self._dealt_alone(epoch)
        while step < last:
            if step >= whole:
                blocks.append(OrderPlan.block(self, epoch, step, last))
                break
            count = self.accumulate if step < together else 1
            at = step - (step - begin) % count
            end = min(last, at + count)
            blocks.append(self._dealt(epoch, at, count)[step - at : end - at].ravel())
            step = end
        keys = np.concatenate(blocks)
        keys.flags.writeable = False
        return keys

    def _dealt_alone(self, epoch: int) -> int:
        """Returns the first step after the last complete group. From there on, steps are dealt one by one."""
        group = self._stride * self.accumulate
        return self.first_step + max(0, self.order.size(epoch) - self.start) // group * self.accumulate

    def _dealt(self, epoch: int, step: int, count: int) -> Int64s:
        """Deals the samples of `count` complete steps together. Returns this rank's keys, one row for each step."""
        first = self.start + (step - self.first_step) * self._stride
        keys = self.order.at(epoch, np.arange(first, first + count * self._stride))
        costs = self._costs(self.lengths.of(keys))
        mine = deal(costs, self.world, count * self._size)[self.rank]
        if count > 1:
            mine = mine[deal(costs[mine], count, self._size)]
        dealt: Int64s = keys[mine].reshape(count, self._size)
        return dealt

    def _costs(self, lengths: Int64s) -> Int64s:
        """Returns the cost of each sample. Costs are scaled down if their sum might not fit in 61 bits."""
        bits = self.power * int(lengths.max()).bit_length() + len(lengths).bit_length()
        coarse = -(-max(0, bits - 61) // self.power)
        costs: Int64s = np.maximum(lengths >> coarse, 1) ** self.power
        return costs
