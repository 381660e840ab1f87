"""The cost of `prefetch` beyond its one copy: `python -m bench.prefetch` exits with 1 if it is too high.

The copy is measured in the same process, alternating with prefetch, and into as many buffers: a single buffer would
stay in the cache. The fastest rounds of both are compared, because other load on the machine only adds time; the
medians are printed too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import penstock

DEPTH, HOLD = 16, 4
LIMIT = 100e-6  # seconds beyond the copy of a 10 MB batch


def copies(source: Any, dtype: Any, count: int) -> float:
    """Seconds for each of `count` copies of the array."""
    buffers = [np.empty(source.shape, dtype or source.dtype) for _ in range(DEPTH + HOLD)]
    for buffer in buffers:
        np.copyto(buffer, source)
    begun = time.perf_counter()
    for turn in range(count):
        np.copyto(buffers[turn % len(buffers)], source)
    return (time.perf_counter() - begun) / count


def batches(ahead: Any, count: int) -> float:
    """Seconds for each of `count` batches, taken as fast as they come; each is dropped before the next."""
    for _ in range(2 * (DEPTH + HOLD)):
        next(ahead)
    begun = time.perf_counter()
    for _ in range(count):
        next(ahead)
    return (time.perf_counter() - begun) / count


def measure(name: str, source: Any, dtype: Any, rounds: int, count: int) -> float:
    """Print a row and return the seconds beyond the copy, in the fastest rounds."""

    def endless() -> Iterator[Any]:
        while True:
            yield source

    with penstock.prefetch(endless, depth=DEPTH, hold=HOLD, dtype=dtype) as ahead:
        pairs = [(copies(source, dtype, count), batches(ahead, count)) for _ in range(rounds)]
    (copy, copy_median), (batch, batch_median) = (
        (min(column), statistics.median(column)) for column in zip(*pairs, strict=True)
    )
    print(
        f"{name:<32}{copy * 1e6:8.0f} µs a copy (median {copy_median * 1e6:.0f}){batch * 1e6:8.0f} µs a batch "
        f"(median {batch_median * 1e6:.0f}){(batch - copy) * 1e6:8.0f} µs beyond the copy",
        flush=True,
    )
    return batch - copy


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--count", type=int, default=200)
    given = parser.parse_args()
    large = np.random.default_rng(0).random((256, 3, 64, 53), np.float32)  # 10.4 MB
    pixels = np.zeros((256, 3, 64, 53), np.uint8)
    beyond = measure("10 MB of float32", large, None, given.rounds, given.count)
    measure("10 MB of float32, from uint8", pixels, np.float32, given.rounds, given.count)
    measure("4 KB of float32", large.ravel()[:1024], None, given.rounds, 20 * given.count)
    print(f"required: less than {LIMIT * 1e6:.0f} µs beyond the copy of 10 MB")
    return 0 if beyond < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
