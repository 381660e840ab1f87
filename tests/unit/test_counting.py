"""Threads that count for one worker lose nothing, although they take no lock."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from penstock._at_work import working_at
from penstock._measure.cached import CacheCounts, Counting, counting


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_lose_no_count() -> None:
    counts, each = CacheCounts(), 20_000

    def count() -> None:
        with working_at(Counting(counts)):
            for nbytes in range(each):
                counting().requests += 1
                counting().nbytes += nbytes

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counts.requests, counts.nbytes) == (4 * each, 4 * sum(range(each)))
    assert counts.changed
