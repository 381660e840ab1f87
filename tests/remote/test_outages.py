"""A store that does not answer: the caller is told after some seconds, and `penstock top` and the verdict name it."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import penstock
from penstock._engine import engine
from penstock._files.pieces import PiecesInMemory
from penstock._files.remote import RemoteFile
from penstock._measure import cached
from penstock._measure.cached import CacheCounts, OngoingOutage, Request, cache_counts
from penstock._measure.gauges import Gauge, Gauges
from penstock._remote.store import remotes
from penstock._tools import top as top
from penstock.stats import Stats
from remote.serving import Server


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "NOTICE", 0.3)
    monkeypatch.setattr(engine, "_LOOK_FOR_OUTAGES", 0.05)
    monkeypatch.setattr(cached, "_warned", {})


class Letters:
    """One letter of a remote file for each key."""

    def __init__(self, url: str, length: int) -> None:
        ((remote, key),) = remotes([url], {})
        self.file, self.length = RemoteFile(remote, remote.find(key), PiecesInMemory()), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> np.ndarray:
        return np.frombuffer(self.file.read(key, 1), np.uint8).copy()


def told(act: Callable[[], Any]) -> list[str]:
    """The warnings of an action, and what `act` did with each."""
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *rest: said.append(str(message))  # type: ignore[assignment]
        act()
    return said


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_workers": 1, "backend": "thread"}, {"num_workers": 1}],
    ids=["inline", "thread", "process"],
)
def test_a_store_that_does_not_answer_is_named_once_and_the_epoch_goes_on(
    folder: Path, server: Server, settings: dict[str, Any]
) -> None:
    (folder / "letters").write_bytes(b"abcdefgh")
    dataset = Letters(f"{server.url}/letters", 8)
    seen: list[Stats] = []
    pages: list[str] = []

    def look(message: Any, *rest: Any) -> None:
        seen.append(loader.stats())
        console = Console(width=300, file=None)
        with console.capture() as shown:
            console.print(top.view(top.loaders(os.getpid()), None, time.time()))
        pages.append(shown.get())
        said.append(str(message))

    said: list[str] = []
    with (
        warnings.catch_warnings(),
        penstock.DataLoader(dataset, batch_size=4, seed=0, **settings) as loader,
    ):
        warnings.simplefilter("always")
        warnings.showwarning = look  # type: ignore[assignment]
        server.status = lambda path: 0 if said else 503  # until the caller was told
        found = [bytes(batch.ravel()) for batch in loader]
        assert found == [b"abcd", b"efgh"]
        assert loader.stats().outage is None
    (message,) = said
    host = server.url.removeprefix("http://")
    assert message.startswith(f"The store http://{host} (") and "503" in message
    assert "has not answered for" in message and "an error is raised if it does not" in message
    if settings:
        (stats,) = seen
        assert stats.outage is not None and host in stats.outage.store and stats.outage.seconds > 0.3
        assert stats.verdict.startswith(f"Your loop waits for the store http://{host} (")
        assert f"waits for the store http://{host}" in pages[0]


def test_a_short_outage_is_no_news(folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "NOTICE", 60.0)
    (folder / "letters").write_bytes(b"abcd")
    dataset = Letters(f"{server.url}/letters", 4)
    failures = iter([503, 503])
    server.status = lambda path: next(failures, 0)

    def read() -> None:
        with penstock.DataLoader(dataset, num_workers=1, backend="thread", seed=0) as loader:
            assert len(list(loader)) == 4
            assert loader.stats().outage is None

    assert told(read) == []


# The parts.


def test_of_several_requests_the_longest_is_shown_until_all_are_answered() -> None:
    gauges = Gauges(None)
    counts = Gauge(gauges, 0, 1, time.process_time_ns).cache
    with Request(counts) as first:
        first.failed("s3://a (503)", 5.0, 6.0)
        with Request(counts) as second:
            second.failed("s3://b (500)", 9.0, 10.0)
            found = gauges.outage([0])
            assert found is not None and found.store == "s3://b (500)" and 9 <= found.seconds < 60
        assert (found := gauges.outage([0])) is not None and found.store == "s3://a (503)"
    assert gauges.outage([0]) is None


def test_an_error_ends_an_outage_too() -> None:
    counts = CacheCounts()
    counts.warns = False
    request = Request(counts)
    request.failed("s3://a (503)", 5.0, 6.0)
    with pytest.raises(LookupError), request:
        raise LookupError
    assert counts.outage is None


def test_threads_of_one_worker_may_wait_at_the_same_time() -> None:
    counts = CacheCounts()
    counts.warns = False

    def wait() -> None:
        for _ in range(300):
            with Request(counts) as request:
                request.failed("s3://a (503)", 1.0, 2.0)
                assert counts.outage is not None

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts.outage is None


def test_a_store_is_named_again_only_after_a_long_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(cached.time, "monotonic", lambda: now)
    outage = OngoingOutage("s3://a (503)", time.perf_counter_ns())
    assert len(told(lambda: [cached.warn_of(outage) for _ in range(3)])) == 1
    assert len(told(lambda: cached.warn_of(OngoingOutage("s3://a (500)", outage.since)))) == 0
    assert len(told(lambda: cached.warn_of(OngoingOutage("s3://b (503)", outage.since)))) == 1
    now += 601
    assert len(told(lambda: cached.warn_of(outage))) == 1


def test_where_nobody_looks_the_thread_that_waits_tells_it() -> None:
    def wait() -> None:
        with Request(cache_counts()) as request:
            request.failed("s3://a (503)", 0.0, 0.1)
            assert not seen
            request.failed("s3://a (503)", 0.1, 0.4)

    seen: list[str] = []
    assert len(told(wait)) == 1
