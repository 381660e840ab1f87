"""An order is a function from (epoch, position) to a sample key.

Computing a key takes the same time at any position, and no list of all keys is ever built. Only `Weighted` and
`Selected` hold an array: the caller's own weights or keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.plan._seeds import FIRST, SECOND, hashes, mix


class Order(Protocol):
    """Gives the key at each position of an epoch. An order is immutable and can be pickled.

    >>> Sequential(5).size(epoch=0), Sequential(5).at(epoch=0, positions=np.array([3, 1])).tolist()
    (5, [3, 1])
    """

    def size(self, epoch: int) -> int:
        """Returns the number of positions in the epoch."""

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the keys at these positions, in a new array. Raises IndexError for a position outside 0..size-1."""


@dataclass(frozen=True, slots=True)
class Sequential:
    """The keys 0, 1, 2, ... n-1, in every epoch.

    >>> Sequential(10**10).at(epoch=0, positions=np.array([9_999_999_999])).tolist()
    [9999999999]
    """

    n: int

    def __post_init__(self) -> None:
        _check_sizes(n=self.n)

    def size(self, epoch: int) -> int:
        return self.n

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return _checked(positions, self.n)


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Each of 0..n-1 once, in a random order that is determined by (seed, epoch).

    `count` is the number of positions. If it is less than n, some keys are left out. If it is greater, keys are
    repeated, in a different order each time.

    >>> order = Shuffled(5, seed=0)
    >>> sorted(order.at(epoch=0, positions=np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """

    n: int
    seed: int
    count: int | None = None

    def __post_init__(self) -> None:
        _check_sizes(self.count or 0, self.n)

    def size(self, epoch: int) -> int:
        return self.n if self.count is None else self.count

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        size, key = self.size(epoch), mix(self.seed, epoch)
        if size == self.n > 0:  # the permutation checks the positions itself
            return _permutation(self.n, key).at(positions)
        positions = _checked(positions, size)
        if not positions.size:
            return positions
        if size < self.n:
            return _permutation(self.n, key).at(positions)
        repeats, keys = np.divmod(positions, self.n)
        for repeat in np.unique(repeats).tolist():
            mask = repeats == repeat
            keys[mask] = _permutation(self.n, mix(key, repeat)).at(keys[mask])
        return keys


ENDLESS = 1 << 62
"""The size of an endless order."""


@dataclass(frozen=True, slots=True)
class Passes:
    """The keys 0..n-1, n..2n-1 and so on, without end. With a seed, each pass over n keys has its own random order.

    >>> Passes(3).at(0, np.array([0, 4, 7])).tolist()
    [0, 4, 7]
    """

    n: int
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_sizes(1, self.n)

    def size(self, epoch: int) -> int:
        return ENDLESS

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        positions = _checked(positions, ENDLESS)
        if self.seed is None:
            return positions
        passes, keys = np.divmod(positions, self.n)
        for number in np.unique(passes).tolist():
            here = passes == number
            keys[here] = _permutation(self.n, mix(self.seed, epoch, number)).at(keys[here])
        return passes * self.n + keys


@dataclass(frozen=True, slots=True)
class Drawn:
    """`count` keys drawn uniformly from 0..n-1, with replacement.

    >>> keys = Drawn(3, count=100, seed=0).at(epoch=0, positions=np.arange(100))
    >>> set(keys.tolist())
    {0, 1, 2}
    """

    n: int
    count: int
    seed: int

    def __post_init__(self) -> None:
        _check_sizes(self.count, self.n)

    def size(self, epoch: int) -> int:
        return self.count

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        numbers = hashes(mix(self.seed, epoch), _checked(positions, self.count))
        return _scaled(numbers, self.n).view(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Weighted:
    """`count` keys drawn by weight, with replacement. `edges` has the cumulative sums of the weights.

    >>> set(Weighted.by([0, 1, 3], count=20, seed=1).at(0, np.arange(20)).tolist())
    {1, 2}
    """

    edges: NDArray[np.float64]
    count: int
    seed: int

    @classmethod
    def by(cls, weights: ArrayLike, count: int, seed: int) -> Weighted:
        """Returns the order for these weights, which must be finite, not negative, and not all zero."""
        return cls(np.cumsum(weights, dtype=np.float64), count, seed)

    def __post_init__(self) -> None:
        _check_sizes(count=self.count)
        if not self.edges.size or not 0 < self.edges[-1] < np.inf:
            raise ValueError("the sum of the weights must be a finite number above zero.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Weighted):
            return NotImplemented
        same = (self.count, self.seed) == (other.count, other.seed)
        return same and np.array_equal(self.edges, other.edges)

    def size(self, epoch: int) -> int:
        return self.count

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        numbers = hashes(mix(self.seed, epoch), _checked(positions, self.count))
        points = (numbers >> np.uint64(11)) * 2.0**-53 * self.edges[-1]
        # Tiny weights can make the product round up to the last edge: then take the last key that has a weight.
        last = np.searchsorted(self.edges, self.edges[-1])
        keys: NDArray[np.int64] = np.minimum(np.searchsorted(self.edges, points, side="right"), last)
        return keys


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """The caller's own keys in the order given by `order`: where `order` has the value i, the key is keys[i].

    >>> Selected(Sequential(2), np.array([30, 10])).at(0, np.arange(2)).tolist()
    [30, 10]
    >>> Selected(Sequential(2), range(30, 50, 10)).at(0, np.arange(2)).tolist()
    [30, 40]
    """

    order: Order
    keys: NDArray[np.int64] | range

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Selected):
            return NotImplemented
        ours, theirs = self.keys, other.keys
        if self.order != other.order or type(ours) is not type(theirs):
            return False
        return ours == theirs if isinstance(ours, range) else np.array_equal(ours, theirs)

    def size(self, epoch: int) -> int:
        return self.order.size(epoch)

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        at, keys = self.order.at(epoch, positions), self.keys
        return keys.start + at * keys.step if isinstance(keys, range) else keys[at]


# Up to this n the permutation is a table sorted by hashes, at most 64 KB: every order is equally likely.
# The rounds need sides of about 80 to look random: with sides of 40, statistics over thousands of epochs
# (differences of positions one row apart, successors) still detect six rounds; with 90, not even five.
_TABLE = 8192
_ROUNDS = 6
_LARGEST = 1 << 62


def _scalar(value: int) -> NDArray[np.uint64]:
    # A 0-d array: ufuncs take it twice as fast as a Python or numpy scalar.
    return np.array(value, dtype=np.uint64)


_32, _FIRST, _SECOND = _scalar(32), _scalar(FIRST), _scalar(SECOND)
_ROUND_KEYS = [_scalar(mix(number)) for number in range(3 * _ROUNDS)]


class Permutation:
    """A permutation of 0..n-1 that is determined by `key`. Its values can be computed at any positions, in any order.

    Memory use does not grow with n, and the time grows only with the number of positions (about 30 ns for each, in
    blocks of thousands).

    >>> Permutation(5, key=7).at(np.arange(5)).tolist()
    [3, 4, 2, 1, 0]
    """

    # A position is a cell (row, column) of a rectangle with at least n cells. Each round rotates one coordinate by
    # a hash of the other: a Feistel network over two moduli instead of two halves of the bits. Each round is
    # invertible, so all rounds together are a bijection of the rectangle. A cell past n goes through the rounds
    # again until it falls below n (cycle walking), which makes the result a bijection of 0..n-1.
    #
    # Rejected: halves of the bits. Their domain is a power of two, up to twice n, so half of the positions would
    # walk, and a small call would pay a whole pass for each of the last few. The rectangle has fewer than sqrt(n)
    # cells too many, and most often none or one.

    __slots__ = ("_rounds", "_sides", "_table", "_whole", "key", "n")

    def __init__(self, n: int, key: int) -> None:
        if not 1 <= n <= _LARGEST:
            raise ValueError(f"a permutation needs 1 to 2**62 elements, but n is {n}.")
        self.n, self.key, self._table = n, key, None
        if n <= _TABLE:
            # All hashes differ, so every sort algorithm, on every machine, gives the same order.
            self._table = hashes(key, np.arange(n)).argsort().astype(np.int64)
        else:
            rows, columns = _rectangle(n)
            self._sides = _scalar(rows), _scalar(columns)
            self._whole = rows * columns == n
            self._rounds = [(_scalar(mix(key, r, 0)), _scalar(mix(key, r, 1) | 1)) for r in range(_ROUNDS)]

    def at(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Returns the values at these positions. Raises IndexError for a position outside 0..n-1."""
        cells = np.array(positions, dtype=np.int64).view(np.uint64)  # a copy: it becomes the result
        # As uint64 a negative position is huge, so one comparison checks both bounds.
        if cells.size and (largest := int(cells.max())) >= self.n:
            wrong = largest if largest <= _LARGEST else largest - (1 << 64)
            raise IndexError(f"position {wrong} is outside a permutation of {self.n} elements.")
        if self._table is not None:
            return self._table[cells.view(np.int64)]
        self._apply_rounds(cells)
        if not self._whole:
            outside = np.flatnonzero(cells >= self.n)
            while outside.size:
                walkers = cells[outside]
                self._apply_rounds(walkers)
                cells[outside] = walkers
                outside = outside[walkers >= self.n]
        return cells.view(np.int64)

    def _apply_rounds(self, cells: NDArray[np.uint64]) -> None:
        rows, columns = self._sides
        row = np.floor_divide(cells, columns)
        spare = np.multiply(row, columns)
        column = np.subtract(cells, spare)
        hashed = cells
        rotated, size, other, other_size = row, rows, column, columns
        for key, factor in self._rounds:
            # hashed = the upper 32 bits of two multiplications of (other ^ key)
            np.bitwise_xor(other, key, hashed)
            np.multiply(hashed, factor, hashed)
            np.right_shift(hashed, _32, spare)
            np.bitwise_xor(hashed, spare, hashed)
            np.multiply(hashed, _FIRST, hashed)
            np.right_shift(hashed, _32, hashed)
            # scaled to 0..size-1: a side is at most 2**32, so the product fits
            np.multiply(hashed, size, hashed)
            np.right_shift(hashed, _32, hashed)
            # rotated = (rotated + hashed) % size: a negative difference wraps to a huge number, so take the minimum
            np.add(rotated, hashed, rotated)
            np.subtract(rotated, size, spare)
            np.minimum(rotated, spare, out=rotated)
            rotated, size, other, other_size = other, other_size, rotated, size
        np.multiply(row, columns, cells)
        np.add(cells, column, cells)


class Permutations:
    """Random permutations of 0..n-1: one for each combination of a size n (in `sizes`) and a key.

    For many elements of the same permutation, `Permutation` is faster.
    """

    __slots__ = ("_columns", "_rows", "_sizes")

    def __init__(self, sizes: Sequence[int]) -> None:
        rows = [math.isqrt(max(n, 1) - 1) + 1 for n in sizes]
        self._sizes, self._rows = np.array(sizes, np.uint64), np.array(rows, np.uint64)
        self._columns = np.array([-(-n // side) for n, side in zip(sizes, rows, strict=True)], np.uint64)

    def at(
        self, which: NDArray[np.int64], keys: NDArray[np.uint64], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Returns one element for each entry of `positions`, possibly from different permutations.

        Entry i of the result is element `positions[i]` of the permutation that has the size `sizes[which[i]]` and the
        key `keys[i]`.
        """
        cells, sizes = positions.astype(np.uint64), self._sizes[which]
        walking = np.arange(len(cells))
        while walking.size:
            of, its = which[walking], keys[walking]
            cells[walking] = self._walked(cells[walking], self._rows[of], self._columns[of], its)
            walking = walking[cells[walking] >= sizes[walking]]
        return cells.view(np.int64)

    def _walked(
        self,
        cells: NDArray[np.uint64],
        rows: NDArray[np.uint64],
        columns: NDArray[np.uint64],
        keys: NDArray[np.uint64],
    ) -> NDArray[np.uint64]:
        first, second = np.divmod(cells, columns)
        first, second = _rotated(range(_ROUNDS), first, second, rows, columns, keys)
        # Small sides need more rounds to look random: with few elements, tables are not worth their memory here.
        small = np.flatnonzero(rows < 100)
        if small.size:
            sides = rows[small], columns[small], keys[small]
            first[small], second[small] = _rotated(range(_ROUNDS, 3 * _ROUNDS), first[small], second[small], *sides)
        return first * columns + second


def _rotated(
    rounds: range,
    one: NDArray[np.uint64],
    other: NDArray[np.uint64],
    size: NDArray[np.uint64],
    other_size: NDArray[np.uint64],
    keys: NDArray[np.uint64],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Rotates two coordinates in turn, each by a hash of the other coordinate. The number of rounds must be even."""
    for number in rounds:
        hashed = ((other + keys) ^ _ROUND_KEYS[number]) * _FIRST
        hashed ^= hashed >> _32
        hashed *= _SECOND
        one = one + ((hashed >> _32) * size >> _32)
        one = np.minimum(one, one - size)  # a negative difference wraps to a huge number
        one, size, other, other_size = other, other_size, one, size
    return one, other


@lru_cache(maxsize=64)
def _rectangle(n: int) -> tuple[int, int]:
    """Returns the sides of a rectangle that has n cells or a few more. Both sides are near sqrt(n)."""
    root = math.isqrt(n - 1) + 1
    rows = np.arange(root, root + 1 + min(root // 4, 1023), dtype=np.int64)
    columns = -(-n // rows)
    best = int(np.argmin(rows * columns))
    return int(rows[best]), int(columns[best])


# Building a permutation costs as much as computing 64 keys. Two epochs of several loaders fit.
_permutation = lru_cache(maxsize=8)(Permutation)


def _checked(positions: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Returns a copy of the positions. Raises IndexError if any position is outside 0..size-1."""
    copy = np.array(positions, dtype=np.int64)
    if copy.size and ((low := copy.min()) < 0 or copy.max() >= size):
        raise IndexError(f"positions {low} to {copy.max()} are not all inside an order of {size} samples.")
    return copy


def _scaled(numbers: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """Maps 64-bit numbers evenly to 0..n-1. Returns the upper half of number * n, computed with 32-bit digits."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    n_high, n_low = np.uint64(n >> 32), np.uint64(n & 0xFFFFFFFF)
    high, rest = numbers >> shift, numbers & low
    middle = high * n_low + (rest * n_low >> shift)
    scaled: NDArray[np.uint64] = high * n_high + (middle >> shift) + ((middle & low) + rest * n_high >> shift)
    return scaled


def _check_sizes(count: int = 0, n: int = 1) -> None:
    for name, size in (("n", n), ("count", count)):
        if not 0 <= size <= 1 << 62:
            raise ValueError(f"an order has 0 to 2**62 samples, but {name} is {size}.")
    if count and not n:
        raise ValueError(f"cannot draw {count} keys from an empty range: n is 0.")
