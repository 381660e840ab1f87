"""`stats()` counts requests, bytes, retries, cache hits and seconds waited: what the server saw, on all backends."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import standin

import penstock
from penstock._files import remote as remotefile
from penstock.formats import Parquet, Tokens
from penstock.stats import CacheFigures, Stats
from remote.serving import Server
from tests.stores import threads, until

ROWS, GROUP = 2000, 100
BLOCKS = ROWS // GROUP
BACKENDS: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"num_workers": 2, "backend": "thread", "persistent_workers": False},
    "processes": {"num_workers": 2, "persistent_workers": False},
}


pytestmark = pytest.mark.usefixtures("warmed_up")


def table(folder: Path, server: Server, cache: Path | bool) -> Parquet:
    """A table of which each row group is a piece. The requests that opened it are not logged."""
    pa.parquet.write_table(pa.table({"x": np.arange(ROWS)}), folder / "some.parquet", row_group_size=GROUP)
    data = Parquet(f"{server.url}/some.parquet", cache=cache)
    server.log.clear()
    return data


@pytest.fixture(params=[True, False], ids=["in a folder", "in memory"])
def opened(request: pytest.FixtureRequest, folder: Path, server: Server, cache: Path) -> Parquet:
    return table(folder, server, request.param and cache / "own")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    return BACKENDS[request.param]


def read_through(data: Parquet, **given: Any) -> Stats:
    """The figures of a loader that has read an epoch, and fetches nothing more."""
    with penstock.DataLoader(data, batch_size=20, seed=1, shuffle="blocks", **given) as loader:
        assert sorted(np.concatenate([batch["x"] for batch in loader])) == [*range(ROWS)]
    until(lambda: not threads())
    return loader.stats()


def counted(stats: Stats) -> CacheFigures:
    assert stats.life.cache is not None
    return stats.life.cache


def sent(server: Server) -> int:
    """The bytes that were asked for."""
    spans = [span.removeprefix("bytes=").split("-") for _, _, span in server.log]
    return sum(int(last) + 1 - int(first) for first, last in spans)


def test_requests_and_bytes(opened: Parquet, server: Server, backend: dict[str, Any]) -> None:
    found = counted(read_through(opened, **backend))
    assert found.requests == len(server.log) >= BLOCKS
    assert found.nbytes == sent(server)
    assert found.retries == 0


def test_requests_of_workers_on_other_machines(folder: Path, server: Server) -> None:
    with standin.standing_in(standin.LocalCluster()):
        found = counted(read_through(table(folder, server, False), num_workers=2, backend="standin"))
    assert (found.requests, found.nbytes) == (len(server.log), sent(server))
    assert found.requests >= BLOCKS


def test_retries(opened: Parquet, server: Server, backend: dict[str, Any]) -> None:
    numbers, refused = count(), list[str]()

    def status(path: str) -> int:
        if next(numbers) % 4 != 1:
            return 0
        refused.append(path)
        return 503

    server.status = status
    found = counted(read_through(opened, **backend))
    assert found.retries == len(refused) >= BLOCKS // 4
    assert found.requests == len(server.log) == found.fetched + found.retries


def test_hits(folder: Path, server: Server, cache: Path, backend: dict[str, Any]) -> None:
    read_through(table(folder, server, cache / "own"))
    found = counted(read_through(table(folder, server, cache / "own"), **backend))
    assert found.hits == found.decoded >= BLOCKS  # a block is one piece
    assert (found.misses, found.waited, found.fetched, found.requests, found.nbytes) == (0, 0.0, 0, 0, 0)
    assert not server.log


def test_seconds_waited(folder: Path, server: Server, backend: dict[str, Any]) -> None:
    data = table(folder, server, False)
    server.latency = 0.05
    stats = read_through(data, **backend)
    found = counted(stats)
    assert found.misses >= found.requests == len(server.log)
    assert server.latency * found.requests <= found.waited <= sum(worker.busy for worker in stats.life.workers)


def test_pieces_that_are_waited_for_at_once_count_once(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remotefile, "PIECE", 2000)
    np.arange(20_000, dtype=np.uint16).tofile(folder / "ids.bin")
    data = Tokens(f"{server.url}/ids.bin", "uint16", length=50, cache=False)
    server.log.clear()
    server.latency = 0.05
    with penstock.DataLoader(data, batch_size=100, seed=1, shuffle=True) as loader:
        list(loader)
        first = loader.stats().epoch
        list(loader)
        second = loader.stats().epoch
    assert first.cache is not None and second.cache is not None
    assert first.cache.misses == first.cache.requests == len(server.log) == 20
    assert server.latency <= first.cache.waited <= first.waits.total
    assert second.cache.hits > 0 == second.cache.misses == second.cache.requests


def test_figures_show_them_all(opened: Parquet, tmp_path: Path) -> None:
    with penstock.DataLoader(opened, batch_size=20) as loader:
        list(loader)
        loader.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for name in ("pieces fetched", "requests to stores", "blocks decoded"):
        assert name in str(loader.stats()) and name in page


def test_what_opens_a_dataset_is_not_counted_by_a_loader(opened: Parquet) -> None:
    before = penstock.DataLoader(opened).stats()
    opened[0]
    assert before.life.cache is None and penstock.DataLoader(opened).stats().life.cache is None
