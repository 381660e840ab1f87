"""Random numbers that belong to a step or a sample, so that it does not matter who computes it.

The global generators are set for each step; `penstock.rng()` makes one for each sample that asks.
"""

from __future__ import annotations

import ctypes
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

from penstock.plan._seeds import FIRST, GAMMA, MASK, SECOND, mix

# numpy documents these two, but its stubs do not have them.
_global: Any = np.random

# What `random.seed` does for an int, without the 3 µs that it takes to find out that it is one.
_python: Any = random.seed.__self__  # type: ignore[attr-defined]
_seed_python = super(random.Random, _python).seed

# What is drawn for. Reading a stream's light items and loading them may happen in two places, and a sample
# draws beside its step: each has its own numbers.
LOAD, READ, STEP, SAMPLE, REPLACE, _SPAWN = range(6)


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


def generator(seed: int, epoch: int, number: int, use: int) -> np.random.Generator:
    """A new generator that is a function of these. About 6 µs; numpy's own way, `default_rng`, takes 16."""
    words: Any = _Words(mix(_of_epoch(seed, epoch, use), number))  # numpy's stubs allow only its own class
    return np.random.Generator(np.random.PCG64(words))


class _Words(ISpawnableSeedSequence):
    """The words that a bit generator begins with, from one number; and numbers for those spawned from it."""

    def __init__(self, state: int) -> None:
        self._state = state
        self._spawned = 0

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        # splitmix64, which seeds.py takes its constants from: a third of what `mix` takes for each.
        words, state = [], self._state
        for _ in range(n_words):
            state = state + GAMMA & MASK
            word = (state ^ state >> 30) * FIRST & MASK
            word = (word ^ word >> 27) * SECOND & MASK
            words.append(word ^ word >> 31)
        return np.array(words, np.uint64).astype(dtype, copy=False)

    def spawn(self, n_children: int) -> list[_Words]:
        first, self._spawned = self._spawned, self._spawned + n_children
        return [_Words(mix(self._state, at, _SPAWN)) for at in range(first, self._spawned)]


def number_of(key: object) -> int:
    """A key as an integer, the same in every process: Python's `hash` is not, nor is a pickle of many things."""
    if isinstance(key, (int, np.integer)):
        return int(key)
    if isinstance(key, tuple):  # part by part: a pickle of the whole also tells which parts are one object
        return mix(*map(number_of, key))
    if isinstance(key, (set, frozenset)):
        return mix(len(key), *sorted(map(number_of, key)))
    if hasattr(
        key, "__array__"
    ):  # numpy's, and tensors, which tell another process of themselves in other words
        with suppress(Exception):
            array = np.asarray(key)
            if array.dtype.kind in "biu" and not array.ndim:
                return int(array)
            if array.dtype.kind != "O":
                return mix(number_of(array.dtype.str), *array.shape, number_of(array.tobytes()))
    if isinstance(key, (list, dict)):
        return mix(len(key), *map(number_of, key.items() if isinstance(key, dict) else key))
    if isinstance(
        key, (type, FunctionType, BuiltinFunctionType)
    ):  # where it comes from differs with how it came
        return number_of(key.__qualname__)
    from hashlib import blake2b  # late: 3 ms, and most keys are integers

    if key is not None and not isinstance(key, (str, bytes, float, complex)):
        try:
            reduced = key.__reduce_ex__(5)
        except Exception:  # a key that never left this process
            reduced = repr(key)
        return number_of(reduced[:3] if isinstance(reduced, tuple) else reduced)
    return int.from_bytes(blake2b(pickle.dumps(key, 5), digest_size=8).digest(), "little")


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
