"""The speed of `penstock.formats` without a loader: `python -m bench.formats` exits with 1 if Tokens is too slow.

Rows of `Tokens` (uint16) are gathered into memory that stays, in turn with `np.take` of the same rows from a memory
map, in processor time. A call costs 3 µs beyond the copy, so the share of np.take depends on the size of the batch.
Rows of 1025 ids, which overlap, have no array to take from: they are compared with rows of 1024. Files are in the
page cache.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from penstock.formats import JsonLines, Tar, TextLines, Tokens
from penstock.formats._files import File
from penstock.formats._lines import find_lines
from penstock.formats._tar import find_samples

BATCH, ROUNDS = 64, 15
IDS = 1 << 26  # that are gathered in a round
LEAST, LARGE = 0.9, 1 << 18  # share of np.take, for batches of so many ids


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    os.environ["PENSTOCK_CACHE"] = str(folder / "cache")
    try:
        print(f"numpy {np.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
        shares = tokens(folder)
        lines(folder)
        tars(folder)
    finally:
        shutil.rmtree(folder)
    return int(min(shares) < LEAST)


def seconds(*calls: Callable[[], object]) -> list[list[float]]:
    """Processor time of each call, in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, taken in zip(calls, times, strict=True):
            begun = time.process_time()
            call()
            taken.append(time.process_time() - begun)
    return times


def tokens(folder: Path) -> list[float]:
    """Print a row for each kind of file, and return the shares of np.take that must not be below LEAST."""
    shares = []
    for length, stride, files, batch in (
        (1024, 1024, 1, 64),
        (1024, 1024, 1, 256),
        (1024, 1024, 8, 256),
        (4096, 4096, 1, 64),
        (1025, 1024, 1, 256),
    ):
        ids = np.random.default_rng(0).integers(0, 50_000, 1 << 26).astype(np.uint16)
        for number, part in enumerate(np.split(ids, files)):
            part.tofile(folder / f"{number}.bin")
        ids.tofile(folder / "whole")
        data = Tokens([folder / f"{number}.bin" for number in range(files)], "uint16", length, stride)
        steps = IDS // (length * batch)
        keys = np.random.default_rng(1).integers(0, len(data), (steps, batch))
        rows = np.asarray(np.memmap(folder / "whole", np.uint16, "r")).reshape(-1, stride)
        out, taken = np.empty((batch, length), np.uint16), np.empty((batch, stride), np.uint16)

        def gathered(data: Any = data, keys: Any = keys, out: Any = out) -> None:
            for some in keys:
                data.__gather__(some, lambda shape, dtype: out)

        def take(rows: Any = rows, keys: Any = keys, taken: Any = taken) -> None:
            for some in keys:
                rows.take(some, 0, taken, "clip")

        rows.sum(), gathered()  # into the page cache, and mapped
        ours, theirs = (min(taken) / steps for taken in seconds(gathered, take))
        name = f"Tokens {length}/{stride}, {files} file{'s'[: files > 1]}, batch of {batch}"
        print(f"{name:40}{ours * 1e6:8.1f} µs a batch{theirs * 1e6:8.1f} µs np.take{theirs / ours:7.2f}")
        if stride == length and files == 1 and batch * length >= LARGE:
            shares.append(theirs / ours)
    return shares


def rate(name: str, amount: float, unit: str, call: Callable[[], object]) -> None:
    (taken,) = seconds(call)
    print(f"{name:36}{amount / min(taken):12,.3g} {unit} (median {amount / statistics.median(taken):,.3g})")


def lines(folder: Path) -> None:
    for width in (20, 200, 2000):
        path = folder / f"{width}.txt"
        path.write_text(("x" * (width - 1) + "\n") * ((64 << 20) // width))
        file = File(str(path))
        rate(f"index of lines of {width} bytes", file.size / 1e9, "GB/s", lambda file=file: find_lines(file))
    keys = np.random.default_rng(0).integers(0, 10_000, (50, BATCH)).tolist()
    path = folder / "some.jsonl"
    value = json.dumps({"id": 1, "text": "word " * 100})
    path.write_text((value + "\n") * 10_000)
    for data in (TextLines(path), JsonLines(path)):
        call = lambda data=data: [data.__getitems__(some) for some in keys]  # noqa: E731
        rate(f"{type(data).__name__} of {len(value)} bytes", 50 * BATCH, "samples/s", call)


def tars(folder: Path) -> None:
    path = folder / "shard.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(2000):
            for end, data in (("jpg", bytes(30_000)), ("cls", b"7"), ("json", b'{"id": 1}')):
                info = tarfile.TarInfo(f"{number:06}.{end}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    file = File(str(path))
    rate("index of a tar", 6000, "members/s", lambda: find_samples(file))
    data = Tar(path, decode={"jpg": None})
    keys = np.random.default_rng(0).integers(0, 2000, (20, BATCH)).tolist()
    call = lambda: [data.__getitems__(some) for some in keys]  # noqa: E731
    rate("Tar, 3 members of 30 kB in all", 20 * BATCH, "samples/s", call)


if __name__ == "__main__":
    sys.exit(main())
