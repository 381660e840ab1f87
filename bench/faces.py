"""Tensors beside arrays: `python -m bench.faces` exits with 1 if penstock.torch is much slower than penstock.

Each row is one dataset with penstock's own loader, with penstock.torch (torch's semantics, and `seed=`), and with
penstock.torch without `__gather__`, as it was before it gathered: rows then become tensors one by one. All loaders
are in one process and run in turn, for a fraction of a second each: whatever else the machine does, it does to all.
Each has 2 forked workers. Figures are medians of batches a second, and the processor time of a batch, in the workers
and here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from bench.driver import consume
from bench.packing import lengths
from bench.peers import PREFETCH_FACTOR, endless
from bench.run import machine

LEAST = 0.95  # of the rate of arrays
ROUNDS, LEAD, SLICE = 30, 0.02, 0.15  # seconds
WORKERS, BATCH = 2, 64
OPTIONS: dict[str, Any] = {
    "shuffle": True,
    "drop_last": True,
    "num_workers": WORKERS,
    "prefetch_factor": PREFETCH_FACTOR,
    "multiprocessing_context": "fork",  # the workers are then children of this process
}
ROWS, LENGTH = 60_000, 1024
PACKED, PACKED_BATCH = 2048, 16


def rows_array(folder: Path) -> Any:
    from penstock import ArrayDataset

    return ArrayDataset(np.load(folder / "rows.npy", mmap_mode="r"))


def columns(folder: Path) -> Any:
    from penstock import ArrayDataset

    rows = np.load(folder / "rows.npy", mmap_mode="r")
    n = len(rows)
    return ArrayDataset(x=rows, y=np.arange(n), weight=np.ones(n, np.float32), mask=np.zeros((n, 16), np.bool_))


def tokens(folder: Path) -> Any:
    from penstock.formats import Tokens

    return Tokens(folder / "ids.bin", "uint16", length=LENGTH)


def overlapping(folder: Path) -> Any:
    from penstock.formats import Tokens

    return Tokens(folder / "ids.bin", "uint16", length=LENGTH + 1, stride=LENGTH)


def parquet(folder: Path) -> Any:
    from penstock.formats import Parquet

    return Parquet(folder / "table.parquet")


def packed(folder: Path) -> Any:
    import penstock

    rows = np.load(folder / "rows.npy", mmap_mode="r")
    return penstock.pack(penstock.ArrayDataset(rows), PACKED, np.full(len(rows), rows.shape[1]))


def packed_megatron(folder: Path) -> Any:
    import penstock
    from penstock.formats import Megatron

    return penstock.pack(Megatron(folder / "documents"), PACKED)


# The name, the dataset, the batch size and other options.
SOURCES: dict[str, tuple[Callable[[Path], Any], int, dict[str, Any]]] = {
    "rows_array: 512 int32": (rows_array, 256, {}),
    "4 columns": (columns, 256, {}),
    "tokens: 1,024 uint16": (tokens, BATCH, {}),
    "tokens as int64": (tokens, BATCH, {"dtype": "int64"}),
    "tokens: 1,025, as int64": (overlapping, BATCH, {"dtype": "int64"}),
    "Parquet, 3 columns": (parquet, BATCH, {}),
    "packed rows, ArrayDataset": (packed, PACKED_BATCH, {}),
    "packed rows, Megatron": (packed_megatron, PACKED_BATCH, {}),
}


def write(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    np.save(folder / "rows.npy", rng.integers(0, 1000, (ROWS, 512), np.int32))
    ids = rng.integers(0, 50_000, ROWS * LENGTH).astype(np.uint16)
    ids.tofile(folder / "ids.bin")
    write_megatron(folder, ids, lengths(100_000))
    some = ids[: 20_480 * LENGTH].astype(np.int32)
    edges = np.arange(0, some.size + 1, LENGTH, np.int32)
    n = len(edges) - 1
    lists = pa.ListArray.from_arrays(edges, some)
    table = pa.table({"ids": lists, "label": np.arange(n), "weight": np.ones(n, np.float32)})
    pa.parquet.write_table(table, folder / "table.parquet", row_group_size=1024, use_dictionary=False)


def write_megatron(folder: Path, ids: Any, of: Any) -> None:
    """Write documents of these lengths as Megatron-LM does: a .bin with ids, and an .idx with lengths and offsets."""
    n, stops = len(of), of.cumsum()
    ids[: stops[-1]].tofile(folder / "documents.bin")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1)  # 8: uint16
    parts = of.astype(np.int32), 2 * (stops - of), np.arange(n + 1)
    (folder / "documents.idx").write_bytes(head + b"".join(part.tobytes() for part in parts))


@dataclass
class Side:
    """A loader, and what it has done."""

    name: str
    stream: Iterator[Any]
    pids: set[int]
    rates: list[float] = field(default_factory=list)
    batches: int = 0
    here: float = 0.0  # seconds of this process
    begun: float = 0.0  # seconds of the workers, when the measurement began

    def run(self) -> None:
        used = time.process_time()
        lead = consume_counted(self.stream, LEAD, 8 * WORKERS)
        count, passed = consume_counted(self.stream, SLICE)
        self.rates.append(count / passed)
        self.batches += lead[0] + count
        self.here += time.process_time() - used

    def there(self) -> float:
        return sum(map(_seconds, self.pids)) - self.begun


def consume_counted(stream: Iterator[Any], seconds: float, batches: int = 1) -> tuple[int, float]:
    start = time.perf_counter()
    rate = consume(stream, seconds, batches)
    passed = time.perf_counter() - start
    return round(rate * passed), passed


def _seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _children() -> set[int]:
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def opened(stack: ExitStack, name: str, dataset: Any, size: int, more: dict[str, Any]) -> Side:
    import penstock
    import penstock.torch
    from penstock.torch import _gather

    given = {"batch_size": size, **OPTIONS, **more}
    before, kept = _children(), {"persistent_workers": True}
    patch = mock.patch.object(_gather, "is_of_numpy", return_value=False)
    with patch if "one by one" in name else ExitStack():
        if name == "arrays":
            loader: Any = penstock.DataLoader(dataset, seed=0, **given)
        else:
            loader = penstock.torch.DataLoader(dataset, **given, **kept, **({"seed": 0} if "seed" in name else {}))
        stream = endless(stack.enter_context(loader))
        next(stream)  # the workers are forked now
    return Side(name, stream, _children() - before)


SIDES = ("arrays", "tensors", "tensors, seed=0", "tensors one by one", "one by one, seed=0")


def measure(name: str, folder: Path, rounds: int) -> list[str]:
    """Print the rows of one dataset, and return the faces that are too slow."""
    make, size, more = SOURCES[name]
    with ExitStack() as stack:
        sides = [opened(stack, side, make(folder), size, more) for side in SIDES]
        for side in sides:
            consume(side.stream, 0.5)
        for side in sides:
            side.begun = side.there()
        for _ in range(rounds):
            for side in sides:
                side.run()
        there = [side.there() for side in sides]
    arrays, missed = sides[0], []
    for side, seconds in zip(sides, there, strict=True):
        rate, ratios = statistics.median(side.rates), np.divide(side.rates, arrays.rates)
        share = float(np.median(ratios))
        cpu = f"{1e6 * seconds / side.batches:.0f} | {1e6 * side.here / side.batches:.0f}"
        total = (seconds + side.here) / side.batches / ((there[0] + arrays.here) / arrays.batches)
        print(f"| {name} | {side.name} | {rate:,.0f} | {share:.2f} | {cpu} | {total:.2f} |", flush=True)
        if share < LEAST and "one by one" not in side.name:
            missed.append(f"{name}, {side.name}: {share:.2f} of the rate of arrays, required {LEAST}")
    return missed


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", help="names of rows that begin like this")
    options.add_argument("--rounds", type=int, default=ROUNDS)
    args = options.parse_args()
    print("\n".join(machine()), flush=True)
    head = "row", "loader", "batches/s", "of arrays", "µs CPU in workers", "µs CPU here", "CPU of arrays"
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    missed = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = Path(temporary)
        os.environ["PENSTOCK_CACHE"] = str(folder / "cache")
        write(folder)
        for name in SOURCES:
            if name.startswith(args.only or ""):
                missed += measure(name, folder, args.rounds)
    print("missed: " + ("; ".join(missed) or "none"))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
