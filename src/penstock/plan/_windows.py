"""Plans whose items (rows of documents, or batches) are computed window by window."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from penstock._printable import counted
from penstock.plan._order import ENDLESS, Order, Sequential
from penstock.plan._plan import ComputedPlan, FirstOpen, Upcoming, check_shape, check_start

if TYPE_CHECKING:
    from penstock.plan._packing import PackingFigures

T = TypeVar("T")


class ItemTable(NamedTuple):
    """The items of one window. Item i consists of `parts[offsets[i] : offsets[i + 1]]`."""

    offsets: NDArray[np.int64]
    parts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1


class Windows(Protocol):
    """Computes the items of each window of an epoch independently of other windows."""

    def count(self, epoch: int) -> int | None:
        """Returns the number of windows in the epoch, or None if the epoch never ends."""

    def size(self, epoch: int, number: int) -> int:
        """Returns the number of items in a window."""

    def table(self, epoch: int, number: int) -> ItemTable: ...

    @property
    def window(self) -> int:
        """The number of positions in a window. The last window may have fewer."""


# Python's integers have no limit, but a resume state accepts at most 96 bits here.
_ITEM, _RANKS = 32, 16

# No run gets so far in an epoch without end, and positions below fit into 64 bits.
_MOST_WINDOWS = 1 << 40


class Place(NamedTuple):
    """A place in an epoch: the next item of a window. All ranks together have consumed all earlier items.

    `ranks` is the number of ranks that the items of the window are arranged for. It is 0 if the order of the items
    does not depend on the number of ranks. `code` and `of` convert a place to one integer and back. The code of the
    epoch's beginning is 0.

    >>> Place.of(Place(window=3, item=5).code), Place(0, 0).code
    (Place(window=3, item=5, ranks=0), 0)
    """

    window: int
    item: int
    ranks: int = 0

    def opens(self, window: int, size: int, step: int) -> FirstOpen:
        """Returns the start of the first window from which no item has been taken. `window` is the windows' size."""
        return FirstOpen(min((self.window + (self.item > 0)) * window, size), step)

    @property
    def code(self) -> int:
        return (self.window << _RANKS | self.ranks) << _ITEM | self.item

    @classmethod
    def of(cls, code: int) -> Place:
        check_start(code)
        above = code >> _ITEM
        return cls(above >> _RANKS, code & (1 << _ITEM) - 1, above & (1 << _RANKS) - 1)

    def fault(self, epoch: int, steps: int, windows: int | None, size: Callable[[int, int], int]) -> str | None:
        """Returns what is wrong with this place in a resume state, or None if nothing is.

        The state was taken after `steps` steps. The epoch has `windows` windows (None: no end), and
        `size(epoch, window)` returns the number of items in a window.
        """
        windows = _MOST_WINDOWS if windows is None else windows
        if self.window > windows or (self.window == windows and self.item):
            return f"'consumed' is in window {self.window}, but epoch {epoch} has {counted(windows, 'window')}"
        if self.item and self.item >= (items := size(epoch, self.window)):
            return f"'consumed' is item {self.item} of window {self.window}, which has {counted(items, 'item')}"
        if steps and not self.code:
            return f"'consumed' is 0, but 'steps' is {steps}"
        if self.code and not steps:
            return f"'steps' is 0, but 'consumed' is {self.code}"
        return None


MOST_RANKS = (1 << _RANKS) - 1


class Memo(Generic[T]):
    """Keeps the most recent results of a function. Threads may share it: at worst, a result is computed twice."""

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, dict[tuple[int, ...], T]()

    def get(self, key: tuple[int, ...], make: Callable[[], T]) -> T:
        found = self._kept.get(key)
        if found is None:
            found = make()
            self.keep(key, found)
        return found

    def keep(self, key: tuple[int, ...], value: T) -> None:
        kept = self._kept
        kept[key] = value
        if len(kept) > self._most:
            for old in list(kept)[: len(kept) - self._most]:  # the list is made at once (decision 0057)
                kept.pop(old, None)

    @property
    def kept(self) -> Mapping[tuple[int, ...], T]:
        """The most recent results by key, oldest first."""
        return self._kept

    def __deepcopy__(self, memo: object) -> Memo[T]:
        return Memo(self._most)

    def __reduce__(self) -> tuple[type[Memo[T]], tuple[int]]:
        return type(self), (self._most,)


# So many documents in a row without an item are taken for a mistake, if the documents have no end.
_NO_ITEM_IN = 1 << 20


class Edges:
    """Running totals over the windows of each epoch, from window `first` on. Each total is computed once.

    `size(epoch, window)` returns the count for one window; by default, the number of its items.
    """

    def __init__(self, first: int, windows: Windows, size: Callable[[int, int], int] | None = None) -> None:
        self._first, self._size, self._last = first, size or windows.size, windows.count
        self._most_empty = max(16, _NO_ITEM_IN // windows.window)
        self._of: dict[int, list[int]] = {}

    def find(self, epoch: int, index: int) -> tuple[int, int] | None:
        """Returns the window that contains this index, and the index in that window.

        Indices are counted from window `first` on. Returns None if the index is past the end of the epoch.
        """
        edges = self._upto(epoch, index + 1)
        if edges[-1] <= index:
            return None
        at = bisect_right(edges, index) - 1
        return self._first + at, index - edges[at]

    def total(self, epoch: int) -> int | None:
        return None if self._last(epoch) is None else self._upto(epoch, None)[-1]

    def ends_before(self, epoch: int, index: int) -> int | None:
        """Returns the total over all windows of the epoch, from `first` on, if it is less than `index`, else None.

        Computes only the windows that the comparison needs.
        """
        reached = self._upto(epoch, index)[-1]
        return reached if reached < index else None

    def _upto(self, epoch: int, index: int | None) -> list[int]:
        """Returns the running totals until one is at least `index`, or all of them if `index` is None."""
        edges, last = self._of.get(epoch) or [0], self._last(epoch)
        known = len(edges)
        while index is None or edges[-1] < index:
            window = self._first + len(edges) - 1
            if last is not None and window >= last:
                break
            if len(edges) == known:
                edges = edges.copy()  # another thread may read it
            edges.append(edges[-1] + self._size(epoch, window))
            if last is None and len(edges) > self._most_empty and edges[-1 - self._most_empty] == edges[-1]:
                raise ValueError(
                    f"no window of documents from {window + 1 - self._most_empty:,} to {window:,} of epoch {epoch} "
                    "gives a row, and the documents have no end. Are all of them empty, or too long for a row?"
                )
        if len(edges) > known:
            self._of = {**{e: of for e, of in self._of.items() if e >= epoch - 1}, epoch: edges}
        return edges


ItemKey = tuple[int, ...]
"""The key of an item: the columns of its first part, then those of the next part, and so on."""


def item_keys(slices: Sequence[tuple[ItemTable, int, int]]) -> list[ItemKey]:
    """Returns the keys of the items in these slices. A slice (table, first, last) has items `first` to `last - 1`.

    >>> table = ItemTable(np.array([0, 1, 3]), np.array([[7, 0, 5], [8, 0, 2], [9, 4, 6]]))
    >>> item_keys([(table, 0, 2)])
    [(7, 0, 5), (8, 0, 2, 9, 4, 6)]
    """
    keys = []
    for table, first, last in slices:
        edges = table.offsets[first : last + 1].tolist()
        parts = table.parts[edges[0] : edges[-1]]
        columns, numbers = parts.shape[1], parts.ravel().tolist()
        start = edges[0]
        keys += [tuple(numbers[(a - start) * columns : (b - start) * columns]) for a, b in pairwise(edges)]
    return keys


_NO_ORDER = Sequential(0)


@dataclass(frozen=True, slots=True)
class InItems:
    """The documents in the order in which they are first needed, window by window. Unused documents come last."""

    windows: Windows
    order: Order
    _known: Memo[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(
        default_factory=lambda: Memo(2), init=False, compare=False, repr=False
    )

    def size(self, epoch: int) -> int:
        return self.order.size(epoch)

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        numbers, places = np.divmod(positions, self.windows.window)
        keys = np.empty(len(positions), np.int64)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            keys[here] = self._window(epoch, number)[0][places[here]]
        return keys

    def reached(self, epoch: int, place: Place) -> int:
        position = place.window * self.windows.window
        if place.item:
            part = self.windows.table(epoch, place.window).offsets[place.item]
            position += int(self._window(epoch, place.window)[1].searchsorted(part))
        return min(position, self.size(epoch))

    def _window(self, epoch: int, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the documents of a window, and the index of each used document's first part in the table."""
        return self._known.get((epoch, number), lambda: self._arranged(epoch, number))

    def _arranged(self, epoch: int, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        begin = number * self.windows.window
        keys = self.order.at(epoch, np.arange(begin, min(begin + self.windows.window, self.size(epoch))))
        parts = self.windows.table(epoch, number).parts[:, 0]
        first = np.sort(np.unique(parts, return_index=True)[1])
        found = np.concatenate([parts[first], keys[~np.isin(keys, parts)], keys])  # a sampler may repeat documents
        return found[: len(keys)], first


def count_of(order: Order, window: int, epoch: int) -> int | None:
    """Returns the number of windows of this size in the epoch, or None if the epoch never ends."""
    size = order.size(epoch)
    return None if size >= ENDLESS else -(-size // window)


class PlacedPlan(ComputedPlan):
    """A windowed plan that begins with the step `first_step`, at the `Place` with the code `start`.

    `first_step` must be given, because computing it would require all earlier windows.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # fields

        @property
        def start(self) -> int: ...

    def _step(self, epoch: int, step: int) -> Any:
        """Returns the keys of a step (`first_step` or later), or None if the epoch has no such step."""
        raise NotImplementedError

    def after(self) -> Self:
        return self._with(0, 0) if self.start or self.first_step else self

    def rest(self, consumed: int | None, steps: int) -> Self:
        return self._with(consumed, steps) if consumed else self

    def _with(self, start: int, first_step: int) -> Self:
        return replace(cast(Any, self), start=start, first_step=first_step)  # type: ignore[no-any-return]

    def keys(self, epoch: int, step: int) -> Any:
        found = self._step(epoch, step) if step >= self.first_step else None
        if found is None:
            raise IndexError(f"step {step} is outside epoch {epoch}, which has {self.steps(epoch)} steps.")
        return found

    def draw(self, epoch: int, start: int = 0) -> Iterator[Any]:
        check_start(start)
        step = max(start, self.first_step)
        while (keys := self._step(epoch, step)) is not None:
            yield keys
            step += 1


@dataclass(frozen=True, slots=True)
class WindowPlan(PlacedPlan):
    """A plan that deals items to steps and ranks, window by window.

    One step of all `world` ranks together takes the next world * batch_size items. Rank r gets the r-th part of them,
    as a list of keys (see `ItemKey`). After any step, the ranks have therefore consumed a prefix of the items, which
    ends at a `Place`. The rest of the epoch can be divided among a different number of ranks, or into batches of a
    different size: `start` is the code of the place from which to continue.

    If the items do not divide evenly, some ranks have an incomplete last step, or lack the last step. With
    `drop_last`, no rank gets this step. With `padded`, every rank gets a complete last step, filled up with items
    from the beginning of the epoch.

    The windows are made from `order`. The plan itself uses `order` only for resume states and forecasts.
    """

    windows: Windows
    batch_size: int = 1
    drop_last: bool = False
    padded: bool = False
    rank: int = 0
    world: int = 1
    start: int = 0
    first_step: int = 0
    order: Order = _NO_ORDER
    _edges: Edges = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_shape(self.batch_size, self.drop_last, self.rank, self.world)
        if self.padded and self.drop_last:
            raise ValueError("padded and drop_last are mutually exclusive, but both are True.")
        check_start(self.first_step)
        edges = Edges(Place.of(self.start).window, self.windows)
        object.__setattr__(self, "_edges", edges)

    def content(self) -> tuple[Any, ...]:
        return self.order, self.windows

    def steps(self, epoch: int) -> int | None:
        total = self._edges.total(epoch)
        if total is None:
            return None
        left = max(0, total - self._begin)
        if self.drop_last:
            return self.first_step + left // self._stride
        if not self.padded:
            left -= self.rank * self.batch_size
        return self.first_step + max(0, -(-left // self._stride))

    def pad(self, epoch: int, step: int) -> int:
        if not self.padded:
            return 0
        end = self._index(step) + self.batch_size
        total = self._edges.ends_before(epoch, end)
        return 0 if total is None else min(end - total, self.batch_size)

    def consumed(self, epoch: int, step: int) -> int:
        """Returns the code of the `Place` that all ranks together have reached before this step."""
        found = self._edges.find(epoch, self._begin + (step - self.first_step) * self._stride)
        return Place(*(found or (self.windows.count(epoch) or 0, 0))).code

    def upcoming(self, epoch: int) -> Upcoming:
        order = InItems(self.windows, self.order)
        return Upcoming(order, lambda step: order.reached(epoch, Place.of(self.consumed(epoch, step))))

    def given(self, epoch: int, step: int) -> tuple[int, NDArray[np.int64]]:
        place = Place.of(self.consumed(epoch, step))
        position, keys = min(place.window * self.windows.window, self.order.size(epoch)), np.empty(0, np.int64)
        if place.item:
            table = self.windows.table(epoch, place.window)
            keys = np.unique(table.parts[: table.offsets[place.item], 0])
        return position, keys

    def packing(self, epoch: int, step: int) -> PackingFigures | None:
        figures = getattr(self.windows, "figures", None)
        count, number = self.windows.count(epoch), Place.of(self.consumed(epoch, step)).window
        number = number if count is None else min(number, count - 1)
        return None if figures is None or number < 0 else figures(epoch, number)

    def has(self, epoch: int, step: int) -> bool:
        return step < self.first_step or self._edges.find(epoch, self._index(step)) is not None

    def fault(self, epoch: int, consumed: int | None, steps: int) -> str | None:
        place = Place.of(consumed or 0)
        if place.ranks:
            return f"'consumed' is {consumed}, a place in batches by a budget of tokens"
        return place.fault(epoch, steps, self.windows.count(epoch), self.windows.size)

    def first_open(self, epoch: int, step: int) -> FirstOpen:
        """Returns the start of the first window that has no item in the steps before `step`."""
        place = Place.of(self.consumed(epoch, step))
        if not place.item:
            return place.opens(self.windows.window, self.order.size(epoch), step)
        left = self.windows.size(epoch, place.window) - place.item
        return place.opens(self.windows.window, self.order.size(epoch), step + left // self._stride)

    def _step(self, epoch: int, step: int) -> list[ItemKey] | None:
        begin, of_all = self._index(step), self._begin + (step - self.first_step) * self._stride
        end, end_of_all = begin + self.batch_size, of_all + self._stride
        total = self._edges.ends_before(epoch, end_of_all)
        if total is None:
            return item_keys(self._slices(epoch, begin, end))
        if of_all >= total or self.drop_last or (begin >= total and not self.padded):
            return None
        slices = self._slices(epoch, min(begin, total), min(end, total))
        missing = end - max(begin, total) if self.padded else 0
        if missing > 0:
            slices += self._first_items(epoch, max(begin, total) - total, missing)
        return item_keys(slices)

    def _slices(self, epoch: int, begin: int, end: int) -> list[tuple[ItemTable, int, int]]:
        """Returns the items `begin` to `end - 1`, counted from the plan's first window, as slices of tables."""
        slices = []
        while begin < end:
            found = self._edges.find(epoch, begin)
            assert found is not None
            window, first = found
            table = self.windows.table(epoch, window)
            last = min(len(table), first + end - begin)
            slices.append((table, first, last))
            begin += last - first
        return slices

    def _first_items(self, epoch: int, skip: int, count: int) -> list[tuple[ItemTable, int, int]]:
        """Skips `skip` items of the epoch and returns the next `count`. After the end, continues at the beginning."""
        whole = replace(self, start=0, first_step=0) if self.start else self
        total = whole._edges.total(epoch) or 0
        slices = []
        while count:
            begin = skip % total
            some = min(count, total - begin)
            slices += whole._slices(epoch, begin, begin + some)
            skip, count = skip + some, count - some
        return slices

    @property
    def _begin(self) -> int:
        """The index of the plan's first item in its window."""
        return Place.of(self.start).item

    @property
    def _stride(self) -> int:
        return self.batch_size * self.world

    def _index(self, step: int) -> int:
        """Returns the index of this rank's first item in the step, counted as in `_slices`."""
        return self._begin + (step - self.first_step) * self._stride + self.rank * self.batch_size
