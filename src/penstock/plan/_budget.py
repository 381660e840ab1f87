"""Cuts samples of similar length into batches that fill a budget of tokens, and deals the batches to ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock.plan._order import Order, Permutation
from penstock.plan._plan import FirstOpen, Upcoming, WindowCosts, check_shape, check_start
from penstock.plan._samplers import positive
from penstock.plan._seeds import hashes, mix
from penstock.plan._windows import MOST_RANKS, Edges, ItemTable, Memo, Place, PlacedPlan, count_of

Int64s = NDArray[np.int64]

WINDOW = 1 << 19
"""Default number of samples in a window."""


class LengthTable:
    """The length of each of n samples. Any key k stands for sample k % n, as in a repeated dataset.

    >>> LengthTable([3, 5]).of(np.array([1, 2])).tolist()
    [5, 3]
    """

    __slots__ = ("numbers",)

    def __init__(self, numbers: object) -> None:
        found = np.asarray(numbers)
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            raise TypeError(
                f"lengths must be one integer for each sample, but got an array of {found.dtype} with the shape "
                f"{found.shape}."
            )
        if found.size and found.min() < 0:
            at = int(found.argmin())
            raise ValueError(f"a length must be 0 or more, but the length of sample {at} is {found[at]}.")
        self.numbers: Int64s = found.astype(np.int64, copy=False)

    def of(self, keys: Int64s) -> Int64s:
        n = len(self.numbers)
        return self.numbers[keys % n if keys.size and keys.max() >= n else keys]

    def __len__(self) -> int:
        return len(self.numbers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LengthTable):
            return NotImplemented
        return self.numbers is other.numbers or np.array_equal(self.numbers, other.numbers)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"LengthTable of {len(self)} samples"


class _CutWindow(NamedTuple):
    """The batches of a window, longest samples first. Batch i is `keys[starts[i] : starts[i + 1]]`."""

    keys: Int64s
    lengths: Int64s
    starts: Int64s


@dataclass(frozen=True, slots=True)
class BudgetWindows:
    """Cuts the samples of each window into batches of similar length. No batch costs more than `batch_tokens`.

    The cost of a batch is its number of rows times its padded width. The padded width is the length of the longest
    sample (at least 1), rounded up to a multiple of `multiple`, or to one of `buckets`. A window consists of `window`
    positions of the order. Its samples are sorted by length, longest first, and each batch takes as many of the next
    samples as fit into the budget. The number of rows is rounded down to a multiple of `batch_multiple`, unless this
    gives 0. The last batch of a window takes the samples that are left.

    A sample longer than `max_length` is an error, unless `truncates` is True: such samples are truncated later.
    Without `seed`, the batches stay sorted, from long to short. With a seed, they are shuffled, but in each step
    the ranks (`ranks` of them) get batches of about the same width.

    >>> from penstock.plan._order import Sequential
    >>> windows = BudgetWindows(Sequential(5), LengthTable([4, 1, 2, 4, 2]), batch_tokens=8)
    >>> offsets, parts = windows.table(epoch=0, number=0)
    >>> offsets.tolist(), parts.ravel().tolist()
    ([0, 2, 5], [0, 3, 2, 4, 1])
    """

    order: Order
    lengths: LengthTable
    batch_tokens: int
    seed: int | None = None
    max_length: int | None = None
    truncates: bool = False
    batch_multiple: int = 1
    multiple: int = 1
    buckets: tuple[int, ...] = ()
    window: int = WINDOW
    ranks: int = 1
    _cuts: Memo[_CutWindow] = field(default_factory=lambda: Memo(2), init=False, compare=False, repr=False)
    _sizes: Memo[int] = field(default_factory=lambda: Memo(1 << 16), init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "batch_multiple", "multiple", "window", "ranks"):
            positive(name, getattr(self, name))
        if self.max_length is not None:
            positive("max_length", self.max_length)
        elif self.truncates:
            raise ValueError("truncates=True needs max_length, to which the samples are cut.")
        if list(self.buckets) != sorted({*self.buckets}) or (self.buckets and self.buckets[0] < 1):
            raise ValueError(f"buckets must be lengths of at least 1 in increasing order, got {self.buckets}.")
        if self.buckets and self.multiple > 1:
            raise ValueError(f"buckets and multiple={self.multiple} both decide the padded width: leave one out.")

    @property
    def longest(self) -> int:
        budget = self.batch_tokens // self.multiple * self.multiple
        if self.buckets:
            fitting = [bucket for bucket in self.buckets if bucket <= budget]
            budget = fitting[-1] if fitting else 0
        return budget if self.max_length is None or self.truncates else min(budget, self.max_length)

    def check(self) -> None:
        """Raises ValueError if any sample is too long. (`table` checks only one window.)"""
        self._capped(np.arange(len(self.lengths)))

    def count(self, epoch: int) -> int | None:
        return count_of(self.order, self.window, epoch)

    def size(self, epoch: int, number: int) -> int:
        return self._sizes.get((epoch, number), lambda: len(self.cut(epoch, number).starts) - 1)

    def table(self, epoch: int, number: int) -> ItemTable:
        return self.arranged(epoch, number, self.ranks)

    def arranged(self, epoch: int, number: int, ranks: int) -> ItemTable:
        """Returns the batches of a window in the order in which they are dealt to `ranks` ranks."""
        cut = self.cut(epoch, number)
        sequence = self.sequence(epoch, number, ranks)
        counts = np.diff(cut.starts)[sequence]
        offsets = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
        rows = np.arange(offsets[-1]) + np.repeat(cut.starts[sequence] - offsets[:-1], counts)
        return ItemTable(offsets, cut.keys[rows, None])

    def cut(self, epoch: int, number: int) -> _CutWindow:
        """Returns the batches of a window, unshuffled: the longest samples come first."""

        def make() -> _CutWindow:
            keys, lengths = self._samples(epoch, number)
            by_length = np.argsort(_small(lengths.max(initial=0) - lengths), kind="stable")
            keys, lengths = keys[by_length], lengths[by_length]
            return _CutWindow(keys, lengths, self._starts(self.widths(lengths)))

        return self._cuts.get((epoch, number), make)

    def costs(self, epoch: int, number: int) -> WindowCosts:
        keys, lengths, starts = self.cut(epoch, number)
        batches = len(starts) - 1
        padded = np.diff(starts) * self.widths(lengths[starts[:-1]])
        return WindowCosts(batches, len(keys), int(lengths.sum()), int(padded.sum()), batches * self.batch_tokens)

    def sequence(self, epoch: int, number: int, ranks: int) -> Int64s:
        """Returns the indices of the window's batches, in the order in which the batches are dealt.

        In the list of batches sorted by width, the batches of a step are adjacent. If the number of batches is not a
        multiple of `ranks`, the batches with the shortest samples are left over, and come last.
        """
        n = len(self.cut(epoch, number).starts) - 1
        if self.seed is None or not n:
            return np.arange(n)
        key, steps = mix(self.seed, epoch, number), n // ranks
        whole = steps * ranks
        numbers = hashes(mix(key, 1), np.arange(n))
        within = numbers[:whole].reshape(-1, ranks).argsort(axis=1)  # all hashes differ
        groups = Permutation(steps, mix(key, 0)).at(np.arange(steps)) if steps else np.empty(0, np.int64)
        dealt = (groups * ranks)[:, None] + within[groups]
        return np.concatenate([dealt.ravel(), whole + numbers[whole:].argsort()])

    def widths(self, lengths: Int64s) -> Int64s:
        """Returns the padded widths of batches whose longest samples have these lengths."""
        lengths = np.maximum(lengths, 1)
        if self.buckets:
            buckets = np.array(self.buckets, np.int64)
            return buckets[np.searchsorted(buckets, lengths)]
        return lengths if self.multiple == 1 else -(-lengths // self.multiple) * self.multiple

    def rows(self, width: int) -> int:
        rows = self.batch_tokens // width
        return rows // self.batch_multiple * self.batch_multiple or rows

    def _samples(self, epoch: int, number: int) -> tuple[Int64s, Int64s]:
        first = number * self.window
        keys = self.order.at(epoch, np.arange(first, min(first + self.window, self.order.size(epoch))))
        return keys, self._capped(keys)

    def _capped(self, keys: Int64s) -> Int64s:
        """Returns the length of each sample after truncation. Raises ValueError if a sample is too long."""
        lengths = self.lengths.of(keys)
        if self.max_length is not None and self.truncates:
            lengths = np.minimum(lengths, self.max_length)
        if lengths.size and max(1, lengths.max()) > self.longest:
            at = int(lengths.argmax())
            self._refuse(int(keys[at]), int(lengths[at]))
        return lengths

    def _refuse(self, key: int, length: int) -> NoReturn:
        what = f"sample {key} has {length} tokens, but "
        if self.max_length is not None and not self.truncates and length > self.max_length:
            raise ValueError(
                f"{what}max_length is {self.max_length}. Leave it out, truncate it, or raise max_length."
            )
        if self.buckets and length > self.buckets[-1]:
            raise ValueError(f"{what}the largest bucket is {self.buckets[-1]}. Add a bucket, or truncate the sample.")
        width = int(self.widths(np.array([length]))[0])
        padded = f", padded to {width}" if width > length else ""
        raise ValueError(
            f"{what[:-6]}{padded}, but a batch has at most {self.batch_tokens}: no batch can hold it. Raise "
            "batch_tokens, or truncate or leave out the sample."
        )

    def _starts(self, widths: Int64s) -> Int64s:
        """Cuts samples, widest first, into batches. Returns the start of each batch, and the end of the last one."""
        starts, at, n, item = [0], 0, len(widths), widths.item
        while at < n:
            at = min(n, at + self.rows(item(at)))
            starts.append(at)
        return np.array(starts, np.int64)


def _small(lengths: Int64s) -> NDArray[np.integer]:
    """Returns the lengths, as 16-bit integers if they fit: numpy sorts these ten times as fast as int64."""
    return lengths.astype(np.uint16) if lengths.max(initial=0) < 1 << 16 else lengths


@dataclass(frozen=True, slots=True)
class _InBatches:
    """The order in which `ranks` ranks get the samples, batch by batch.

    If `start` is inside a window of `epoch`, this window stays arranged for `start.ranks` ranks.
    """

    windows: BudgetWindows
    ranks: int
    epoch: int
    start: Place
    _tables: Memo[ItemTable] = field(default_factory=lambda: Memo(2), init=False, compare=False, repr=False)

    def size(self, epoch: int) -> int:
        return self.windows.order.size(epoch)

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        numbers, places = np.divmod(positions, self.windows.window)
        keys = np.empty(len(positions), np.int64)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            keys[here] = self._table(epoch, number).parts[places[here], 0]
        return keys

    def reached(self, epoch: int, place: Place) -> int:
        position = place.window * self.windows.window
        if place.item:
            position += int(self._table(epoch, place.window).offsets[place.item])
        return min(position, self.size(epoch))

    def _table(self, epoch: int, number: int) -> ItemTable:
        begun = (epoch, number) == (self.epoch, self.start.window) and self.start.item
        ranks = self.start.ranks if begun else self.ranks
        return self._tables.get((epoch, number), lambda: self.windows.arranged(epoch, number, ranks))


class _LastStep(NamedTuple):
    """The last step of a window: a batch for each rank, and the ranks whose batch is only padding."""

    batches: list[Int64s]
    padding: frozenset[int]


@dataclass(frozen=True, slots=True)
class BudgetPlan(PlacedPlan):
    """A plan that deals the batches of each window to the ranks. In every step, each rank gets one batch.

    One step takes the next `world` batches of the window, which have about the same width. If fewer than `world`
    batches are left at the end of a window, the samples of these batches are divided again, into `world` smaller
    batches of about the same cost. The cost is the number of padded tokens or, with `power=2`, rows times width
    squared. (If there are fewer samples than ranks, some samples are repeated as padding.) If `drop_last` is True,
    the last window of the epoch has no step of smaller batches, and the remaining samples are dropped.

    After any step, the ranks have consumed all earlier windows and the first batches of the current window. A
    different number of ranks can continue from this place: `start` is the code of the `Place`. The rest of the
    current window stays arranged for the previous number of ranks, which the `Place` contains. Later windows are
    arranged for the new number of ranks.
    """

    windows: BudgetWindows
    drop_last: bool = False
    rank: int = 0
    world: int = 1
    start: int = 0
    first_step: int = 0
    power: int = 1
    _edges: Edges = field(init=False, compare=False, repr=False)
    _sequences: Memo[Int64s] = field(default_factory=lambda: Memo(2), init=False, compare=False, repr=False)
    _lasts: Memo[_LastStep] = field(default_factory=lambda: Memo(2), init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_shape(1, self.drop_last, self.rank, self.world)
        check_start(self.first_step)
        if self.world > MOST_RANKS:
            raise ValueError(f"batches can be cut for at most {MOST_RANKS} ranks, but world is {self.world}.")
        if self.power not in (1, 2):
            raise ValueError(f"power must be 1 (tokens) or 2 (tokens squared), but it is {self.power}.")
        edges = Edges(Place.of(self.start).window, self.windows, self._steps_of)
        object.__setattr__(self, "_edges", edges)

    @property
    def order(self) -> Order:
        return self.windows.order

    def content(self) -> tuple[Any, ...]:
        return self.windows, self.windows.lengths.numbers, self.power

    def steps(self, epoch: int) -> int | None:
        total = self._edges.total(epoch)
        return None if total is None else self.first_step + total

    def pad(self, epoch: int, step: int) -> int:
        found = self._edges.find(epoch, step - self.first_step)
        if found is None or not self._is_cut_again(epoch, *found):
            return 0
        return int(self.rank in self._last(epoch, found[0]).padding)

    def consumed(self, epoch: int, step: int) -> int:
        """Returns the code of the `Place` that all ranks together have reached before this step."""
        found = self._edges.find(epoch, step - self.first_step)
        if found is None:
            left = self._left_over(epoch, step)
            return Place(self.windows.count(epoch) or 0, 0).code if left is None else left.code
        window, number = found
        return self._place(epoch, window, number).code

    def has(self, epoch: int, step: int) -> bool:
        return step < self.first_step or self._edges.find(epoch, step - self.first_step) is not None

    def fault(self, epoch: int, consumed: int | None, steps: int) -> str | None:
        place = Place.of(consumed or 0)
        if bool(place.ranks) != bool(place.item):
            return f"'consumed' is {consumed}, which no step of batches by a budget reaches"
        return place.fault(epoch, steps, self.windows.count(epoch), self.windows.size)

    def first_open(self, epoch: int, step: int) -> FirstOpen:
        """Returns the start of the first window that has no batch in the steps before `step`."""
        place, found = Place.of(self.consumed(epoch, step)), self._edges.find(epoch, step - self.first_step)
        if found is not None and place.item:
            step += self._steps_of(epoch, found[0]) - found[1]
        return place.opens(self.windows.window, self.order.size(epoch), step)

    def upcoming(self, epoch: int) -> Upcoming:
        """Returns the samples batch by batch, as if the last batches of a window were never cut again."""
        order = _InBatches(self.windows, self.world, epoch, Place.of(self.start))
        return Upcoming(order, lambda step: order.reached(epoch, Place.of(self.consumed(epoch, step))))

    def given(self, epoch: int, step: int) -> tuple[int, Int64s]:
        upcoming, place = self.upcoming(epoch), Place.of(self.consumed(epoch, step))
        position = min(place.window * self.windows.window, self.order.size(epoch))
        return position, upcoming.order.at(epoch, np.arange(position, upcoming.reached(step)))

    def costs(self, epoch: int, step: int) -> WindowCosts | None:
        count = self.windows.count(epoch)
        number = Place.of(self.consumed(epoch, step)).window
        number = number if count is None else min(number, count - 1)
        return None if number < 0 else self.windows.costs(epoch, number)

    def _step(self, epoch: int, step: int) -> Int64s | None:
        found = self._edges.find(epoch, step - self.first_step)
        return None if found is None else self._batch(epoch, *found)

    def _batch(self, epoch: int, window: int, number: int) -> Int64s:
        """Returns this rank's batch in step `number` of the window."""
        if self._is_cut_again(epoch, window, number):
            return self._last(epoch, window).batches[self.rank]
        item = self._place(epoch, window, number).item + self.rank
        keys, _, starts = self.windows.cut(epoch, window)
        batch = int(self._sequence(epoch, window)[item])
        found = keys[starts[batch] : starts[batch + 1]]
        found.flags.writeable = False
        return found

    def _is_cut_again(self, epoch: int, window: int, number: int) -> bool:
        return self._place(epoch, window, number).item + self.world > self.windows.size(epoch, window)

    def _last(self, epoch: int, window: int) -> _LastStep:
        """Cuts the window's last batches again, into one batch for each rank. Returns the window's last step."""

        def make() -> _LastStep:
            keys, lengths, starts = self.windows.cut(epoch, window)
            first, n = self._begin(window)[0], self.windows.size(epoch, window)
            first += (n - first) // self.world * self.world
            batches = self._sequence(epoch, window)[first:]
            rows = np.concatenate([np.arange(starts[batch], starts[batch + 1]) for batch in np.sort(batches)])
            edges = _even(self.windows, self.windows.widths(lengths[rows]), self.world, self.power)
            parts = [keys[rows[begin:end]] for begin, end in pairwise(edges)]
            missing = self.world - len(parts)
            parts += [keys[rows[at % len(rows)]][None] for at in range(missing)]
            if self.windows.seed is None:
                return _LastStep(parts, frozenset(range(self.world - missing, self.world)))
            dealt = hashes(mix(self.windows.seed, epoch, window, 2), np.arange(self.world)).argsort().tolist()
            padding = frozenset(rank for rank, part in enumerate(dealt) if part >= self.world - missing)
            return _LastStep([parts[part] for part in dealt], padding)

        return self._lasts.get((epoch, window), make)

    def _sequence(self, epoch: int, window: int) -> Int64s:
        ranks = self._begin(window)[1]
        return self._sequences.get((epoch, window), lambda: self.windows.sequence(epoch, window, ranks))

    def _begin(self, window: int) -> tuple[int, int]:
        """Returns the plan's first batch in this window, and the number of ranks the window is arranged for."""
        start = Place.of(self.start)
        return (start.item, start.ranks) if window == start.window and start.item else (0, self.world)

    def _place(self, epoch: int, window: int, number: int) -> Place:
        """Returns the place just before step `number` of the window."""
        first, ranks = self._begin(window)
        item = first + number * self.world
        return Place(window, item, ranks) if item else Place(window, 0)

    def _steps_of(self, epoch: int, window: int) -> int:
        left = max(0, self.windows.size(epoch, window) - self._begin(window)[0])
        is_last = self.drop_last and window + 1 == self.windows.count(epoch)
        return left // self.world if is_last else -(-left // self.world)

    def _left_over(self, epoch: int, step: int) -> Place | None:
        """Returns the place of the first batch that `drop_last` drops, or None if no batch is dropped."""
        count = self.windows.count(epoch)
        if not self.drop_last or not count or Place.of(self.start).window >= count:
            return None
        place = self._place(epoch, count - 1, self._steps_of(epoch, count - 1))
        return place if place.item < self.windows.size(epoch, count - 1) else None


def _even(windows: BudgetWindows, widths: Int64s, parts: int, power: int) -> list[int]:
    """Cuts samples, widest first, into `parts` batches of about the same cost, within the budget.

    Returns the start of each batch, and the end of the last one. If there are fewer samples than `parts`, each batch
    has one sample.
    """
    least, most = 0, windows.batch_tokens * int(widths[0]) ** (power - 1)
    edges = _cut_by_cost(windows, widths, most, power, len(widths))
    while most - least > 1:
        middle = (least + most) // 2
        found = _cut_by_cost(windows, widths, middle, power, parts)
        if found:
            most, edges = middle, found
        else:
            least = middle
    costs = [(end - begin) * int(widths[begin]) ** power for begin, end in pairwise(edges)]
    while len(costs) < min(parts, len(widths)):
        # The costliest batch that can be split: the first one, if several cost the same.
        at = max((i for i in range(len(costs)) if edges[i + 1] - edges[i] > 1), key=costs.__getitem__)
        begin, end = edges[at], edges[at + 1]
        half = -(-(end - begin) // 2)
        half = half // windows.batch_multiple * windows.batch_multiple or half
        edges.insert(at + 1, begin + half)
        costs[at : at + 1] = [
            half * int(widths[begin]) ** power,
            (end - begin - half) * int(widths[begin + half]) ** power,
        ]
    return edges


def _cut_by_cost(windows: BudgetWindows, widths: Int64s, most: int, power: int, parts: int) -> list[int]:
    """Cuts samples as `_starts` does, but a batch of several samples costs at most `most`.

    Returns [] if `parts` batches are not enough.
    """
    edges, at, n, step = [0], 0, len(widths), windows.batch_multiple
    while at < n:
        if len(edges) > parts:
            return []
        width = widths.item(at)
        rows = most // width**power
        at = min(n, at + min(windows.rows(width), max(1, rows // step * step or rows)))
        edges.append(at)
    return edges
