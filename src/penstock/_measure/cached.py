"""Counters of remote files, their cache and the blocks of tables, and the stores that do not answer."""

from __future__ import annotations

import time
from typing import NamedTuple

from penstock._at_work import Source, at_work
from penstock._system.warnings import warn_caller

NOTICE = 10.0
"""Seconds without an answer after which the caller is warned."""

_SILENT = 600.0  # seconds until the same store may be named again; an error is raised after five minutes


class OngoingOutage(NamedTuple):
    """A store that does not answer. `store`: its name and the failure. `since`: a value of `time.perf_counter_ns`."""

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
    """Warns the caller once that a store does not answer, and says what happens next."""
    name, now = outage.store.partition(" (")[0], time.monotonic()
    if now - _warned.get(name, -_SILENT) >= _SILENT:
        _warned[name] = now
        warn_caller(
            f"The store {outage.store} has not answered for {outage.seconds:.0f} s, and batches wait for it. "
            "Requests are retried for some minutes: batches continue when the store answers, and an error is raised "
            "if it does not.",
            RuntimeWarning,
        )


class CacheCounts:
    """The counters of one worker, or of the scouts of a loader.

    `hits`: pieces that were available when a worker asked for them. `misses`: pieces that the worker waited for, for
    `waited` nanoseconds in total. `fetched`: pieces that were fetched here, ahead of time or not. `evicted`: pieces
    that were deleted to make room. `requests`: requests to stores, `retries` of them retries; `nbytes`: downloaded
    bytes. `decoded`: decoded blocks. `changed`: True if something was counted since this was set to False. `needed`:
    for scouts, the bytes of the blocks that are in use at the same time; `limit`: bytes that the cache may hold.
    `warns`: the caller cannot see these counters while it waits, so the counting thread warns of an outage.
    """

    NAMES = "hits", "misses", "waited", "fetched", "evicted", "requests", "retries", "nbytes", "decoded"
    __slots__ = (*NAMES, "changed", "limit", "needed", "outages", "warns")

    def __init__(self, *counts: int) -> None:
        self.hits, self.misses, self.waited, self.fetched, self.evicted, *rest = counts or (0,) * len(self.NAMES)
        self.requests, self.retries, self.nbytes, self.decoded = rest
        self.changed, self.warns = False, True
        self.needed = self.limit = 0
        self.outages: dict[Request, OngoingOutage] = {}  # threads of a worker may wait for several requests

    @property
    def outage(self) -> OngoingOutage | None:
        """The store that has not answered for the longest time."""
        found = tuple(self.outages.copy().values())  # other threads may change it meanwhile
        return min(found, key=lambda outage: outage.since) if found else None

    def show(self, outage: OngoingOutage | None) -> None:
        """Shows the outage to other processes; does nothing here."""

    def words(self) -> list[int]:
        return [getattr(self, name) for name in self.NAMES]


class Request:
    """A request that is retried until the store answers. Meanwhile others see the outage."""

    def __init__(self, counts: CacheCounts) -> None:
        self._counts = counts

    def failed(self, came: str, elapsed: float, until: float) -> None:
        """Records a failure after `elapsed` seconds; the request is retried after `until`. `came` names the store."""
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
"""Counters of threads that belong to no worker and no scout."""


class Counting(Source):
    """Makes a thread count for these counters: see `working_at`."""

    def __init__(self, counts: CacheCounts) -> None:
        self._counts = counts

    @property
    def cache(self) -> CacheCounts:
        return self._counts


def counting() -> CacheCounts:
    """Returns the counters of the worker or scout that this thread belongs to.

    Threads share them without a lock: under the GIL, `counts.hits += 1` is atomic if the right-hand side calls
    nothing (see `_system/interrupts.py` on where a thread may be interrupted). So add a constant or a local variable.
    """
    source = at_work.source
    counts = None if source is None else source.cache
    if counts is None:
        return outside
    counts.changed = True
    return counts
