"""The limit: the same fetches in bare forked processes that write into a private array and report nothing.

No loader that fetches in Python can be faster than this; penstock's share of it shows the cost of its machinery.

`python -m bench.limit images FOLDER` shows the effect of the CPU cache: the same with several arrays for each
process, written in turn. A loader cannot overwrite the batch that its caller is using, so it has several.
"""

from __future__ import annotations

import mmap
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.workloads import WORKLOADS, Workload


def limit_rate(workload: Workload, folder: Path, seconds: float, lead: float) -> float:
    """Batches per second of `workload.workers` processes together."""
    dataset = workload.dataset(folder)
    counts = np.frombuffer(mmap.mmap(-1, 8 * workload.workers), np.float64)
    start = time.monotonic() + lead
    children = []
    for worker in range(workload.workers):
        pid = os.fork()
        if pid == 0:
            try:
                counts[worker] = _fill_until(workload, dataset, worker, start, start + seconds)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)
    for pid in children:
        _, status = os.waitpid(pid, 0)
        if status != 0:
            raise RuntimeError(f"limit of {workload.name}: a process ended with status {status}")
    return float(counts.sum())


def _fill_until(workload: Workload, dataset: object, worker: int, start: float, end: float) -> float:
    """The rate of one process between `start` and `end`; before `start` it warms up."""
    rng = np.random.default_rng(worker)
    keys = rng.integers(0, len(dataset), (4096, workload.batch_size))  # type: ignore[arg-type]
    out = workload.out()
    filled, since, turn = 0, 0.0, 0
    while True:
        workload.fill(dataset, keys[turn & 4095], out)
        turn += 1
        now = time.monotonic()
        if since:
            filled += 1
            if now >= end:
                return filled / (now - since)
        elif now >= start:
            since = now


def limit_first_batch(workload: Workload, folder: Path) -> float:
    """Seconds until the first of the forked processes has filled a batch and reported it with one byte."""
    start = time.monotonic()
    dataset = workload.dataset(folder)
    receive, send = os.pipe()
    children = []
    for worker in range(workload.workers):
        pid = os.fork()
        if pid == 0:
            keys = np.random.default_rng(worker).integers(0, len(dataset), workload.batch_size)
            workload.fill(dataset, keys, workload.out())
            os.write(send, b"!")
            os._exit(0)
        children.append(pid)
    os.read(receive, 1)
    took = time.monotonic() - start
    for pid in children:
        os.waitpid(pid, 0)
    os.close(receive)
    os.close(send)
    return took


@dataclass
class _InTurn:
    """A workload whose processes write into several arrays in turn."""

    workload: Workload
    arrays: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.workload, name)

    def out(self) -> list[Any]:
        return [self.workload.out() for _ in range(self.arrays)]

    def fill(self, dataset: object, keys: np.ndarray, out: list[Any]) -> None:
        out.append(out.pop(0))
        self.workload.fill(dataset, keys, out[-1])


def main() -> None:
    name, folder = sys.argv[1:]
    rates: dict[int, list[float]] = {1: [], 2: [], 4: []}
    for _ in range(7):
        for arrays, found in rates.items():
            in_turn: Any = _InTurn(WORKLOADS[name], arrays)
            found.append(limit_rate(in_turn, Path(folder), 0.5, 0.3))
    for arrays, found in rates.items():
        middle = statistics.median(found)
        print(f"{arrays} for each process: {middle:,.0f} batches/s ({min(found):,.0f}-{max(found):,.0f})")


if __name__ == "__main__":
    main()
