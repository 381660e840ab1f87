"""Stats objects for tests, built by hand."""

from __future__ import annotations

from typing import Any

from penstock.stats import (
    FirstBatch,
    Machine,
    Memory,
    Moment,
    Period,
    SlowSample,
    Spans,
    Stats,
    WorkerFigures,
)


def worker(seat: int = 0, **given: Any) -> WorkerFigures:
    figures: dict[str, Any] = {
        "name": f"pid {7000 + seat}",
        "tasks": 50,
        "steps": 50,
        "fetch": 6.0,
        "collate": 1.0,
        "write": 0.5,
        "waited_task": 0.5,
        "waited_room": 2.0,
        "cpu": 5.0,
    }
    return WorkerFigures(seat, **figures | given)


def moments(count: int, rate: float = 10.0, waiting: float = 0.25, workers: int = 2) -> tuple[Moment, ...]:
    """Rows of every half second, as steady as a clock."""
    return tuple(
        Moment(
            at=at,
            batches=int(rate * at),
            waited=waiting * at,
            worked=(1 - waiting) * at,
            ready=1,
            busy=workers - 1,
            workers=workers,
            lent=1 << 20,
            pooled=4 << 20,
        )
        for at in (0.5 * row for row in range(1, count + 1))
    )


def stats(**given: Any) -> Stats:
    period = Period(
        seconds=10.0,
        batches=100,
        samples=6400,
        nbytes=100 << 20,
        waits=Spans(100, 2.5, 0.02, 0.05, 0.2),
        works=Spans(100, 7.5, 0.07, 0.08, 0.1),
        ready=60,
        tasks=100,
        caller_cpu=7.0,
        workers=(worker(0), worker(1)),
        slowest=(SlowSample(17, 0.9, 0, 3, "pid 7001"),),
    )
    figures: dict[str, Any] = {
        "name": "Photos",
        "settings": {"batch_size": 64, "num_workers": 2, "backend": "process"},
        "epoch": period,
        "life": period,
        "epoch_number": 3,
        "first_batch": FirstBatch(0.4, 0.1, 0.0, 0.1, 0.2, 0.0),
        "memory": Memory(1 << 20, 4 << 20, 0),
        "machine": Machine(cpus=2.0),
        "history": moments(20),
    }
    return Stats(**figures | given)
