"""The global random generators, set for each step, so that it does not matter who computes it."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.plan.seeds import mix

# numpy documents these two, but its stubs do not have them.
_global: Any = np.random

# What `random.seed` does for an int, without the 3 µs that it takes to find out that it is one.
_python: Any = random.seed.__self__  # type: ignore[attr-defined]
_seed_python = super(random.Random, _python).seed

# Reading a stream's light items and loading them may happen in two places: each has its own numbers.
LOAD, READ = 0, 1


def seed_step(seed: int, epoch: int, step: int, use: int = LOAD) -> int:
    """Sets `random` and `numpy.random` to a function of (seed, epoch, step, use), and returns it. About 8 µs."""
    state = mix(_of_epoch(seed, epoch, use), step)
    _seed_python(state)
    _python.gauss_next = None
    # 32 bits, because a longer seed costs numpy 20 µs more.
    np.random.seed((state ^ state >> 32) & 0xFFFFFFFF)
    return state


@lru_cache(maxsize=16)
def _of_epoch(seed: int, epoch: int, use: int) -> int:
    return mix(seed, epoch, use)


@contextmanager
def borrowed_generators(seed: int, epoch: int, step: int, use: int = LOAD) -> Iterator[int]:
    """For a step in the caller's own process: its generators are put back as they were. About 50 µs."""
    ours, theirs = random.getstate(), _NumpyState()
    state = seed_step(seed, epoch, step, use)
    try:
        yield state
    finally:
        random.setstate(ours)
        theirs.put_back()


class _NumpyState:
    """The state of `numpy.random`, taken and put back in a few microseconds.

    `numpy.random.get_state` and `set_state` copy 624 numbers one by one and take 170 µs together.
    The generator's memory, whose address numpy makes public, is copied in 1 µs. It lacks only the
    second of a pair of normal numbers, which numpy keeps where nobody can see it: if drawing a
    normal number leaves the generator as it was, then that was the one kept.
    """

    # mt19937: 624 words and the position.
    _SIZE = 625 * 4

    def __init__(self) -> None:
        self._generator: Any = _global.get_bit_generator()
        self._whole: Any = None
        if not isinstance(self._generator, np.random.MT19937):
            self._whole = np.random.get_state(legacy=False)
            return
        self._address = self._generator.ctypes.state_address
        self._raw = ctypes.string_at(self._address, self._SIZE)
        normal = np.random.standard_normal()
        self._kept = normal if ctypes.string_at(self._address, self._SIZE) == self._raw else None

    def put_back(self) -> None:
        if _global.get_bit_generator() is not self._generator:
            _global.set_bit_generator(self._generator)
        if self._whole is not None:
            np.random.set_state(self._whole)
            return
        np.random.seed(0)  # forgets a normal number that the step left behind
        ctypes.memmove(self._address, self._raw, self._SIZE)
        if self._kept is not None:
            state: Any = np.random.get_state(legacy=False)
            np.random.set_state({**state, "has_gauss": 1, "gauss": self._kept})
