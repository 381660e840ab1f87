"""Packs documents of different lengths into rows of a fixed length, one window of documents at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock.plan._budget import LengthTable
from penstock.plan._order import ENDLESS, Order, Permutation
from penstock.plan._samplers import positive
from penstock.plan._seeds import mix
from penstock.plan._windows import ItemTable, Memo, count_of

Int64s = NDArray[np.int64]

PACKED_TOGETHER = 100_000
"""Default number of documents in a window."""

_APART = 100
"""For every `_APART` rows, one extra row is allowed, so that copies of a document can be in different rows."""

METHODS = ("best_fit", "concat")
OVERFLOWS = ("split", "truncate", "drop", "error")


@dataclass(frozen=True, slots=True)
class PackingFigures:
    """How well the rows of `penstock.pack` are filled, and what happened to documents that are too long.

    The figures in `loader.stats()` are about the window of documents that the current batch is from, for all ranks.

    - `documents`, `rows`, `tokens`, `padding`: how many there are. Tokens include those that are appended (`eos`).
    - `split`, `truncated`, `dropped`: the numbers of these documents. `split_tokens` are all their tokens, and
      `truncated_tokens` and `dropped_tokens` those that are in no row.
    - `empty`: the number of documents without tokens.
    - `repeated`: how many documents, or parts of one, are in a row with another copy of the same document.
    - `fill`: the share of the rows that is not padding, from 0 to 1.

    >>> import numpy as np, penstock
    >>> documents = penstock.dataset([np.zeros(length, int) for length in (3, 5, 8)]).with_lengths(len)
    >>> loader = penstock.DataLoader(penstock.pack(documents, length=8), seed=0)
    >>> batches = list(loader)
    >>> loader.stats().packing.rows, loader.stats().packing.fill
    (2, 1.0)
    """

    documents: int = 0
    rows: int = 0
    tokens: int = 0
    padding: int = 0
    split: int = 0
    split_tokens: int = 0
    truncated: int = 0
    truncated_tokens: int = 0
    dropped: int = 0
    dropped_tokens: int = 0
    empty: int = 0
    repeated: int = 0
    fill: float = 1.0  # computed

    def __post_init__(self) -> None:
        if self.rows:
            object.__setattr__(self, "fill", self.tokens / (self.tokens + self.padding))

    def plus(self, other: PackingFigures) -> PackingFigures:
        names = [each.name for each in fields(self) if each.name != "fill"]
        return PackingFigures(*(getattr(self, name) + getattr(other, name) for name in names))


class _Placed(NamedTuple):
    """Parts of documents that are to be placed in rows. `sizes` has a column for each kind of cost."""

    keys: Int64s
    begins: Int64s
    sizes: Int64s


@dataclass(frozen=True, slots=True)
class PackWindows:
    """Packs the documents of each window into rows. A window is a range of positions of the order.

    `lengths` and `capacities` have one entry for each kind of cost. The first kind counts tokens. A part of a row is
    (document's key, begin, end), where begin and end are token indices. `extra` tokens are appended to each document
    that is not empty, and count as its last tokens.

    With "best_fit", copies of a document (from several passes over a small source) are kept in different rows where
    possible, by exchanging documents of equal size and by adding up to 1% more rows.

    The parts of a row are in the order of the window. The rows are in the order of their first parts, or shuffled if
    there is a seed.

    >>> from penstock.plan._order import Sequential
    >>> windows = PackWindows(Sequential(4), (LengthTable([3, 6, 1, 2]),), (4,))
    >>> offsets, parts = windows.table(epoch=0, number=0)
    >>> [parts[a:b].tolist() for a, b in zip(offsets[:-1], offsets[1:])]
    [[[0, 0, 3], [2, 0, 1]], [[1, 0, 4]], [[1, 4, 6], [3, 0, 2]]]
    """

    order: Order
    lengths: tuple[LengthTable, ...]
    capacities: tuple[int, ...]
    method: str = "best_fit"
    overflow: str = "split"
    extra: int = 0
    window: int = PACKED_TOGETHER
    seed: int | None = None
    _made: Memo[tuple[ItemTable, PackingFigures]] = field(
        default_factory=lambda: Memo(2), init=False, compare=False, repr=False
    )
    _sizes: Memo[int] = field(default_factory=lambda: Memo(1 << 16), init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        positive("window", self.window)
        for capacity in self.capacities:
            positive("length", capacity)
        for name, value, allowed in (("method", self.method, METHODS), ("overflow", self.overflow, OVERFLOWS)):
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
        if len(self.capacities) > 1 and self.overflow in ("split", "truncate"):
            raise ValueError(
                f"overflow={self.overflow!r} needs one kind of length, but there are {len(self.capacities)}: which "
                "part of a document has how much of each kind is not known. Pass overflow='drop' or 'error'."
            )

    def count(self, epoch: int) -> int | None:
        return count_of(self.order, self.window, epoch)

    def size(self, epoch: int, number: int) -> int:
        return self._sizes.get((epoch, number), lambda: len(self.table(epoch, number)))

    def table(self, epoch: int, number: int) -> ItemTable:
        return self._packed(epoch, number)[0]

    def figures(self, epoch: int, number: int) -> PackingFigures:
        return self._packed(epoch, number)[1]

    def _packed(self, epoch: int, number: int) -> tuple[ItemTable, PackingFigures]:
        return self._made.get((epoch, number), lambda: self._pack(epoch, number))

    def _pack(self, epoch: int, number: int) -> tuple[ItemTable, PackingFigures]:
        first = number * self.window
        keys = self.order.at(epoch, np.arange(first, min(first + self.window, self.order.size(epoch))))
        pieces, figures = self._pieces(keys)
        rows, count = self._rows(pieces)
        documents = pieces.keys % max(1, len(self.lengths[0]))  # other keys are copies: see `LengthTable`
        again = repeated_in(rows, documents)
        if again and self.method == "best_fit":
            rows, count = self._apart(pieces, documents, rows, count)
            again = repeated_in(rows, documents)
        figures = replace(figures, rows=count, repeated=again)
        if self.seed is None:
            rows = _by_first_piece(rows, count)
        elif count:
            rows = Permutation(count, mix(self.seed, epoch, number)).at(rows)
        tokens = pieces.sizes[:, 0]
        padding = count * self.capacities[0] - int(tokens.sum())
        return _tabulated(pieces, rows, count), replace(figures, padding=padding)

    def _apart(self, pieces: _Placed, documents: Int64s, rows: Int64s, count: int) -> tuple[Int64s, int]:
        """Moves copies of a document to different rows where possible, with at most 1% more rows."""
        if len(self.capacities) == 1:
            sizes = pieces.sizes[:, 0]
            others, needed = best_fit(sizes, self.capacities[0], most_in_a_row(sizes, documents))
            if needed - count <= count // _APART:
                rows, count = others, needed
        return spread(rows, documents, pieces.sizes), count

    def _pieces(self, keys: Int64s) -> tuple[_Placed, PackingFigures]:
        """Applies `overflow` to long documents. Returns the parts to be placed, and the figures known so far."""
        sizes = np.stack([table.of(keys) for table in self.lengths], axis=1)
        some = (sizes > 0).any(axis=1)
        empty = len(keys) - int(some.sum())
        if empty:
            keys, sizes = keys[some], sizes[some]
        sizes[:, 0] += self.extra
        large = (sizes > self.capacities).any(axis=1)
        long = sizes[large, 0]
        count, tokens, cut = int(large.sum()), int(sizes[:, 0].sum()), 0
        figures = PackingFigures(documents=len(keys) + empty, empty=empty)
        if not count:
            pass
        elif self.overflow == "error":
            self._refuse(keys[large][0], sizes[large][0])
        elif self.overflow == "drop":
            cut = int(long.sum())
            figures = replace(figures, dropped=count, dropped_tokens=cut)
            keys, sizes = keys[~large], sizes[~large]
        elif self.overflow == "truncate":
            cut = int(long.sum()) - count * self.capacities[0]
            figures = replace(figures, truncated=count, truncated_tokens=cut)
            sizes = np.minimum(sizes, self.capacities[0])
        figures = replace(figures, tokens=tokens - cut)
        if self.overflow != "split":
            return _Placed(keys, np.zeros(len(keys), np.int64), sizes), figures
        stops = np.cumsum(sizes[:, 0])
        starts = stops - sizes[:, 0] if self.method == "concat" else np.zeros(len(keys), np.int64)
        pieces, is_split = _cut(keys, starts, sizes[:, 0], self.capacities[0])
        split_tokens = int(sizes[is_split, 0].sum())
        return pieces, replace(figures, split=int(is_split.sum()), split_tokens=split_tokens)

    def _refuse(self, key: np.int64, sizes: Int64s) -> NoReturn:
        extra = f", {self.extra} of them appended to it" if self.extra else ""
        raise ValueError(
            f"document {key} has a length of {_listed(sizes.tolist())}{extra}, but a row has room for "
            f"{_listed(self.capacities)}. Raise length=, or choose overflow='split', 'truncate' or 'drop'."
            if len(sizes) == 1
            else f"document {key} has lengths of {_listed(sizes.tolist())}, but a row has room for "
            f"{_listed(self.capacities)}. Raise length=, or choose overflow='drop'."
        )

    def _rows(self, pieces: _Placed) -> tuple[Int64s, int]:
        """Returns the row of each piece, and the number of rows."""
        if self.method == "concat":
            return next_fit(pieces.sizes, self.capacities)
        if len(self.capacities) == 1:
            return best_fit(pieces.sizes[:, 0], self.capacities[0])
        return best_fit_by_kinds(pieces.sizes, self.capacities)


def _listed(numbers: list[int] | tuple[int, ...]) -> str:
    return " and ".join(f"{number:,}" for number in numbers)


def _cut(keys: Int64s, starts: Int64s, sizes: Int64s, capacity: int) -> tuple[_Placed, NDArray[np.bool_]]:
    """Cuts documents at multiples of `capacity`. Document i begins at the position `starts[i]`.

    Returns the parts, and a mask of the documents that were cut.
    """
    first = starts // capacity
    counts = (starts + sizes - 1) // capacity - first + 1
    document = np.repeat(np.arange(len(keys)), counts)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    edge = (first[document] + nth) * capacity - starts[document]  # where the row begins, counted in the document
    begins = np.maximum(edge, 0)
    ends = np.minimum(edge + capacity, sizes[document])
    return _Placed(keys[document], begins, (ends - begins)[:, np.newaxis]), counts > 1


def _by_first_piece(rows: Int64s, count: int) -> Int64s:
    first = np.empty(count, np.int64)
    first[rows[::-1]] = np.arange(len(rows))[::-1]  # of several values for one place, the last one is kept
    number = np.empty(count, np.int64)
    number[np.argsort(first)] = np.arange(count)
    return number[rows]


def _tabulated(pieces: _Placed, rows: Int64s, count: int) -> ItemTable:
    order = np.argsort(rows.astype(np.uint16) if count <= 1 << 16 else rows, kind="stable")
    parts = np.empty((len(order), 3), np.int64)
    parts[:, 0] = pieces.keys[order]
    begins = parts[:, 1] = pieces.begins[order]
    np.add(begins, pieces.sizes[order, 0], out=parts[:, 2])
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    return ItemTable(offsets, parts)


def best_fit(sizes: Int64s, capacity: int, most: Mapping[int, int] = {}) -> tuple[Int64s, int]:  # never changed
    """Assigns sizes (1 to `capacity`) to rows, largest first. Returns the row of each size, and the number of rows.

    Each size goes to the fullest row that has room for it. Many sizes are equal, so few steps are needed: one step
    places equal sizes into rows that have equal free space. A row gets at most `most[size]` pieces of a size.

    >>> best_fit(np.array([2, 5, 3, 4, 1, 1]), capacity=6)
    (array([1, 0, 2, 1, 0, 2]), 3)
    """
    if not len(sizes):
        return np.empty(0, np.int64), 0
    # numpy sorts 16-bit numbers by their digits, five times as fast as others.
    left = capacity - sizes
    order = np.argsort(left.astype(np.uint16) if capacity <= 1 << 16 else left, kind="stable")
    descending = sizes[order]
    edges = np.flatnonzero(np.diff(descending, prepend=-1, append=-1))
    free, steps, rows = _FreeRows(), list[tuple[int, int, int]](), 0
    for need, count in zip(descending[edges[:-1]].tolist(), np.diff(edges).tolist(), strict=True):
        limit, limited = most.get(need, capacity), list[tuple[int, int, int]]()
        while count:
            found = free.take(need)
            if found is None:
                space, first, some = capacity, rows, -(-count // min(capacity // need, limit))
                rows += some
            else:
                space, first, some = found
            # A row that takes one of equal sizes has the least free space afterwards, so it takes as many as fit.
            each = min(space // need, limit)
            full = min(some, count // each)
            if full:
                steps.append((first, full * each, each))
                if each < limit:
                    free.add(space - each * need, first, full)
                else:
                    limited.append((space - each * need, first, full))
            count -= full * each
            first, some = first + full, some - full
            if some and count:
                steps.append((first, count, count))
                free.add(space - count * need, first, 1)
                count, first, some = 0, first + 1, some - 1
            free.add(space, first, some)
        for ranges in limited:
            free.add(*ranges)
    firsts, placed, each_row = np.array(steps, np.int64).T
    at = np.arange(len(sizes)) - np.repeat(np.cumsum(placed) - placed, placed)
    assigned = np.empty(len(sizes), np.int64)
    assigned[order] = np.repeat(firsts, placed) + at // np.repeat(each_row, placed)
    return assigned, rows


def most_in_a_row(sizes: Int64s, documents: Int64s) -> dict[int, int]:
    """Returns how many pieces of each size a row may have, so that copies of a document can be in different rows.

    The result has only the sizes of documents with copies. Let n be the number of pieces of one size, and q the most
    copies of one document among these pieces. If no row has more than n // q of the pieces, `spread` can separate all
    copies.

    >>> most_in_a_row(np.array([3, 3, 3, 3, 5]), np.array([7, 7, 8, 9, 6]))
    {3: 2}
    """
    order = np.lexsort((documents, sizes))
    sizes, documents = sizes[order], documents[order]
    begins = np.flatnonzero((np.diff(sizes, prepend=-1) != 0) | (np.diff(documents, prepend=-1) != 0))
    copies, of = np.diff(begins, append=len(sizes)), sizes[begins]
    edges = np.flatnonzero(np.diff(of, prepend=-1))
    most, counts = np.maximum.reduceat(copies, edges), np.add.reduceat(copies, edges)
    found = zip(of[edges].tolist(), most.tolist(), counts.tolist(), strict=True)
    return {size: count // copies for size, copies, count in found if copies > 1}


def repeated_in(rows: Int64s, documents: Int64s) -> int:
    """Returns how many pieces are in a row with an earlier piece of the same document.

    >>> repeated_in(np.array([0, 0, 1, 0]), np.array([7, 8, 7, 7]))
    1
    """
    if not len(rows):
        return 0
    if documents.max() < 64 * len(documents):  # most windows have each document once, which is seen without sorting
        seen = np.zeros(documents.max() + 1, np.bool_)
        seen[documents] = True
        if np.count_nonzero(seen) == len(documents):
            return 0
    if (int(rows.max()) + 1) * (int(documents.max()) + 1) < ENDLESS:
        both = np.sort(rows * (documents.max() + 1) + documents)
        return int((both[1:] == both[:-1]).sum())
    order = np.lexsort((documents, rows))
    rows, documents = rows[order], documents[order]
    return int(((rows[1:] == rows[:-1]) & (documents[1:] == documents[:-1])).sum())


def spread(rows: Int64s, documents: Int64s, sizes: Int64s) -> Int64s:
    """Exchanges pieces of equal size between rows, to keep copies of a document apart as far as possible.

    Copies of a document have equal sizes, so each size is handled separately.

    >>> spread(np.array([0, 0, 1, 1]), np.array([7, 7, 8, 9]), np.array([[3]] * 4))
    array([0, 1, 0, 1])
    """
    order = np.lexsort((documents, rows))
    again = (np.diff(rows[order]) == 0) & (np.diff(documents[order]) == 0)
    found = rows.copy()
    for size in np.unique(sizes[order[1:][again]], axis=0):
        equal = np.flatnonzero((sizes == size).all(axis=1))
        found[equal] = _spread_equal(rows[equal], documents[equal])
    return found


def _spread_equal(rows: Int64s, documents: Int64s) -> Int64s:
    """Returns new rows for pieces of one size. The number of these pieces in each row stays the same."""
    numbers, room = np.unique(rows, return_counts=True)
    open_rows = list(zip((-room).tolist(), numbers.tolist(), strict=True))  # those with most room first
    heapify(open_rows)
    of, copies = np.unique(documents, return_inverse=True, return_counts=True)[1:]
    found, last = np.full(len(rows), -1), 0
    order = (-copies[of] * len(rows) + of).argsort(kind="stable")  # all copies of a document, the most copies first
    for count in np.sort(copies)[::-1].tolist():
        if count == 1:
            break
        # Copies of one document in the rows that have most room: a greedy choice, which is optimal (Gale and Ryser).
        taken = [heappop(open_rows) for _ in range(min(count, len(open_rows)))]
        found[order[last : last + len(taken)]] = [row for _, row in taken]
        for room_left, row in taken:
            if room_left < -1:
                heappush(open_rows, (room_left + 1, row))
        last += count
    left = [row for room_left, row in open_rows for _ in range(-room_left)]
    found[found < 0] = left
    return found


class _FreeRows:
    """The rows that are not full, by their free space. Rows with consecutive numbers are kept as one range."""

    __slots__ = ("_of", "_spaces")

    def __init__(self) -> None:
        self._spaces: list[int] = []
        self._of: dict[int, list[tuple[int, int]]] = {}

    def add(self, space: int, first: int, count: int) -> None:
        if space and count:
            ranges = self._of.setdefault(space, [])
            if not ranges:
                insort(self._spaces, space)
            ranges.append((first, count))

    def take(self, need: int) -> tuple[int, int, int] | None:
        """Removes a range of the fullest rows with room for `need`. Returns (space, first row, count).

        Returns None if no row has enough room.
        """
        at = bisect_left(self._spaces, need)
        if at == len(self._spaces):
            return None
        space = self._spaces[at]
        ranges = self._of[space]
        first, count = ranges.pop()
        if not ranges:
            del self._spaces[at]
        return space, first, count


# The free space of a row is measured by the sum of its shares, in integers, so that it is the same everywhere.
_WHOLE = 1 << 20


def best_fit_by_kinds(sizes: Int64s, capacities: tuple[int, ...]) -> tuple[Int64s, int]:
    """Like `best_fit`, but with several kinds of cost: piece i fits into a row if there is room for it in every kind.

    For each kind, a piece takes a share of a row's capacity. The size of the piece is the sum of these shares, and
    the free space of a row is measured in the same way. The largest piece is placed first. Each piece goes to the
    fullest row that has room for it. The running time grows with the number of rows that are not full.

    >>> best_fit_by_kinds(np.array([[9, 1], [5, 0], [5, 1], [1, 1]]), (10, 1))
    (array([0, 1, 1, 2]), 3)
    """
    shares = (sizes * _WHOLE // np.array(capacities)).sum(axis=1)
    order = np.argsort(-shares, kind="stable")
    # The smallest size that is still to come, in each kind: a row with less room in any kind is full.
    least = np.minimum.accumulate(sizes[order][::-1])[::-1]
    free = np.empty((len(capacities), len(sizes)), np.int64)
    slack, names = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    assigned = np.empty(len(sizes), np.int64)
    rows = is_open = 0
    for turn, item in enumerate(order.tolist()):
        if turn % 256 == 0:
            some = np.flatnonzero((free[:, :is_open] >= least[turn][:, np.newaxis]).all(axis=0))
            free[:, : len(some)], slack[: len(some)], names[: len(some)] = free[:, some], slack[some], names[some]
            is_open = len(some)
        fits = free[0, :is_open] >= sizes[item, 0]
        for kind in range(1, len(capacities)):
            fits &= free[kind, :is_open] >= sizes[item, kind]
        fitting = np.flatnonzero(fits)
        if len(fitting):
            at = int(fitting[slack[fitting].argmin()])
        else:
            at = is_open
            free[:, at], slack[at], names[at] = capacities, _WHOLE * len(capacities), rows
            is_open, rows = is_open + 1, rows + 1
        free[:, at] -= sizes[item]
        slack[at] -= shares[item]
        assigned[item] = names[at]
    return assigned, rows


def next_fit(sizes: Int64s, capacities: tuple[int, ...]) -> tuple[Int64s, int]:
    """Fills one row after another. Returns the row of each size, and the number of rows.

    >>> next_fit(np.array([[3], [1], [2], [3]]), (4,))
    (array([0, 0, 1, 2]), 3)
    """
    sums = [np.cumsum(column).tolist() for column in sizes.T]
    edges, end = [0], len(sizes)
    while edges[-1] < end:
        at = edges[-1]
        before = [column[at - 1] if at else 0 for column in sums]
        limits = zip(sums, before, capacities, strict=True)
        edges.append(min(bisect_right(column, done + room, at) for column, done, room in limits))
    return np.repeat(np.arange(len(edges) - 1), np.diff(edges)), len(edges) - 1
