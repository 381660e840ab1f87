"""Remote files with a cache: each piece is fetched once, ahead of time, and each block is decoded once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import penstock
from penstock._files import remote as remotefile
from penstock.formats import Parquet, TextLines, Tokens
from penstock.formats import _extents as extents
from penstock.formats import _tokens as tokens
from penstock.testing._laws import same
from remote.serving import Server

SMALL = 2000  # bytes of pieces and blocks


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((remotefile, "PIECE"), (extents, "BLOCK"), (tokens, "BLOCK")):
        monkeypatch.setattr(module, name, SMALL)


def written(folder: Path) -> dict[str, Any]:
    """Files of each kind, and how they are opened."""
    np.arange(20_000, dtype=np.uint16).tofile(folder / "ids.bin")
    (folder / "some.txt").write_text("".join(f"line {number}\n" for number in range(4000)))
    return {
        "ids.bin": lambda path, **more: Tokens(path, "uint16", length=50, **more),
        "some.txt": TextLines,
    }


def asked_for(server: Server, name: str) -> Counter[str]:
    """How often each range of a file was asked for."""
    return Counter(span for method, path, span in server.log if method == "GET" and path == f"/{name}")


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", ["ids.bin", "some.txt"])
@pytest.mark.parametrize("shuffle", ["blocks", True])
def test_each_piece_is_fetched_once(folder: Path, server: Server, cache: Path, name: str, shuffle: Any) -> None:
    opened = written(folder)[name]
    local = opened(folder / name)
    given = {"batch_size": 20, "seed": 1, "shuffle": shuffle}
    plain = [list(penstock.DataLoader(local, **given)) for _ in range(1)]
    data = opened(f"{server.url}/{name}", cache=cache / "own")
    server.log.clear()
    with penstock.DataLoader(data, num_workers=2, backend="thread", **given) as loader:
        same(list(loader), plain[0])
        list(loader)
        counted = loader.stats().life.cache
    spans = asked_for(server, name)
    pieces = -(-(folder / name).stat().st_size // SMALL)
    # To make the index of a text, all of it was read before the log was cleared.
    assert len(spans) == (pieces if name == "ids.bin" else 0) and set(spans.values()) <= {1}
    assert counted is not None and counted.fetched == len(spans) and counted.evicted == 0


def test_each_block_is_fetched_and_decoded_once_for_all_workers(folder: Path, server: Server, cache: Path) -> None:
    rows, group = 2000, 100
    lists = pa.ListArray.from_arrays(np.arange(0, 8 * rows + 1, 8, dtype=np.int32), np.arange(8 * rows))
    pa.parquet.write_table(pa.table({"ids": lists}), folder / "some.parquet", row_group_size=group)
    given: dict[str, Any] = {"batch_size": 20, "seed": 1, "shuffle": "blocks", "window": 6}
    plain = list(penstock.DataLoader(Parquet(folder / "some.parquet"), **given))
    data = Parquet(f"{server.url}/some.parquet", cache=cache / "own")
    server.log.clear()
    with penstock.DataLoader(data, num_workers=2, **given) as loader:
        same(list(loader), plain)
        counted = loader.stats().life.cache
    assert counted is not None and counted.fetched == rows // group
    assert once(counted.decoded, rows // group, window=6)
    assert [*asked_for(server, "some.parquet").values()] == [1] * (rows // group)


def test_a_local_table_is_decoded_once_and_needs_no_cache(folder: Path) -> None:
    rows, group = 2000, 100
    pa.parquet.write_table(pa.table({"x": np.arange(rows)}), folder / "some.parquet", row_group_size=group)
    data = Parquet(folder / "some.parquet")
    with penstock.DataLoader(data, batch_size=20, seed=1, shuffle="blocks", num_workers=2) as loader:
        assert sorted(np.concatenate([batch["x"] for batch in loader])) == [*range(rows)]
        counted = loader.stats().life.cache
    assert counted is not None and counted.fetched == 0
    assert once(counted.decoded, rows // group)


def test_ranks_on_one_machine_decode_each_block_once(folder: Path) -> None:
    rows, group, world = 4000, 100, 2
    pa.parquet.write_table(pa.table({"x": np.arange(rows)}), folder / "some.parquet", row_group_size=group)
    given: dict[str, Any] = {"batch_size": 20, "seed": 1, "shuffle": "blocks", "num_workers": 2}
    ranks = [
        penstock.DataLoader(Parquet(folder / "some.parquet"), shard=(rank, world), **given) for rank in range(world)
    ]
    with ranks[0], ranks[1]:
        found = [batch["x"] for step in zip(*ranks, strict=True) for batch in step]
        decoded = [loader.stats().life.cache for loader in ranks]
    assert sorted(np.concatenate(found)) == [*range(rows)]
    assert once(sum(one.decoded for one in decoded if one is not None), rows // group)


def once(decoded: int, blocks: int, window: int = 16) -> bool:
    """Whether all blocks were decoded once. The first steps of the next epoch may have begun by then."""
    return blocks <= decoded <= blocks + window
