"""Histograms of durations. The buckets have a fixed relative width, so a histogram's size stays constant."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

import numpy as np
from numpy.typing import NDArray

# Four buckets for each doubling, from a microsecond to more than an hour. Shorter durations are in the first
# bucket, and longer ones in the last. The middle of a bucket differs from each of its durations by at most 10 %.
_FINE = 4
_FIRST = 10 * _FINE  # 2**10 ns
BUCKETS = 128


def bucket(ns: int) -> int:
    return min(max(int(log2(ns) * _FINE) - _FIRST, 0), BUCKETS - 1) if ns > 0 else 0


def bounds(at: int) -> tuple[float, float]:
    """Returns the lower and upper limits of a bucket, in seconds."""
    low, high = (2.0 ** ((at + more + _FIRST) / _FINE) * 1e-9 for more in (0, 1))
    return low if at else 0.0, high


def quantile(counts: Sequence[int], share: float) -> float:
    """Returns a quantile in seconds, or 0.0 if there are no durations or the quantile is in the first bucket."""
    wanted, passed = share * sum(counts), 0
    for at, count in enumerate(counts):
        passed += count
        if count and passed >= wanted:
            return sum(bounds(at)) / 2 if at else 0.0
    return 0.0


def buckets(ns: NDArray[np.int64], counts: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Returns a histogram of durations in nanoseconds. `counts[i]` is how often `ns[i]` occurs (default: once)."""
    at = (np.log2(np.maximum(ns, 1)) * _FINE).astype(np.int64) - _FIRST
    return np.bincount(at.clip(0, BUCKETS - 1), counts, BUCKETS).astype(np.int64)
