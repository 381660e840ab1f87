"""An order is a function from (epoch, position) to a sample key."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.plan.permutation import Permutation
from penstock.plan.seeds import mix


class Order(Protocol):
    """Which key stands at each position of an epoch: a plain value, free of state, ready to be pickled."""

    def size(self, epoch: int) -> int:
        """The number of positions in the epoch."""
        ...

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The keys at these positions. A position outside of 0..size-1 is an IndexError."""
        ...


@dataclass(frozen=True, slots=True)
class Sequential:
    """0, 1, 2, ... n-1, in every epoch."""

    n: int

    def __post_init__(self) -> None:
        _check_size(self.n)

    def size(self, epoch: int) -> int:
        return self.n

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        keys = np.array(positions, dtype=np.int64)
        if keys.size and (keys.min() < 0 or keys.max() >= self.n):
            raise IndexError(
                f"positions {keys.min()} to {keys.max()} do not all lie in an order of {self.n} samples."
            )
        return keys


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Each of 0..n-1 once, in an order that belongs to (seed, epoch)."""

    n: int
    seed: int

    def __post_init__(self) -> None:
        _check_size(self.n)

    def size(self, epoch: int) -> int:
        return self.n

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.n == 0:
            return Sequential(0).at(epoch, positions)
        return _permutation(self.n, mix(self.seed, epoch)).at(positions)


# Making one costs about as much as asking it for 64 keys. Two epochs and a second loader fit.
@lru_cache(maxsize=8)
def _permutation(n: int, key: int) -> Permutation:
    return Permutation(n, key)


def _check_size(n: int) -> None:
    if not 0 <= n <= 1 << 62:
        raise ValueError(f"an order has 0 to 2**62 samples, but n is {n}.")
