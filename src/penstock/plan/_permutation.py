"""A random permutation that is computed position by position, without a list of n numbers.

A position is a cell (row, column) of a rectangle with at least n cells. Each round rotates one coordinate by
a hash of the other: a Feistel network over two moduli instead of two halves of the bits. Each round is
invertible, so all rounds together are a bijection of the rectangle. A cell past n goes through the rounds
again until it falls below n (cycle walking), which makes the result a bijection of 0..n-1.

Refused: halves of the bits. Their domain is a power of two, up to twice n, so half of the positions would
walk, and a small call would pay a whole pass for each of the last few. The rectangle has fewer than sqrt(n)
cells too many, and most often none or one.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from penstock.plan._seeds import FIRST, hashes, mix

# Up to this n the permutation is a table sorted by hashes, at most 64 KB: every order is equally likely.
# The rounds need sides of about 80 to look random: with sides of 40, statistics over thousands of epochs
# (differences of positions one row apart, successors) still detect six rounds; with 90, not even five.
_TABLE = 8192
_ROUNDS = 6
_LARGEST = 1 << 62


def _scalar(value: int) -> NDArray[np.uint64]:
    # A 0-d array: ufuncs take it twice as fast as a Python or numpy scalar.
    return np.array(value, dtype=np.uint64)


_32 = _scalar(32)
_FIRST = _scalar(FIRST)


class Permutation:
    """The permutation of 0..n-1 that a key determines, computed at any positions, in any order.

    Memory does not grow with n, and time only with the number of positions asked for (about 30 ns each
    in blocks of thousands).

    >>> Permutation(5, key=7).at(np.arange(5)).tolist()
    [3, 4, 2, 1, 0]
    """

    __slots__ = ("_rounds", "_sides", "_table", "_whole", "key", "n")

    def __init__(self, n: int, key: int) -> None:
        if not 1 <= n <= _LARGEST:
            raise ValueError(f"a permutation needs 1 to 2**62 elements, but n is {n}.")
        self.n = n
        self.key = key
        self._table = _table(n, key) if n <= _TABLE else None
        if self._table is None:
            rows, columns = _rectangle(n)
            self._sides = _scalar(rows), _scalar(columns)
            self._whole = rows * columns == n
            self._rounds = [(_scalar(mix(key, r, 0)), _scalar(mix(key, r, 1) | 1)) for r in range(_ROUNDS)]

    def at(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """The values at these positions. Raises IndexError for a position outside 0..n-1."""
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
        """Applies all rounds in place."""
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


def _table(n: int, key: int) -> NDArray[np.int64]:
    # All hashes differ, so every sort algorithm, on every machine, gives the same order.
    return np.argsort(hashes(key, np.arange(n))).astype(np.int64)


@lru_cache(maxsize=64)
def _rectangle(n: int) -> tuple[int, int]:
    """Sides near sqrt(n) with the smallest product of at least n that was found, so that few cells walk."""
    root = math.isqrt(n - 1) + 1
    rows = np.arange(root, root + 1 + min(root // 4, 1023), dtype=np.int64)
    columns = -(-n // rows)
    best = int(np.argmin(rows * columns))
    return int(rows[best]), int(columns[best])
