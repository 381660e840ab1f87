"""Ranks that are programs of their own, each with workers: a machine fetches and decodes each block once an epoch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from remote.serving import Server

WORLD, EPOCHS, WINDOW, BATCH = 2, 2, 6, 20

RANK = """
import json, os, sys
import penstock
from penstock.formats import Parquet, Tar, Tokens

rank, settings, opened = int(sys.argv[1]), json.loads(sys.argv[2]), eval(sys.argv[3])
with penstock.DataLoader(opened, shard=(rank, 2), **settings) as loader:
    for _ in range(2):
        for batch in loader:
            keys = batch["x"] if isinstance(batch, dict) else batch[:, 0]
            print(json.dumps(list(map(int, keys))), flush=True)
            sys.stdin.readline()  # as ranks do that wait for each other in each step
    cache = loader.stats().life.cache
    print(json.dumps([cache.fetched, cache.decoded]), flush=True)
    sys.stdin.readline()
"""


def held(pids: set[int]) -> int:
    """How many decoded blocks these processes and their workers hold."""
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if pids & ancestors(int(folder.parent.name)):
                for link in folder.iterdir():
                    if os.readlink(link) == "/memfd:penstock-block (deleted)":
                        found.add(link.stat().st_ino)
        except OSError:  # it has ended
            continue
    return len(found)


def ancestors(pid: int) -> set[int]:
    found = {pid}
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.add(pid)
    return found


def read(server: Server, cache: Path, dataset: str) -> tuple[list[list[int]], list[int], list[int], int]:
    """The keys of each epoch, what all ranks fetched and decoded, how often each range was asked for, and the most
    blocks that were held."""
    settings = {"batch_size": BATCH, "seed": 1, "shuffle": "blocks", "window": WINDOW, "num_workers": 2}
    environment = {**os.environ, "PENSTOCK_CACHE": str(cache)}
    keys, most = list[int](), 0
    with ExitStack() as stack:
        ranks = []
        for rank in range(WORLD):
            command = [sys.executable, "-c", RANK, str(rank), json.dumps(settings), dataset]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            ranks.append(stack.enter_context(subprocess.Popen(command, env=environment, **pipes)))
            stack.callback(ranks[-1].kill)
        pids, counted = {rank.pid for rank in ranks}, [0, 0]
        while True:
            lines = [json.loads(rank.stdout.readline()) for rank in ranks]
            if len(keys) % (4 * WORLD * BATCH) == 0:  # it takes some milliseconds
                most = max(most, held(pids))
            is_over = len(lines[0]) == 2
            for line in lines:
                counted = [sum(both) for both in zip(counted, line, strict=True)] if is_over else counted
                keys += [] if is_over else line
            for rank in ranks:
                rank.stdin.write("\n")
                rank.stdin.flush()
            if is_over:
                break
        assert [rank.wait(30) for rank in ranks] == [0] * WORLD
    n = len(keys) // EPOCHS
    return [keys[:n], keys[n:]], counted, list(Counter(ranges(server)).values()), most


def ranges(server: Server) -> list[tuple[str, str]]:
    """The ranges of files that were asked for, but for short ones: lengths, first bytes, and ends of tables."""
    log = [(path, span) for method, path, span in server.log if method == "GET"]
    bounds = [(*map(int, span.removeprefix("bytes=").split("-")),) for _, span in log]
    return [each for each, (first, last) in zip(log, bounds, strict=True) if last - first > 512]


def test_a_table(folder: Path, server: Server, cache: Path) -> None:
    rows, group = 4000, 200
    for name in "ab":
        table = pa.table({"x": np.arange(rows) + rows * (name == "b"), "more": np.zeros(rows)})
        pa.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=group)
    paths = [f"{server.url}/{name}.parquet" for name in "ab"]
    blocks = 2 * rows // group
    epochs, (fetched, decoded), asked, most = read(server, cache, f"Parquet({paths!r}, keep=0)")
    assert [sorted(keys) for keys in epochs] == [[*range(2 * rows)]] * EPOCHS and epochs[0] != epochs[1]
    # Blocks are fetched once: the second epoch finds them in the cache. Each rank reads the footers.
    assert fetched == asked.count(1) == blocks and {*asked} == {1, WORLD}
    # Each block is decoded once an epoch, by one of four workers; a few stay for the next epoch.
    assert EPOCHS * blocks - WINDOW <= decoded <= EPOCHS * blocks + WINDOW
    assert WINDOW - 1 <= most <= 2 * WINDOW


def tar(path: Path, numbers: range) -> None:
    with tarfile.open(path, "w") as archive:
        for number in numbers:
            for name, content in (("x", f"{number}".encode()), ("more", bytes(500))):
                about = tarfile.TarInfo(f"{number:06d}.{name}")
                about.size = len(content)
                archive.addfile(about, BytesIO(content))


@pytest.mark.parametrize("kind", ["tar", "tokens"])
def test_files_that_are_not_decoded_by_blocks(folder: Path, server: Server, cache: Path, kind: str) -> None:
    """Each file is one piece. Those of tars are fetched when their index is made, by the rank that is first."""
    for number in range(40):
        samples = range(20 * number, 20 * number + 20)
        if kind == "tar":
            tar(folder / f"{number:02d}", samples)
        else:
            np.repeat(np.array(samples, np.uint16), 50).tofile(folder / f"{number:02d}")
    paths = [f"{server.url}/{number:02d}" for number in range(40)]
    more = "decode={'x': int, 'more': len}" if kind == "tar" else "dtype='uint16', length=50"
    epochs, (fetched, decoded), asked, most = read(server, cache, f"{kind.capitalize()}({paths!r}, {more})")
    assert [sorted(keys) for keys in epochs] == [[*range(800)]] * EPOCHS and epochs[0] != epochs[1]
    assert asked == [1] * 40 and (decoded, most) == (0, 0)
    assert fetched == (0 if kind == "tar" else 40)
