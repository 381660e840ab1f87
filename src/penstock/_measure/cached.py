"""Counts reads of remote files, cache hits and decoded table blocks, and tracks stores that do not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock._at_work import Source, at_work
from penstock._system.perthread import PerThread
from penstock._system.warnings import warn_caller

NOTICE = 10.0
"""The caller is warned after this many seconds without an answer from a store."""

_SILENT = 600.0  # seconds between two warnings about the same store; requests raise an error after five minutes


class OngoingOutage(NamedTuple):
    """A store that does not answer.

    `store` names the store and the failure. `since` is a `perf_counter_ns()` time.
    """

    store: str
    since: int

    @property
    def is_long(self) -> bool:
        return self.seconds >= NOTICE

    @property
    def seconds(self) -> float:
        return max(0.0, (time.perf_counter_ns() - self.since) * 1e-9)


_warned: dict[str, float] = {}  # by store: the time of the last warning


def warn_of(outage: OngoingOutage) -> None:
    """Warns the caller that a store does not answer, at most once every ten minutes for each store."""
    name, now = outage.store.partition(" (")[0], time.monotonic()
    if now - _warned.get(name, -_SILENT) >= _SILENT:
        _warned[name] = now
        warn_caller(
            f"The store {outage.store} has not answered for {outage.seconds:.0f} s, and batches wait for it. "
            "Requests are retried for some minutes: batches continue when the store answers, and an error is raised "
            "if it does not.",
            RuntimeWarning,
        )


_NAMES = "hits", "misses", "waited", "fetched", "evicted", "requests", "retries", "nbytes", "decoded"


class ThreadCounts:
    """The cache counters of one thread, as in `penstock.stats.CacheFigures`, but with `waited` in nanoseconds."""

    __slots__ = _NAMES

    def __init__(self, *counts: int) -> None:
        self.hits, self.misses, self.waited, self.fetched, self.evicted, *rest = counts or (0,) * len(_NAMES)
        self.requests, self.retries, self.nbytes, self.decoded = rest


class CacheCounts:
    """The cache counters of one worker, or of a loader's scouts (threads that download data ahead of time).

    Each thread has its own counters, and the attributes named in `NAMES` are the sums over all threads. Only scouts
    set `needed` and `limit`. `changed` becomes True when a counter may have changed, and stays True until a reader
    resets `changed`. If `warns` is True, the counting thread warns about outages, because the caller cannot see these
    counters.
    """

    NAMES = _NAMES
    __slots__ = ("_before", "_threads", "changed", "limit", "needed", "outages", "warns")

    def __init__(self, *counts: int) -> None:
        self._before = ThreadCounts(*counts)
        self._threads = PerThread(ThreadCounts)
        self.changed, self.warns = False, True
        self.needed = self.limit = 0
        self.outages: dict[Request, OngoingOutage] = {}  # threads of a worker may wait for several requests

    @property
    def outage(self) -> OngoingOutage | None:
        found = tuple(self.outages.copy().values())  # other threads may change it meanwhile
        return min(found, key=lambda outage: outage.since) if found else None

    def show(self, outage: OngoingOutage | None) -> None:
        """Does nothing. A subclass may show `outage` to other processes."""

    def mine(self) -> ThreadCounts:
        return self._threads.mine()

    def words(self) -> list[int]:
        return [getattr(self, name) for name in self.NAMES]

    def sums(self, read: Callable[[ThreadCounts], tuple[int, ...]]) -> tuple[int, ...]:
        """Returns the sums of some counters, which `read` finds in those of one thread."""
        return self._threads.sums(read, self._before)

    def __getattr__(self, name: str) -> Any:
        if name not in _NAMES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return sum(getattr(counts, name) for counts in [self._before, *self._threads.all()])


class Request:
    """A request to a store. From a failed attempt to the end of the `with` block, the counters show an outage."""

    def __init__(self, counts: CacheCounts) -> None:
        self._counts = counts

    def failed(self, came: str, elapsed: float, until: float) -> None:
        """Records that an attempt failed. `came` names the store and the failure.

        `elapsed` and `until` are the times of the failure and of the next attempt, in seconds after the request was
        sent.
        """
        outage = OngoingOutage(came, time.perf_counter_ns() - int(elapsed * 1e9))
        self._counts.outages[self] = outage
        self._counts.show(self._counts.outage)
        if self._counts.warns and until >= NOTICE:
            warn_of(outage)

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *error: object) -> None:
        if self._counts.outages.pop(self, None) is not None:
            self._counts.show(self._counts.outage)


outside = CacheCounts()
"""The counters of threads that belong neither to a worker nor to a scout."""


class Counting(Source):
    """A `Source` that makes `counting()` return these counters inside a `working_at` block."""

    def __init__(self, counts: CacheCounts) -> None:
        self._counts = counts

    @property
    def cache(self) -> CacheCounts:
        return self._counts


def counting() -> ThreadCounts:
    """Returns the calling thread's own counters, which are part of `cache_counts()`."""
    counts = cache_counts()
    counts.changed = True
    return counts.mine()


def cache_counts() -> CacheCounts:
    """Returns the counters of the worker or scout that the calling thread belongs to, or `outside`."""
    source = at_work.source
    counts = None if source is None else source.cache
    return outside if counts is None else counts
