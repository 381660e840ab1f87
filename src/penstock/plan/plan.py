"""A plan says which keys each step of an epoch has. Two kinds: an order of ours, or a sampler of the user's.

A plan is a value: where the dataset may grow, make a new plan at the start of each epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.plan.order import Order
from penstock.plan.samplers import batches, check_drop_last, group, positive

# Keys computed at once: a numpy call costs as much as some 500 keys, so small steps share one.
_BLOCK = 4096


class Plan(Protocol):
    """The keys of every step, step by step."""

    @property
    def repeatable(self) -> bool:
        """Whether an epoch can be drawn twice, with the same keys and without side effects."""
        ...

    def steps(self, epoch: int) -> int | None:
        """The number of steps in the epoch, or None where only the end will tell."""
        ...

    def draw(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The keys of each step from `start` on: an array or a list; a single key without batching."""
        ...


@dataclass(frozen=True, slots=True)
class OrderPlan:
    """Steps cut out of an order: any step of any epoch at any time, at no cost for those before it.

    The keys are an int64 array that cannot be written to; with `batch_size=None` each step is one int.

    >>> from penstock.plan.order import Sequential
    >>> [keys.tolist() for keys in OrderPlan(Sequential(5), batch_size=2).draw(epoch=0)]
    [[0, 1], [2, 3], [4]]
    """

    order: Order
    batch_size: int | None = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        _check_batching(self.batch_size, self.drop_last)

    @property
    def repeatable(self) -> bool:
        return True

    def steps(self, epoch: int) -> int:
        return batches(self.order.size(epoch), self.batch_size or 1, self.drop_last)

    def keys(self, epoch: int, step: int) -> NDArray[np.int64] | int:
        """The keys of one step. A step that the epoch does not have is an IndexError."""
        steps = self.steps(epoch)
        if not 0 <= step < steps:
            raise IndexError(f"step {step} is outside of epoch {epoch}, which has {steps} steps.")
        block = self.block(epoch, step, step + 1)
        return int(block[0]) if self.batch_size is None else block

    def draw(self, epoch: int, start: int = 0) -> Draw:
        _check_start(start)
        return Draw(self, epoch, start)

    def block(self, epoch: int, first: int, last: int) -> NDArray[np.int64]:
        """The keys of the steps from first to before last; only the epoch's last step may be short."""
        size = self.batch_size or 1
        stop = min(last * size, self.order.size(epoch))
        block = self.order.at(epoch, np.arange(first * size, stop, dtype=np.int64)).view()
        block.flags.writeable = False
        return block


class Draw:
    """The steps of an epoch one after the other, or several at once."""

    def __init__(self, plan: OrderPlan, epoch: int, start: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self._size = plan.batch_size or 1
        self._step = start
        self._steps = plan.steps(epoch)
        self._at_once = max(1, _BLOCK // self._size)
        self._block: NDArray[np.int64] = np.empty(0, np.int64)
        self._at = 0

    def __iter__(self) -> Draw:
        return self

    def __next__(self) -> Any:
        keys, _ = self.take(1)
        return keys if self._plan.batch_size is not None else int(keys[0])

    def take(self, most: int) -> tuple[NDArray[np.int64], int]:
        """The keys of the next steps, of at most so many, and of how many: equally many keys for each."""
        at, size = self._at, self._size
        left = len(self._block) - at
        if not left:
            if self._step >= self._steps:
                raise StopIteration
            last = min(self._step + self._at_once, self._steps)
            self._block = self._plan.block(self._epoch, self._step, last)
            at, left = 0, len(self._block)
        count = min(most, left // size) or 1  # a last step that is short comes alone
        self._step += count
        self._at = min(at + count * size, at + left)
        return self._block[at : self._at], count


@dataclass(frozen=True, slots=True)
class SamplerPlan:
    """Steps as a foreign sampler yields them; it is asked for no more keys than are drawn.

    `batched` says that the sampler yields whole batches, which become lists. Otherwise its keys are
    grouped by `batch_size`, or handed on one by one, as they are, where that is None. Each `draw` calls
    `iter()` once; to start later it reads and drops the steps before.

    >>> list(SamplerPlan("abcde", batch_size=2).draw(epoch=0, start=1))
    [['c', 'd'], ['e']]
    """

    sampler: Iterable[Any]
    batch_size: int | None = 1
    drop_last: bool = False
    batched: bool = False

    def __post_init__(self) -> None:
        if not self.batched:
            _check_batching(self.batch_size, self.drop_last)

    @property
    def repeatable(self) -> bool:
        return False

    def steps(self, epoch: int) -> int | None:
        try:
            n = len(self.sampler)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return None
        return n if self.batched else batches(n, self.batch_size or 1, self.drop_last)

    def draw(self, epoch: int, start: int = 0) -> Iterator[Any]:
        _check_start(start)
        keys = iter(self.sampler)
        if self.batched:
            keys = map(list, keys)
        elif self.batch_size is not None:
            keys = group(keys, self.batch_size, self.drop_last)
        return islice(keys, start, None) if start else keys


def _check_batching(batch_size: int | None, drop_last: bool) -> None:
    check_drop_last(drop_last)
    if batch_size is not None:
        positive("batch_size", batch_size)
    elif drop_last:
        raise ValueError("drop_last=True needs batches to drop, but batch_size is None.")


def _check_start(start: int) -> None:
    if start < 0:
        raise ValueError(f"a draw starts at step 0 or later, but start is {start}.")
