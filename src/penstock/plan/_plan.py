"""A plan gives the keys of each step of an epoch, from one of penstock's orders or from a user's sampler.

A plan never changes. If the dataset may grow, make a new plan at the start of each epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from penstock._printable import counted
from penstock.errors import StateError
from penstock.plan._order import Order
from penstock.plan._samplers import KEYS_AT_ONCE, batches, check_drop_last, positive

if TYPE_CHECKING:
    from penstock.plan._packing import PackingFigures

_Take = Callable[[int], list[Any]]

LocalRows = tuple[int, ...]
"""The rows that one process loads in each step, in ascending order. Several processes may share a step."""


class Plan(Protocol):
    """Gives the keys of each step of an epoch.

    >>> from penstock.plan import OrderPlan, Sequential
    >>> plan = OrderPlan(Sequential(5), batch_size=2)
    >>> plan.steps(epoch=0), [keys.tolist() for keys in plan.draw(epoch=0, start=1)]
    (3, [[2, 3], [4]])
    """

    def after(self) -> Plan | None:
        """Returns the plan of the next epoch, or None if drawing it early would have side effects."""

    def steps(self, epoch: int) -> int | None:
        """Returns the number of steps in the epoch, or None if it is not known before the epoch ends."""

    def pad(self, epoch: int, step: int) -> int:
        """Returns the number of padding keys at the end of the step."""

    def draw(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yields the keys of each step from step `start` on: an array or a list, or a single key without batching."""


class ComputedPlan:
    """A plan that can compute the keys of any step. So any rank can continue an epoch from any step.

    This is a class and not a protocol, because `isinstance` takes 10 µs for a protocol.

    >>> from penstock.plan import OrderPlan, Shuffled
    >>> plan = OrderPlan(Shuffled(10**10, seed=0), batch_size=4)
    >>> isinstance(plan, ComputedPlan), plan.keys(epoch=7, step=2_000_000_000).size
    (True, 4)
    """

    __slots__ = ()

    if TYPE_CHECKING:  # fields, or properties

        @property
        def order(self) -> Order:
            """The order from which the steps are made."""

        @property
        def rank(self) -> int: ...
        @property
        def world(self) -> int: ...

        @property
        def first_step(self) -> int:
            """The number of this plan's first step. It is above 0 only if the plan is the rest of an epoch."""

    # A `Plan`.

    def after(self) -> ComputedPlan:
        raise NotImplementedError

    def steps(self, epoch: int) -> int | None:
        raise NotImplementedError

    def pad(self, epoch: int, step: int) -> int:
        raise NotImplementedError

    def draw(self, epoch: int, start: int = 0) -> Iterator[Any]:
        raise NotImplementedError

    # Random access.

    def keys(self, epoch: int, step: int) -> Any:
        """Returns the keys of one step. Raises IndexError if the epoch has no such step."""
        raise NotImplementedError

    def has(self, epoch: int, step: int) -> bool:
        """True if the epoch has this step. This may be much faster to compute than `steps`."""
        raise NotImplementedError

    # Resume states.

    def content(self) -> tuple[Any, ...]:
        """Returns what determines the steps (except ranks and batch size), for comparison with a resume state."""
        raise NotImplementedError

    def consumed(self, epoch: int, step: int) -> int | None:
        """Returns an integer for the place that all ranks together have reached before this step.

        `rest` continues from this place. Returns None if the number of the step is enough, because the epoch can only
        be continued with the same number of ranks.
        """
        raise NotImplementedError

    def fault(self, epoch: int, consumed: int | None, steps: int) -> str | None:
        """Returns what is wrong with the `consumed` and `steps` of a state, or None if nothing is."""
        raise NotImplementedError

    def rest(self, consumed: int | None, steps: int) -> Self:
        """Returns the plan for the rest of an epoch: from the place `consumed` on, after `steps` steps."""
        raise NotImplementedError

    def expected(self, epoch: int) -> range:
        """Returns how many steps may have come before this plan, if the number of ranks has not changed."""
        return range(self.first_step, self.first_step + 1)

    def check_regrouped(self, steps: int, stride: int, start: int) -> None:
        """Raises StateError if another number of ranks cannot continue from the place `start`.

        This place was reached after `steps` steps. In each of them, all ranks together took `stride` samples.
        """

    # Changes while it runs.

    def first_open(self, epoch: int, step: int) -> FirstOpen:
        """Returns where the order may still change when only the steps before `step` were handed out."""
        raise NotImplementedError

    # Forecasts.

    def upcoming(self, epoch: int) -> Upcoming | None:
        """Returns the order in which all ranks together hand out the keys, or None if it cannot be forecast."""
        return None

    # Figures.

    def given(self, epoch: int, step: int) -> tuple[int, NDArray[np.int64]]:
        """Returns a position of the order, and the keys of some samples after it.

        The steps before `step` have all samples before the position, and these samples after it.
        """
        return self.first_open(epoch, step).position, np.empty(0, np.int64)

    def costs(self, epoch: int, step: int) -> WindowCosts | None:
        """Returns the costs of the batches in the step's window, or None if batches have no budget."""
        return None

    def packing(self, epoch: int, step: int) -> PackingFigures | None:
        """Returns the figures of the rows in the step's window, or None if documents are not packed."""
        return None


class FirstOpen(NamedTuple):
    """The first position whose sample may still change, and the first step that may still change."""

    position: int
    step: int


class WindowCosts(NamedTuple):
    """The costs of the batches that are cut from one window, for all ranks together."""

    batches: int
    samples: int
    tokens: int
    padded: int  # tokens, padding included
    budget: int  # the most tokens that these batches could have


class Upcoming(NamedTuple):
    """For forecasts: the order in which all ranks together hand out the samples of an epoch.

    `reached(step)` returns the first position that no rank has reached when the step begins.
    """

    order: Order
    reached: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class OrderPlan(ComputedPlan):
    """A plan that cuts an order into steps. Any step of any epoch can be computed without the steps before it.

    The keys of a step are a read-only int64 array. With `batch_size=None`, each step is one int.

    >>> from penstock.plan._order import Sequential
    >>> [keys.tolist() for keys in OrderPlan(Sequential(5), batch_size=2).draw(epoch=0)]
    [[0, 1], [2, 3], [4]]

    One step of all `world` ranks together takes the next world * batch_size positions of the order, and rank r gets
    the r-th part of them. So after any step, the ranks have consumed a prefix of the order. The rest, from position
    `start` on, can be divided among another number of ranks, or into batches of another size. Steps are then numbered
    as if the new number of ranks and the new batch size had applied from the beginning of the epoch.

    If the order does not divide evenly, the last step of a rank is incomplete or missing. `drop_last` drops it on all
    ranks, `padded` completes it on all ranks with keys from the beginning of the order, and `rollover` moves its keys
    to the beginning of the next epoch.

    >>> plans = [OrderPlan(Sequential(5), 2, padded=True, rank=rank, world=2) for rank in (0, 1)]
    >>> [[keys.tolist() for keys in plan.draw(epoch=0)] for plan in plans]
    [[[0, 1], [4, 0]], [[2, 3], [1, 2]]]
    >>> [plan.pad(epoch=0, step=1) for plan in plans]
    [1, 2]

    With `rollover`, the epochs form one long sequence that is cut into steps, so the number of keys that an epoch
    inherits depends only on the epoch's number. This needs an order whose size never changes, and `start=0`.

    >>> plan = OrderPlan(Sequential(5), 2, rollover=True)
    >>> [[keys.tolist() for keys in plan.draw(epoch)] for epoch in range(2)]
    [[[0, 1], [2, 3]], [[4, 0], [1, 2], [3, 4]]]
    """

    order: Order
    batch_size: int | None = 1
    drop_last: bool = False
    padded: bool = False
    rank: int = 0
    world: int = 1
    start: int = 0
    rollover: bool = False
    _size: int = field(init=False, repr=False, compare=False)  # positions of a step
    _stride: int = field(init=False, repr=False, compare=False)  # positions between two consecutive steps of a rank

    def __post_init__(self) -> None:
        object.__setattr__(self, "_size", self.batch_size or 1)
        object.__setattr__(self, "_stride", self._size * self.world)
        check_shape(self.batch_size, self.drop_last, self.rank, self.world)
        if self.padded + self.drop_last + self.rollover > 1:
            raise ValueError("padded, drop_last and rollover are mutually exclusive, but more than one is True.")
        if self.rollover and self.start:
            cause = "the keys carried into an epoch depend on the shape of all earlier steps"
            raise ValueError(f"rollover needs start=0, but start is {self.start}: {cause}.")
        check_start(self.start)

    @property
    def first_step(self) -> int:
        return -(-self.start // self._stride)

    def after(self) -> OrderPlan:
        return replace(self, start=0) if self.start else self

    def steps(self, epoch: int) -> int:
        left = max(0, self.order.size(epoch) - self.start)
        if self.rollover:
            return (self._carried(epoch) + left) // self._stride
        if self.drop_last:
            return self.first_step + left // self._stride
        if not self.padded:
            left -= self.rank * self._size
        return self.first_step + -(-left // self._stride)

    def keys(self, epoch: int, step: int) -> NDArray[np.int64] | int:
        steps = self.steps(epoch)
        if not self.first_step <= step < steps:
            raise IndexError(f"step {step} is outside epoch {epoch}, which has {counted(steps, 'step')}.")
        keys = self.block(epoch, step, step + 1)
        return int(keys[0]) if self.batch_size is None else keys

    def pad(self, epoch: int, step: int) -> int:
        beyond = self._position(step, epoch) + self._size - self.order.size(epoch)
        return min(max(0, beyond), self._size) if self.padded else 0

    def consumed(self, epoch: int, step: int) -> int | None:
        """Returns how many positions all ranks together consume before this step, for `rest`.

        Returns None with `rollover`, because such an epoch can be resumed only with the same batch size and number of
        ranks.
        """
        return None if self.rollover else self.reached(epoch, step)

    def has(self, epoch: int, step: int) -> bool:
        return step < self.steps(epoch)

    def fault(self, epoch: int, consumed: int | None, steps: int) -> str | None:
        if self.rollover:
            return f"'consumed' is {consumed}, of an order that is dealt from its beginning" if consumed else None
        if consumed is None:
            return "'consumed' is None, but the samples of this order can be counted" if steps else None
        size = self.order.size(epoch)
        return f"'consumed' is {consumed}, of an order of {counted(size, 'sample')}" if consumed > size else None

    def rest(self, consumed: int | None, steps: int) -> Self:
        return replace(self, start=consumed) if consumed else self

    def expected(self, epoch: int) -> range:
        # After an incomplete last batch, or with other batches before it, there may be one step more.
        return range(self.first_step, self.first_step + 1 + (self.start == self.order.size(epoch)))

    def content(self) -> tuple[Any, ...]:
        return (self.order,)

    def upcoming(self, epoch: int) -> Upcoming:
        return Upcoming(self.order, partial(self.reached, epoch))

    def first_open(self, epoch: int, step: int) -> FirstOpen:
        return FirstOpen(self.reached(epoch, step), step)

    def reached(self, epoch: int, step: int) -> int:
        """Returns the first position of the epoch that no rank has consumed before this step."""
        begin = self.start - self._carried(epoch)
        return min(max(0, begin + (step - self.first_step) * self._stride), self.order.size(epoch))

    def draw(self, epoch: int, start: int = 0) -> Draw:
        check_start(start)
        return Draw(self, epoch, max(start, self.first_step))

    def block(self, epoch: int, first: int, last: int) -> NDArray[np.int64]:
        """Returns the keys of steps `first` to `last - 1` in one array. Only the epoch's last step may be short."""
        return self.block_of_rows(epoch, first, last, np.arange(self._size))

    def block_of_rows(self, epoch: int, first: int, last: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the keys of these rows of steps `first` to `last - 1` in one array. Computes no other keys."""
        begin, end = self._position(first, epoch), self._position(last, epoch)
        starts = np.arange(begin, end, self._stride, dtype=np.int64)
        positions = (starts[:, None] + rows).ravel()
        n = self.order.size(epoch)
        if positions.size and positions[-1] >= n:
            positions = positions % n if self.padded else positions[positions < n]
        keys = self._over_epochs(epoch, positions) if begin < 0 else self.order.at(epoch, positions).view()
        keys.flags.writeable = False
        return keys

    def _over_epochs(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the keys at these positions. Position -1 is the last position of the previous epoch, and so on."""
        offsets, keys = np.divmod(positions, self.order.size(epoch))
        for offset in np.unique(offsets).tolist():
            mask = offsets == offset
            keys[mask] = self.order.at(epoch + offset, keys[mask])
        return keys

    @property
    def at_once(self) -> int:
        """The number of steps that `draw` computes at a time."""
        return max(1, KEYS_AT_ONCE // self._size)

    def _carried(self, epoch: int) -> int:
        """Returns the number of keys that this epoch inherits from the previous epochs."""
        return epoch * self.order.size(epoch) % self._stride if self.rollover else 0

    def _position(self, step: int, epoch: int) -> int:
        """Returns the position in the order at which this rank's part of the step begins."""
        begin = self.start - self._carried(epoch)
        return begin + (step - self.first_step) * self._stride + self.rank * self._size


class Draw:
    """An iterator over the steps of an epoch, which can also take several steps at once.

    If `rows` is given, each step has only the keys of these rows.

    >>> from penstock.plan import OrderPlan, Sequential
    >>> steps = OrderPlan(Sequential(5), batch_size=2).draw(epoch=0)  # a Draw
    >>> next(steps).tolist()
    [0, 1]
    """

    def __init__(self, plan: OrderPlan, epoch: int, start: int, rows: LocalRows | None = None) -> None:
        self._plan, self._epoch, self._step, self._steps = plan, epoch, start, plan.steps(epoch)
        self.batched = plan.batch_size is not None
        self._size = (plan.batch_size or 1) if rows is None else len(rows)
        self._rows = None if rows is None else np.array(rows, np.int64)
        self._at_once = plan.at_once
        self._keys: NDArray[np.int64] = np.empty(0, np.int64)
        self._at = 0

    def of_rows(self, rows: LocalRows) -> Iterator[Any]:
        """Returns an iterator over the steps that are left, with the keys of these rows."""
        if type(self._plan) is not OrderPlan:  # one that computes whole steps
            return RowsOfSteps(self, rows)
        return Draw(self._plan, self._epoch, self._step, rows)

    def __iter__(self) -> Draw:
        return self

    def __next__(self) -> Any:
        keys, _ = self.take(1)
        return keys if self.batched else int(keys[0])

    def take(self, most: int) -> tuple[NDArray[np.int64], int]:
        """Returns the keys of the next 1 to `most` steps, all of equal size, and the number of these steps."""
        at, size = self._at, self._size
        left = len(self._keys) - at
        if not left:
            if self._step >= self._steps:
                raise StopIteration
            last = min(self._step + self._at_once, self._steps)
            steps = self._epoch, self._step, last
            rows = self._rows
            self._keys = self._plan.block(*steps) if rows is None else self._plan.block_of_rows(*steps, rows)
            at, left = 0, len(self._keys)
        count = min(most, left // size) or 1  # an incomplete last step is taken alone
        self._step += count
        self._at = min(at + count * size, at + left)
        return self._keys[at : self._at], count


class RowsOfSteps(Iterator[Any]):
    """An iterator over the keys of some rows of each step. Unlike a generator, it continues after an exception.

    >>> [keys for keys in RowsOfSteps(iter([[4, 1, 3], [0, 2, 5]]), rows=(0, 2))]
    [[4, 3], [0, 5]]
    """

    def __init__(self, steps: Iterator[Any], rows: LocalRows) -> None:
        self._steps, self._rows = steps, list(rows)

    def __next__(self) -> Any:
        keys = next(self._steps)
        return keys[self._rows] if isinstance(keys, np.ndarray) else [keys[row] for row in self._rows]


@dataclass(frozen=True, slots=True)
class SamplerPlan:
    """A plan that takes its steps from a user's sampler. The sampler is read only when steps are drawn.

    With `batched`, the sampler yields whole batches, which become lists. Otherwise its keys are grouped by
    `batch_size`, or passed on one by one if `batch_size` is None. Each `draw` calls `iter()` once, or continues a
    pass that has already begun. To start at a later step, it reads and discards the earlier steps. Each rank reads
    the whole sampler, which must be the same on all ranks, and takes every world-th step. An exception that the
    sampler raises takes the place of a step.

    >>> list(SamplerPlan("abcde", batch_size=2).draw(epoch=0, start=1))
    [['c', 'd'], ['e']]
    """

    sampler: Iterable[Any]
    batch_size: int | None = 1
    drop_last: bool = False
    batched: bool = False
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        check_shape(1 if self.batched else self.batch_size, self.drop_last, self.rank, self.world)

    def after(self) -> None:
        return None

    def steps(self, epoch: int) -> int | None:
        try:
            n = len(self.sampler)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return None
        steps = n if self.batched else batches(n, self.batch_size or 1, self.drop_last)
        return steps // self.world if self.drop_last else -(-(steps - self.rank) // self.world)

    def pad(self, epoch: int, step: int) -> int:
        return 0

    def draw(
        self,
        epoch: int,
        start: int = 0,
        take: _Take | None = None,
        read: int = 0,
        broken: Callable[[], bool] = lambda: True,
    ) -> Iterator[Any]:
        """Yields the keys of each step from step `start` on.

        Without `take`, a new pass over the sampler begins. Otherwise `take(size)` returns the next keys of a pass
        that has already read `read` batches. `Rest` explains `broken`.
        """
        check_start(start)
        of_all_ranks = Calls(partial(self._read, take or _taking(iter(self.sampler))))
        return Rest(of_all_ranks, start, read, self.rank, self.world, self.drop_last, broken).simplified()

    def _read(self, take: _Take, number: int) -> Any:
        """Returns the sampler's next batch, or END. The batch may be for any rank."""
        size = 1 if self.batched or self.batch_size is None else self.batch_size
        keys = take(size)
        if not keys or (len(keys) < size and self.drop_last):
            return END
        if self.batched:
            return _listed(keys[0], number)
        return keys[0] if self.batch_size is None else keys


def _listed(keys: Any, number: int) -> list[Any]:
    try:
        own = iter(keys)
    except TypeError:
        raise TypeError(
            f"batch_sampler must yield lists of keys, one for each batch, but its batch {number} is {keys!r}. "
            "For an order of single keys, pass sampler= and batch_size=."
        ) from None
    return list(own)


END = object()


class Calls(Iterator[Any]):
    """An iterator over the results of `make(first)`, `make(first + 1)` and so on, until one of them is END.

    Unlike a generator, it continues after an exception. A StopIteration from the user's code is not mistaken for the
    end.

    >>> from penstock.plan import END
    >>> list(Calls(lambda number: number * 10 if number < 3 else END))
    [0, 10, 20]
    """

    def __init__(self, make: Callable[[int], Any], first: int = 0) -> None:
        self._make, self._numbers = make, count(first)

    def __next__(self) -> Any:
        try:
            made = self._make(next(self._numbers))
        except StopIteration as error:
            raise RuntimeError("A sampler or stream raised StopIteration, and not at its end.") from error
        if made is END:
            raise StopIteration
        return made


def _taking(keys: Iterator[Any]) -> _Take:
    return lambda size: list(islice(keys, size))


class Rest(Iterator[Any]):
    """An iterator over the steps of one rank after its first `steps` steps.

    `batches` yields the batches of all ranks; `read` of them have already been read. Earlier steps and steps of other
    ranks are skipped, and so are their errors. An error that ends the batches (`broken()` returns True) is raised on
    every rank, because the other ranks would otherwise end silently.

    >>> batches = iter([[0], [1], [2], [3], [4], [5]])
    >>> list(Rest(batches, steps=1, read=0, rank=0, world=2, drop_last=False))  # of rank 0 of 2, after its first step
    [[2], [4]]
    """

    def __init__(
        self,
        batches: Iterator[Any],
        steps: int,
        read: int,
        rank: int,
        world: int,
        drop_last: bool,
        broken: Callable[[], bool] = lambda: True,
    ) -> None:
        self._batches, self._numbers, self._broken = batches, count(read), broken
        self._done, self._rank, self._world = steps * world, rank, world
        # With `drop_last` a step counts only if every rank has a batch of it.
        self._last = world - 1 if drop_last else rank
        self._raised_before = self._done - world + rank  # the number of this rank's last step before
        self._drop_last = drop_last
        self._error: tuple[int, Exception] | None = None  # took the place of the last batch that was read
        self._passes_all = world == 1 and steps <= read

    def simplified(self) -> Iterator[Any]:
        """Returns `batches` itself if no batch has to be skipped, otherwise this iterator."""
        return self._batches if self._passes_all else self

    def __next__(self) -> Any:
        mine: Any = None
        for number in self._numbers:
            owner = number % self._world
            try:
                keys = next(self._batches)
                error = self._error = None
            except StopIteration:
                self._end(number)
            except StateError:
                raise
            except Exception as caught:
                keys, error = None, caught
                self._error = number, caught
            if number < self._done:
                continue
            if owner == self._rank:
                mine = keys, error
            if owner == self._last:
                keys, error = mine
                if error is None:
                    return keys
                self._raised_before = number
                raise error
        raise AssertionError  # the numbers do not end

    def _end(self, number: int) -> NoReturn:
        at, error = (self._error if self._broken() else None) or (-1, None)
        if error is None:
            check_reached(self._done - number, self._done, self._world)
        self._numbers = count(number)
        # An error in an incomplete round has taken the place of its step.
        if error is None or at <= self._raised_before or (self._drop_last and number < self._done):
            raise StopIteration
        self._raised_before = at
        raise error


def check_reached(missing: int, expected: int, world: int) -> None:
    """Raises StateError if a sampler or a stream ended before the position of the resume state."""
    # One rank may have had a step more than another, so up to world - 1 batches may be missing.
    if missing >= world:
        raise StateError(
            f"The resume state was taken after {expected} batches, but now there are only {expected - missing}: the "
            "sampler or the stream has changed. Use the one that it was taken with, or start without the state."
        )


def check_shape(batch_size: int | None, drop_last: bool, rank: int, world: int) -> None:
    check_drop_last(drop_last)
    positive("world", world)
    if batch_size is not None:
        positive("batch_size", batch_size)
    elif drop_last and world == 1:
        raise ValueError("drop_last=True needs batches to drop, but batch_size is None.")
    if not 0 <= rank < world:
        raise ValueError(f"rank must be 0 to {world - 1} (world - 1), but it is {rank}.")


def check_start(start: int) -> None:
    if start < 0:
        raise ValueError(f"start must be 0 or more, but it is {start}.")
