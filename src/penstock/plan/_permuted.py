"""The numbers 0 to n-1 in a random order, as a sequence that takes no memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.plan._order import Permutation
from penstock.plan._seeds import mix

_AT_ONCE = 1 << 16


class Permuted(Sequence[int]):
    """Each of 0..n-1 once, in an order that is determined by `seed`. Any element can be computed without the others.

    >>> Permuted(5, seed=1)[0], sorted(Permuted(5, seed=1))
    (0, [0, 1, 2, 3, 4])
    """

    __slots__ = ("_permutation", "n", "seed")

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed
        self._permutation = Permutation(n, mix(seed)) if n else None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.at(np.arange(*index.indices(self.n)))
        return self.at([index]).item()

    def at(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Returns the elements at these positions. Negative positions count from the end."""
        places = np.asarray(positions, np.int64)
        if places.size and places.min() < 0:
            places = np.where(places < 0, places + self.n, places)
        if self._permutation is None and places.size:
            raise IndexError(f"position {places[0]} is outside a permutation of 0 elements.")
        return places if self._permutation is None else self._permutation.at(places)

    def __iter__(self) -> Iterator[int]:
        for first in range(0, self.n, _AT_ONCE):
            yield from self.at(np.arange(first, min(self.n, first + _AT_ONCE))).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.at(np.arange(self.n)).astype(dtype or np.int64, copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Permuted, (self.n, self.seed)
