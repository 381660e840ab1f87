"""`num_workers="auto"` beside every fixed number of workers: `python -m bench.auto [--only waiting] [--rounds 3]`.

In each round every loader of a row is started anew and measured, one after the other, so that a change in the
machine's load affects all of them: auto gets 5 seconds to settle, the others as long as their first batches take.
Exits with 1 if auto has less than 0.9 of the best fixed number, or used more memory than it was allowed to.

`--record FOLDER` only runs auto, and writes what its tuner was told, for tests/laws/test_tuner_laws.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock._schedule import tuner
from penstock.stats import _machine

FIXED = (1, 2, 3, 4, 8, 16, 24, 32)
SETTLE, LEAD, MEASURE = 5.0, 0.3, 1.5  # seconds
ENOUGH = 0.9
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Workload:
    """`sample` makes a sample of a key, `work` is what the caller does with a batch. `room`: bytes for workers."""

    sample: Callable[[int], Any]
    batch_size: int = 8
    work: Callable[[], object] = bool
    room: int | None = None

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, key: int) -> Any:
        return self.sample(key)


def waits(key: int, seconds: float = 5e-3) -> int:
    time.sleep(seconds)
    return key


def computes(key: int, loops: int = 20_000) -> int:
    found = key
    for _ in range(loops):
        found = found * 48271 % 2147483647
    return found


def computes_and_waits(key: int) -> int:
    return waits(computes(key, 10_000), 1e-3)


_picture = np.zeros(MEGABYTE, np.uint8)


def copies(key: int) -> Any:
    return _picture + np.uint8(key % 256)


_kept: list[Any] = []


def hoards(key: int) -> int:
    """The first sample of a worker takes 64 MB."""
    if not _kept:
        _kept.append(np.ones(64 * MEGABYTE, np.uint8))
    return waits(key)


WORKLOADS = {
    "computing": Workload(computes),
    "waiting": Workload(waits),
    "half and half": Workload(computes_and_waits),
    "tiny": Workload(int, batch_size=64),
    "copying": Workload(copies),
    "slow caller": Workload(partial(waits, seconds=2e-3), work=partial(time.sleep, 20e-3)),
    "quick caller": Workload(waits, work=partial(time.sleep, 4e-3)),
    "little memory": Workload(hoards, room=800 * MEGABYTE),
}


def private(pids: list[int]) -> int:
    """Bytes that these processes do not share."""
    total = 0
    for pid in pids:
        try:
            _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        except OSError:
            continue  # it has left
        total += (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return total


@contextmanager
def little_memory(loader: Any, room: int | None) -> Any:
    """The tuner sees a machine whose memory is as large as `room`, with this loader's workers alone in it."""
    true, used = _machine.machine, [0]

    def machine() -> Any:
        used.append(private([worker.pid for worker in loader.workers]))
        return replace(true(), memory_limit=room, memory_used=used[-1])

    if room is not None:
        _machine.machine = machine
        loader._begin_tuning()
    try:
        yield used
    finally:
        _machine.machine = true


@dataclass(frozen=True)
class Measured:
    rate: float
    workers: int
    changes: int
    memory: int


def measure(workload: Workload, num_workers: int | str, seconds: float = MEASURE) -> Measured:
    """Batches per second, once the loader has settled."""
    loader: Any = penstock.DataLoader(workload, workload.batch_size, num_workers=num_workers)
    with loader, little_memory(loader, workload.room if num_workers == "auto" else None) as used:
        batches = iter(loader)
        for _ in range(loader.num_workers * 2 + 1):  # all workers have started
            next(batches)
        read(batches, workload, SETTLE if num_workers == "auto" else LEAD)
        rate = read(batches, workload, seconds)
        return Measured(rate, loader.num_workers, len(loader.stats().decisions), max(used))


def read(batches: Any, workload: Workload, seconds: float) -> float:
    work, count, began = workload.work, 0, time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        next(batches)
        work()
        count += 1
    return count / (now - began)


def record(name: str, path: Path) -> None:
    """Writes the bounds of a tuner, the numbers that it chose, and the intervals that it got, to a file."""
    decide, intervals, found = tuner.Tuner.decide, [], {}

    def decide_and_record(self: Any, interval: Any) -> Any:
        if not found:
            found["bounds"] = asdict(self.bounds)
            found["numbers"] = [[self.workers, self.prefetch_factor]]
        intervals.append([round(value, 6) for value in asdict(interval).values()])
        resize = decide(self, type(interval)(*intervals[-1]))
        if resize is not None:
            found["numbers"].append([resize.workers, resize.prefetch_factor])
        return resize

    tuner.Tuner.decide = decide_and_record  # type: ignore[method-assign]
    measure(WORKLOADS[name], "auto", 5.0)
    tuner.Tuner.decide = decide  # type: ignore[method-assign]
    rows = ",\n  ".join(map(json.dumps, intervals))
    path.write_text(f'{json.dumps(found)[:-1]}, "intervals": [\n  {rows}\n]}}\n')
    print(f"{name}: {found['numbers']}", flush=True)


def row(name: str, rounds: int) -> bool:
    workload, found = WORKLOADS[name], {}
    # Of workers that hoard memory, as many as fit: each has 90 MB in all.
    fixed = [number for number in FIXED if workload.room is None or number * 90 * MEGABYTE < 0.85 * workload.room]
    for _ in range(rounds):
        for setting in ("auto", *fixed):
            found.setdefault(setting, []).append(measure(workload, setting))
    rates = {setting: statistics.median(one.rate for one in many) for setting, many in found.items()}
    auto, best = found["auto"], max(fixed, key=lambda number: rates[number])
    share, memory = rates["auto"] / rates[best], max(one.memory for one in auto)
    holds = share >= ENOUGH and (workload.room is None or memory <= workload.room)
    columns = [f"{rates[number]:.4g}" if number in rates else "-" for number in ("auto", *FIXED)]
    workers = "/".join(str(one.workers) for one in auto)
    changes = max(one.changes for one in auto)
    within = f"{memory / MEGABYTE:.0f} of {workload.room / MEGABYTE:.0f} MB" if workload.room else ""
    print(
        f"| {name} | {' | '.join(columns)} | {share:.2f} of {best} workers | {workers} | {changes} | {within} "
        f"| {'yes' if holds else 'NO'} |",
        flush=True,
    )
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=[*WORKLOADS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "num_workers=.* is more than")
    if given.record:
        for name in given.only:
            record(name, given.record / f"{name.replace(' ', '_')}.json")
        return 0
    heads = ["batches/s", "auto", *map(str, FIXED), "auto beside the best", "workers", "changes", "memory", "holds"]
    print(f"{_machine.machine()}, load {os.getloadavg()[0]:.1f}, median of {given.rounds} rounds\n")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    holds = [row(name, given.rounds) for name in given.only]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
