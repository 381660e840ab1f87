"""Programs on one table, started beside each other, share what they decode and drop nothing of each other's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from programs import side_by_side

from penstock import DataLoader
from penstock._cache import shared
from penstock.formats import Parquet

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

GROUPS, ROWS, WINDOW = 60, 200, 12

PROGRAM = """
import sys, time

import penstock
from penstock.formats import Parquet

path, seed, rank, world, begin = sys.argv[1], *map(int, sys.argv[2:])
given = {"batch_size": 10, "shuffle": "blocks", "window": 12, "seed": seed, "num_workers": 2, "shard": (rank, world)}
with penstock.DataLoader(Parquet(path), **given) as loader:
    if begin:
        with penstock.DataLoader(Parquet(path), **given | {"num_workers": 0}) as before:
            batches = iter(before)
            for _ in range(begin):
                next(batches)
            loader.load_state_dict(before.state_dict())
    batches = iter(loader)
    count = len(next(batches)["x"])
    print("ready", flush=True)
    sys.stdin.readline()
    for batch in batches:
        count += len(batch["x"])
        time.sleep(0.003)  # a training step, so that the epoch lasts for many looks of the keepers
    print(count, loader.stats().life.cache.decoded)
"""


def written(folder: Path) -> Path:
    path = folder / "some.parquet"
    pa.parquet.write_table(pa.table({"x": np.arange(GROUPS * ROWS)}), path, row_group_size=ROWS)
    return path


def programs(tmp_path: Path, *arguments: tuple[int, int, int, int]) -> list[tuple[int, int]]:
    """Runs programs at the same time; how many rows each has read, and how many row groups it has decoded."""
    path, script = written(tmp_path), tmp_path / "program.py"
    script.write_text(PROGRAM)
    commands = [[sys.executable, str(script), str(path), *map(str, each)] for each in arguments]
    said = side_by_side(commands)
    return [(int(rows), int(decoded)) for rows, decoded in said]


def test_two_programs_with_other_seeds_decode_a_row_group_at_most_once_each(tmp_path: Path) -> None:
    found = programs(tmp_path, (0, 0, 1, 0), (1, 0, 1, 0))
    assert [rows for rows, _ in found] == [GROUPS * ROWS] * 2
    # The next epoch may have begun, and a program that has just started may lose its first blocks.
    assert sum(decoded for _, decoded in found) <= 2 * GROUPS + 4 * WINDOW


def test_ranks_that_are_resumed_at_other_places_do_not_either(tmp_path: Path) -> None:
    found = programs(tmp_path, (0, 0, 2, 0), (0, 1, 2, 300))
    assert [rows for rows, _ in found] == [GROUPS * ROWS // 2, GROUPS * ROWS // 2 - 300 * 10]
    assert sum(decoded for _, decoded in found) <= 2 * GROUPS + 4 * WINDOW


def test_a_worker_that_may_not_share_blocks_decodes_each_of_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_most_own", lambda: WINDOW // 2)  # descriptors
    given = {
        "batch_size": 50,
        "shuffle": "blocks",
        "window": WINDOW,
        "seed": 0,
        "multiprocessing_context": "fork",
    }
    with DataLoader(Parquet(written(tmp_path)), num_workers=1, **given) as loader:
        assert sum(len(batch["x"]) for batch in loader) == GROUPS * ROWS
        counted = loader.stats().life.cache
    assert counted is not None and counted.decoded <= GROUPS + WINDOW  # the next epoch may have begun
