"""Random numbers that depend on the step or the sample, and not on the worker.

The global generators are seeded for each step. `penstock.rng()` has a separate generator for each sample.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

from penstock._system.platform import register_at_fork
from penstock.plan._seeds import FIRST, GAMMA, MASK, SECOND, mix

# numpy documents get_bit_generator and set_bit_generator, but its stubs do not have them.
_global: Any = np.random

# `random.seed` for an int, without the type check, which takes 3 µs.
_python: Any = random.seed.__self__  # type: ignore[attr-defined]
_seed_python = super(random.Random, _python).seed

# The uses of random numbers. Each use draws its own numbers, because the light items of a stream may be read in one
# process and loaded in another, and because a sample draws its own numbers while its step is computed.
LOAD, READ, STEP, SAMPLE, REPLACE, _SPAWN = range(6)


def seed_step(seed: int, epoch: int, step: int, use: int = LOAD) -> int:
    """Seeds `random` and `numpy.random` from the arguments, and returns the seed. This takes about 8 µs."""
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
    """Returns a generator that depends only on the arguments. This takes 6 µs, less than `default_rng` (16 µs)."""
    words: Any = _Words(mix(_of_epoch(seed, epoch, use), number))  # numpy's stubs allow only its own class
    return np.random.Generator(np.random.PCG64(words))


class _Words(ISpawnableSeedSequence):
    """A seed sequence for numpy's bit generators, computed from one number. It supports `Generator.spawn`."""

    def __init__(self, state: int) -> None:
        self._state = state
        self._spawned = 0

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        # splitmix64, with the same constants as in `plan/_seeds.py`. It is three times as fast as `mix`.
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
    """Returns an integer for a key. Unlike many hashes and pickles, the integer is the same in every process."""
    if isinstance(key, (int, np.integer)):
        return int(key)
    if isinstance(key, tuple):  # item by item, because a pickle depends on which items are the same object
        return mix(*map(number_of, key))
    if isinstance(key, (set, frozenset)):
        return mix(len(key), *sorted(map(number_of, key)))
    if hasattr(key, "__array__"):  # arrays, and tensors, whose pickles differ between processes
        with suppress(Exception):
            array = np.asarray(key)
            if array.dtype.kind in "biu" and not array.ndim:
                return int(array)
            if array.dtype.kind != "O":
                return mix(number_of(array.dtype.str), *array.shape, number_of(array.tobytes()))
    if isinstance(key, (list, dict)):
        return mix(len(key), *map(number_of, key.items() if isinstance(key, dict) else key))
    if isinstance(key, (type, FunctionType, BuiltinFunctionType)):  # the module may be named differently elsewhere
        return number_of(key.__qualname__)
    from hashlib import blake2b  # late: importing it takes 3 ms, and most keys are integers

    if key is not None and not isinstance(key, (str, bytes, float, complex)):
        try:
            reduced = key.__reduce_ex__(5)
        except Exception:  # such a key cannot be sent, so only this process needs its number
            reduced = repr(key)
        return number_of(reduced[:3] if isinstance(reduced, tuple) else reduced)
    return int.from_bytes(blake2b(pickle.dumps(key, 5), digest_size=8).digest(), "little")


if TYPE_CHECKING:

    class SavedGenerators(Protocol):
        """Saved generator states. `put_back` may be called several times, even if `take` was interrupted."""

        def take(self) -> None: ...
        def put_back(self) -> None: ...


class Lending:
    """Lends generators that all threads of a process share. Several threads may borrow them at the same time.

    The first borrower saves the generators' state, and the last one restores it, so that the loan does not affect the
    program. If a thread borrows again in the middle of a step, the end of the inner loan restores the step's state.
    Two simultaneous borrowers disturb each other's random numbers. Making the second borrower wait for the first was
    rejected: the first borrower may itself be waiting for a batch from the second.
    """

    def __init__(self, saved: Callable[[], SavedGenerators]) -> None:
        self._saved = saved
        self._renew()
        register_at_fork(after_in_child=self._adopt)

    def _renew(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler in the thread that holds it may borrow too
        self._open: dict[int, GeneratorLoan] = {}  # the outermost loan of each thread

    def _adopt(self) -> None:
        """Ends the loans of the parent's other threads, which do not run in this forked child."""
        mine, others = self._open.get(threading.get_ident()), [*self._open.values()]
        saved = next((lent.saved for lent in others if lent.saved is not None), None)
        self._renew()
        if mine is not None:
            mine.saved = saved
            self._open[threading.get_ident()] = mine
        elif saved is not None:
            saved.put_back()

    def begin(self, lent: GeneratorLoan) -> None:
        me = threading.get_ident()
        with self._lock:
            if me in self._open or not self._open:
                lent.saved = self._saved()
                lent.saved.take()
            self._open.setdefault(me, lent)

    def end(self, lent: GeneratorLoan) -> None:
        me = threading.get_ident()
        with self._lock:
            outermost = self._open.get(me) is lent
            heirs = [other for thread, other in self._open.items() if thread != me] if outermost else []
            if lent.saved is not None:
                if heirs:
                    heirs[0].saved = lent.saved
                else:
                    lent.saved.put_back()
                lent.saved = None
            if outermost:
                del self._open[me]


class GeneratorLoan:
    """A loan of generators. `saved` is the state to restore, or None if another loan will restore the state."""

    saved: SavedGenerators | None = None


class Borrowed:
    """A loan (see `with_loan`) of the caller's global random generators, seeded for a step. Takes about 50 µs."""

    def __init__(self, seed: int, epoch: int, step: int, use: int = LOAD) -> None:
        self._of = seed, epoch, step, use
        self._lent = GeneratorLoan()

    def begin(self) -> int:
        _lending.begin(self._lent)
        return seed_step(*self._of)

    def end(self) -> None:
        _lending.end(self._lent)


class _PythonAndNumpyState:
    """The states of `random` and `numpy.random`. Numpy's state is saved and restored in a few microseconds.

    `numpy.random.get_state` and `set_state` copy 624 numbers one by one, in 170 µs together. Copying the generator's
    memory, whose address is public in numpy, takes 1 µs. But numpy draws normal numbers in pairs, and keeps the
    second number of a pair outside that memory. To find out whether numpy has such a number, a normal number is
    drawn. If drawing does not change the memory, then numpy had kept the drawn number.
    """

    # mt19937: 624 words and the position.
    _SIZE = 625 * 4

    def __init__(self) -> None:
        self._python: Any = None
        self._generator: Any = None
        self._whole: Any = None
        self._address = 0
        self._raw = b""
        self._drawn: list[Any] = []  # the normal number
        self._is_kept: bool | None = None  # True if numpy had kept the normal number; None until that is known

    def take(self) -> None:
        self._python = random.getstate()
        generator: Any = _global.get_bit_generator()
        if isinstance(generator, np.random.MT19937):
            self._address = generator.ctypes.state_address
            self._raw = ctypes.string_at(self._address, self._SIZE)
            self._generator = generator
            # This runs only C code, so that an interrupt cannot lose the number.
            self._drawn.extend(map(np.random.standard_normal, (None,)))
            self._look()
        else:
            self._whole = np.random.get_state(legacy=False)
            self._generator = generator

    def _look(self) -> None:
        if self._is_kept is None:
            self._is_kept = ctypes.string_at(self._address, self._SIZE) == self._raw

    def put_back(self) -> None:
        if self._python is not None:
            random.setstate(self._python)
        if self._generator is None:
            return
        if _global.get_bit_generator() is not self._generator:
            _global.set_bit_generator(self._generator)
        if self._whole is not None:
            np.random.set_state(self._whole)
            return
        if not self._drawn:
            return  # interrupted before anything was changed
        self._look()
        np.random.seed(0)  # drops a normal number that the step has left over
        ctypes.memmove(self._address, self._raw, self._SIZE)
        if self._is_kept:
            state: Any = np.random.get_state(legacy=False)
            np.random.set_state({**state, "has_gauss": 1, "gauss": self._drawn[0]})


_lending = Lending(_PythonAndNumpyState)
