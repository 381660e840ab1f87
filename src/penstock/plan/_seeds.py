"""Mixes integers into seeds by 64-bit arithmetic, with the same result on every machine.

All randomness in penstock starts from a number that is a function of (seed, epoch, step, ...). Any process can
compute this number again, with the same result.
"""

from __future__ import annotations

from typing import SupportsInt

import numpy as np
from numpy.typing import NDArray

from penstock._system.interrupts import import_whole

MASK = (1 << 64) - 1
# The odd constants of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
GAMMA = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB


def mix(*parts: SupportsInt) -> int:
    """Returns one 64-bit integer that depends on every bit of every part, and on the order of the parts.

    Parts may be negative or of any size. A call takes about 1 µs for three parts of at most 64 bits.

    >>> mix(0, 1) != mix(1, 0) and mix(0) != mix(0, 0) and mix(-1) != mix(MASK)
    True
    """
    state = len(parts) * GAMMA & MASK
    for part in parts:
        word = part if type(part) is int else int(part)
        if word >> 64:
            word = _fold(word)
        # Each line is a bijection of the state, so two lists that differ in one part never collide.
        state = (state ^ word) * FIRST & MASK
        state ^= state >> 32
    state = state * SECOND & MASK
    state = (state ^ state >> 29) * FIRST & MASK
    return state ^ state >> 32


def hashes(key: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Returns a 64-bit hash of each non-negative number. Different numbers never collide under the same key."""
    state = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(GAMMA) + np.uint64(mix(key))
    state = (state ^ state >> np.uint64(30)) * np.uint64(FIRST)
    state = (state ^ state >> np.uint64(27)) * np.uint64(SECOND)
    return state ^ state >> np.uint64(31)


def _fold(number: int) -> int:
    """Returns a 64-bit hash of an integer outside 0..2**64-1. The hash also covers the sign."""
    words = [1 if number < 0 else 0]
    number = abs(number)
    while number:
        words.append(number & MASK)
        number >>= 64
    return mix(*words)


def draw_key(generator: np.random.Generator | None) -> int:
    """Draws a key from the generator, or from numpy's global state if the generator is None."""
    if generator is None:
        import_whole("numpy.random")
        return int(np.random.randint(0, 1 << 63, dtype=np.uint64))
    return int(generator.integers(0, 1 << 63, dtype=np.uint64))


def check_generator(generator: object) -> None:
    if generator is not None and not isinstance(generator, np.random.Generator):
        kind = f"{type(generator).__module__}.{type(generator).__qualname__}"
        raise TypeError(
            f"generator must be a numpy.random.Generator or None, but it is a {kind}. Make one with "
            "numpy.random.default_rng(seed); a torch.Generator belongs to the classes of penstock.torch."
        )
