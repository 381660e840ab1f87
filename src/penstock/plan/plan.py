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
        block = self._block(epoch, step, step + 1)
        return int(block[0]) if self.batch_size is None else block

    def draw(self, epoch: int, start: int = 0) -> Iterator[Any]:
        _check_start(start)
        return self._draw(epoch, start)

    def _draw(self, epoch: int, start: int) -> Iterator[Any]:
        size, steps = self.batch_size or 1, self.steps(epoch)
        at_once = max(1, _BLOCK // size)
        for first in range(start, steps, at_once):
            block = self._block(epoch, first, min(first + at_once, steps))
            if self.batch_size is None:
                yield from block.tolist()
            else:
                for at in range(0, len(block), size):
                    yield block[at : at + size]

    def _block(self, epoch: int, first: int, last: int) -> NDArray[np.int64]:
        """The keys of the steps from first to before last; only the epoch's last step may be short."""
        size = self.batch_size or 1
        stop = min(last * size, self.order.size(epoch))
        block = self.order.at(epoch, np.arange(first * size, stop, dtype=np.int64)).view()
        block.flags.writeable = False
        return block


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
