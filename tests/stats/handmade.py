"""Figures that are made by hand, for tests of what judges and shows them."""

from __future__ import annotations

from typing import Any

from penstock.stats import (
    Bucket,
    FirstBatch,
    Machine,
    Memory,
    Period,
    SlowSample,
    Spans,
    Stats,
    WorkerFigures,
)

SETTINGS = {
    "face": "penstock",
    "backend": "process",
    "num_workers": 4,
    "prefetch_factor": 2,
    "batch_size": 64,
    "seed": None,
    "in_order": True,
    "persistent_workers": True,
    "one_reader": False,
}


def spans(count: int, total: float, longest: float | None = None) -> Spans:
    mean = total / max(1, count)
    return Spans(count, total, mean, 2 * mean, 3 * mean if longest is None else longest)


def worker(seat: int = 0, **parts: Any) -> WorkerFigures:
    return WorkerFigures(seat=seat, name=f"worker {seat} (pid {4000 + seat})", **parts)


def period(
    waited: float = 10.0, worked: float = 90.0, batches: int = 1000, workers: int = 4, parts: Any = None, **more: Any
) -> Period:
    """An epoch of `waited + worked` seconds in which each worker did the same."""
    each = parts or {"fetch": 97.0, "collate": 2.0, "waited_task": 1.0, "cpu": 90.0}
    given: dict[str, Any] = {
        "seconds": waited + worked,
        "batches": batches,
        "samples": 64 * batches,
        "nbytes": 10_000_000 * batches,
        "waits": spans(batches, waited),
        "works": spans(batches, worked),
        "ready": batches // 2,
        "tasks": batches,
        "caller_cpu": worked / 10,
        "workers": tuple(worker(seat, tasks=250, steps=250, **each) for seat in range(workers)),
        "sample_times": (Bucket(0.004, 0.005, 60 * batches), Bucket(0.005, 0.006, 4 * batches)),
        "slowest": (SlowSample(17, 0.006, 0, 3, "worker 0"),),
    }
    return Period(**{**given, **more})


def stats(epoch: Period | None = None, life: Period | None = None, **more: Any) -> Stats:
    """The figures of a loader on 16 CPUs. Its settings are SETTINGS, with the changes in `settings`."""
    epoch = period() if epoch is None else epoch
    settings = {**SETTINGS, **more.pop("settings", {})}
    given: dict[str, Any] = {
        "name": "penstock.DataLoader",
        "settings": settings,
        "epoch": epoch,
        "life": epoch if life is None else life,
        "epoch_number": 0,
        "first_batch": FirstBatch(0.05, 0.01, 0.0, 0.02, 0.015, 0.005),
        "memory": Memory(20_000_000, 80_000_000),
        "machine": Machine(cpus=16.0, memory_used=2_500_000_000),
    }
    return Stats(**{**given, **more})
