"""A shuffle that is a function: where each position of 0..n-1 goes, without a list of n numbers.

The positions are written as pairs (row, column) of a rectangle just large enough to hold them, and each
round turns one coordinate by an amount that hashes the other: a Feistel network over two moduli in
place of two bit halves. Each round can be undone, so the whole is a bijection of the rectangle; the few
cells past n are walked on until they fall inside, which keeps it a bijection of 0..n-1.

Refused: bit halves. Their domain is a power of two, up to twice n, so half of the positions walk, and a
small call pays a whole pass for each of the last few walkers. The rectangle has fewer than sqrt(n)
cells too many, and most often none or one.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from penstock.plan._seeds import FIRST, hashes, mix

# Up to here the shuffle is a table sorted by hashes, at most 64 KB: every order is equally likely. The
# rounds need sides of some 80 values to look random: with sides of 40, statistics over thousands of
# epochs (differences of positions one row apart, successors) still see six rounds; with 90, not five.
_TABLE = 8192
_ROUNDS = 6
_LARGEST = 1 << 62


def _scalar(value: int) -> NDArray[np.uint64]:
    # An array without axes: ufuncs take it twice as fast as a Python or numpy scalar.
    return np.array(value, dtype=np.uint64)


_32 = _scalar(32)
_FIRST = _scalar(FIRST)


class Permutation:
    """The permutation of 0..n-1 that belongs to a key: any position, in any order, at any time.

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
        """Where the positions go. A position outside of 0..n-1 is an IndexError."""
        cells = np.array(positions, dtype=np.int64).view(np.uint64)  # a copy: it becomes the answer
        # A negative position is huge here, so one comparison sees both ends.
        if cells.size and (largest := int(cells.max())) >= self.n:
            wrong = largest if largest <= _LARGEST else largest - (1 << 64)
            raise IndexError(f"position {wrong} is outside of a permutation of {self.n} elements.")
        if self._table is not None:
            return self._table[cells.view(np.int64)]
        self._turn(cells)
        if not self._whole:
            outside = np.flatnonzero(cells >= self.n)
            while outside.size:
                walkers = cells[outside]
                self._turn(walkers)
                cells[outside] = walkers
                outside = outside[walkers >= self.n]
        return cells.view(np.int64)

    def _turn(self, cells: NDArray[np.uint64]) -> None:
        """All rounds, in place."""
        rows, columns = self._sides
        row = np.floor_divide(cells, columns)
        spare = np.multiply(row, columns)
        column = np.subtract(cells, spare)
        hashed = cells
        turned, size, other, other_size = row, rows, column, columns
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
            # turned = (turned + hashed) % size: below zero wraps to something huge, so the smaller is right
            np.add(turned, hashed, turned)
            np.subtract(turned, size, spare)
            np.minimum(turned, spare, out=turned)
            turned, size, other, other_size = other, other_size, turned, size
        np.multiply(row, columns, cells)
        np.add(cells, column, cells)


def _table(n: int, key: int) -> NDArray[np.int64]:
    # No two hashes are equal, so every sort, on every machine, gives the same order.
    return np.argsort(hashes(key, np.arange(n))).astype(np.int64)


@lru_cache(maxsize=64)
def _rectangle(n: int) -> tuple[int, int]:
    """Sides, near the square root, whose product is the least above n that was found: few cells walk."""
    root = math.isqrt(n - 1) + 1
    rows = np.arange(root, root + 1 + min(root // 4, 1023), dtype=np.int64)
    columns = -(-n // rows)
    best = int(np.argmin(rows * columns))
    return int(rows[best]), int(columns[best])
