"""What this process has asked of remote stores: counted in all threads."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace

from penstock._at_work import at_work


@dataclass(slots=True)
class Traffic:
    """Counts of one process."""

    requests: int = 0
    bytes: int = 0
    retries: int = 0


_counts, _lock, _process = Traffic(), threading.Lock(), os.getpid()


def add(requests: int = 0, nbytes: int = 0, retries: int = 0) -> None:
    _begin()
    with _lock:
        _counts.requests += requests
        _counts.bytes += nbytes
        _counts.retries += retries
    source = at_work.source
    if retries and source is not None and source.cache is not None:
        source.cache.retries += retries
        source.cache.changed = True


def traffic() -> Traffic:
    """A copy of the counts so far."""
    _begin()
    with _lock:
        return replace(_counts)


def _begin() -> None:
    """Starts at zero in a forked child, with a lock that no thread of the parent holds."""
    global _counts, _lock, _process
    if _process != os.getpid():
        _counts, _lock, _process = Traffic(), threading.Lock(), os.getpid()
