"""The figures of the last seconds, for what is shown live: the means of an epoch hide what happens now."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.stats._figures import Stats


@dataclass(frozen=True, slots=True)
class Recent:
    """`rate`: batches a second. `waiting`: share of the time in which the caller waited. `busy`: busy workers."""

    rate: float
    waiting: float
    busy: float
    workers: int


def recent(stats: Stats, seconds: float = 10.0) -> Recent:
    """The figures of the last seconds of the history; of the epoch, if the history is shorter than that."""
    history = stats.history
    workers = history[-1].workers if history else sum(worker.alive for worker in stats.epoch.workers)
    rows = [row for row in history if row.at >= history[-1].at - seconds]
    if len(rows) < 2 or rows[-1].at <= rows[0].at:
        busy = sum(worker.share for worker in stats.epoch.workers)
        return Recent(stats.epoch.rate, stats.epoch.waiting, busy, workers)
    first, last = rows[0], rows[-1]
    waited, worked = last.waited - first.waited, last.worked - first.worked
    return Recent(
        rate=(last.batches - first.batches) / (last.at - first.at),
        waiting=waited / (waited + worked) if waited + worked else 0.0,
        busy=sum(row.busy for row in rows[1:]) / len(rows[1:]),
        workers=workers,
    )
