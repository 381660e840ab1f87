"""The speed of `penstock.formats` without a loader: `python -m bench.formats` exits with 1 if Tokens is too slow.

Rows of `Tokens` (uint16) are gathered into memory that stays, in turn with `np.take` of rows of the same length, in
processor time. Tokens must reach 0.9 of `np.take(rows, keys, 0, out)`, which checks the keys as Tokens does. With
mode="clip" np.take does not check them, and copies once instead of twice: the last columns show it. Rows that overlap
(1,025 ids, one of them shared) have no array to take from: they are compared with rows that do not. Files are in the
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
from numpy.typing import NDArray

from penstock._files.local import File
from penstock._fill.cast import Cast, FieldMemory
from penstock.formats import JsonLines, Tar, TextLines, Tokens
from penstock.formats._samples import find_samples

BATCH, ROUNDS = 64, 15
IDS = 1 << 25  # that are gathered in a round
LEAST, JUDGED = 0.9, 32  # share of np.take, for batches of so many rows: a call costs 3 µs beyond the copies
# Length, stride, files, rows of a batch, dtype of the batch.
TOKENS = (
    *(
        (length, 1024, 1, batch, dtype)
        for dtype in ("uint16", "int64")
        for length in (1024, 1025)
        for batch in (16, 32, 64)
    ),
    (1024, 1024, 1, 256, "uint16"),
    (1024, 1024, 8, 64, "uint16"),
    (4096, 4096, 1, 64, "uint16"),
)


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    os.environ["PENSTOCK_CACHE"] = str(folder / "cache")
    try:
        print(f"numpy {np.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
        missed = tokens(folder)
        lines(folder)
        tars(folder)
    finally:
        shutil.rmtree(folder)
    print("missed: " + ("; ".join(missed) or "none"))
    return bool(missed)


def seconds(*calls: Callable[[], object]) -> list[list[float]]:
    """Processor time of each call, in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, taken in zip(calls, times, strict=True):
            begun = time.process_time()
            call()
            taken.append(time.process_time() - begun)
    return times


def tokens(folder: Path) -> list[str]:
    """Print a row for each shape of batch, and return what is below LEAST."""
    ids = np.random.default_rng(0).integers(0, 50_000, 1 << 26).astype(np.uint16)
    ids.tofile(folder / "whole.bin")
    for number, part in enumerate(np.split(ids, 8)):
        part.tofile(folder / f"part{number}.bin")
    missed = []
    head = "ids/stride, files, batch", "dtype", "gather µs", "np.take µs", "share", "unchecked µs", "share"
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for length, stride, files, batch, dtype in TOKENS:
        pattern = "whole.bin" if files == 1 else "part*.bin"
        data = Tokens(folder / pattern, "uint16", length, stride)
        ours, checked, unchecked = (1e6 * seconds for seconds in gathering(data, ids, batch, dtype))
        name = f"{length:,}/{stride:,}, {files}, {batch}"
        cells = f"{ours:.1f} | {checked:.1f} | {checked / ours:.2f} | {unchecked:.1f} | {unchecked / ours:.2f}"
        print(f"| {name} | {dtype} | {cells} |", flush=True)
        if batch >= JUDGED and checked / ours < LEAST:
            missed.append(f"Tokens {name}, {dtype}: {checked / ours:.2f} of np.take, required {LEAST}")
    return missed


def gathering(data: Tokens, ids: NDArray[Any], batch: int, dtype: str) -> list[float]:
    """Seconds for a batch by `Tokens`, by np.take, and by np.take that does not check the keys."""
    length = data.length
    steps = IDS // (length * batch)
    rows = ids[: len(ids) // length * length].reshape(-1, length)
    keys = np.random.default_rng(1).integers(0, min(len(data), len(rows)), (steps, batch))
    taken, out = np.empty((batch, length), np.uint16), np.empty((batch, length), dtype)
    into: Any = lambda shape, dtype: out  # noqa: E731
    if dtype != "uint16":
        cast = Cast.of(dtype, "checked")
        assert cast is not None
        into = FieldMemory(cast.root(), into)

    def gathered() -> None:
        for some in keys:
            data.__gather__(some, into)

    def take(mode: Any) -> None:
        for some in keys:
            np.take(rows, some, 0, taken, mode)
            if dtype != "uint16":
                np.copyto(out, taken)

    gathered()  # into the page cache, and mapped
    return [min(found) / steps for found in seconds(gathered, lambda: take("raise"), lambda: take("clip"))]


def rate(name: str, amount: float, unit: str, call: Callable[[], object]) -> None:
    (taken,) = seconds(call)
    print(f"{name:36}{amount / min(taken):12,.3g} {unit} (median {amount / statistics.median(taken):,.3g})")


def lines(folder: Path) -> None:
    for width in (20, 200, 2000):
        path = folder / f"{width}.txt"
        path.write_text(("x" * (width - 1) + "\n") * ((64 << 20) // width))
        file = File(str(path))
        rate(f"index of lines of {width} bytes", file.size / 1e9, "GB/s", lambda file=file: TextLines.find(file))
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
