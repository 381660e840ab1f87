"""Ranges over nginx, through a proxy that breaks answers: for ten seconds, or PENSTOCK_SOAK seconds."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from remote.serving import breaking

import penstock
from penstock.errors import RemoteFileNotFound
from penstock.formats import JsonLines, Parquet, Tar, Tokens

N = 600


@pytest.fixture(scope="module")
def files(served: Path) -> Path:
    rng = np.random.default_rng(0)
    rng.integers(0, 50_000, 40_000 * N // 10, np.uint16).tofile(served / "ids.bin")
    table = pa.table({"ids": list(rng.integers(0, 9, (N, 64))), "text": [f"row {row}" for row in range(N)]})
    pa.parquet.write_table(table, served / "table.parquet", row_group_size=10)
    with tarfile.open(served / "shard.tar", "w") as tar:
        for number in range(N):
            info = tarfile.TarInfo(f"{number:06}.npy")
            content = io.BytesIO()
            np.save(content, rng.integers(0, 255, 5000, np.uint8))
            info.size = len(content.getvalue())
            tar.addfile(info, io.BytesIO(content.getvalue()))
    (served / "lines.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in range(N)))
    return served


def opened(base: Any, **how: Any) -> penstock.StackDataset:
    tokens = Tokens(f"{base}/ids.bin", "uint16", 4000, **how)
    assert len(tokens) == N
    return penstock.StackDataset(
        ids=tokens,
        table=Parquet(f"{base}/table.parquet", **how),
        tar=Tar(f"{base}/shard.tar", **how),
        lines=JsonLines(f"{base}/lines.jsonl", **how),
    )


def digest(value: Any, into: Any) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            into.update(name.encode())
            digest(inner, into)
    else:
        into.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())


def hashes(loader: Any, epochs: int) -> list[str]:
    found = []
    for _ in range(epochs):
        into = hashlib.sha256()
        for batch in loader:
            digest(batch, into)
        found.append(into.hexdigest())
    return found


def test_broken_answers_change_no_batch_and_lose_none(nginx: str, files: Path, capfd: Any) -> None:
    settings: dict[str, Any] = {"batch_size": 25, "shuffle": True, "seed": 7}
    with penstock.DataLoader(opened(files), **settings) as local:
        expected = hashes(local, 2)
    until, rounds, faults = time.monotonic() + float(os.environ.get("PENSTOCK_SOAK", "10")), 0, 0
    requests = 0
    while time.monotonic() < until:
        with breaking(nginx, seed=rounds, share=0.4) as proxy:
            data = opened(proxy.url, cache=rounds % 2 == 1)  # in turn from memory, and from the disk
            with penstock.DataLoader(data, num_workers=2, **settings) as loader:
                assert hashes(loader, 2) == expected
            faults += proxy.faults.total()
            requests += proxy.requests
        rounds += 1
    with capfd.disabled():
        print(f"\n{rounds} rounds, {requests} requests, {faults} broken, {rounds * 2 * N} samples of each format")
    assert faults > 0


def test_a_file_that_is_not_there_is_named(nginx: str, files: Path) -> None:
    with pytest.raises(RemoteFileNotFound, match=r"/none\.jsonl cannot be found: the server answered 404"):
        JsonLines(f"{nginx}/none.jsonl")
