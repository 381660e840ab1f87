"""The figures of the last few seconds, for live displays. Averages over an epoch would hide what happens now."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.stats._figures import Moment, Stats

RECENT_SECONDS = 5.0
"""The period to average over. It is longer if the history's rows are far apart, and shorter just after the start."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Batches per second, share of time spent waiting, average number of busy workers, and number of workers."""

    rate: float
    waiting: float
    busy: float
    workers: int


def recent(stats: Stats) -> Recent:
    """Returns the figures for roughly the last five seconds (RECENT_SECONDS), without pauses between epochs."""
    waited, worked, batches = stats.life.waits.total, stats.life.works.total, stats.life.batches
    before, busy = Moment(0, 0, 0, 0, 0, 0, 0, 0, 0), []
    for row in reversed(stats.history):
        if waited + worked - row.waited - row.worked >= RECENT_SECONDS:
            before = row
            break
        busy.append(row.busy)
    waited, worked = max(0.0, waited - before.waited), max(0.0, worked - before.worked)
    seconds = waited + worked
    workers = stats.history[-1].workers if stats.history else len(stats.epoch.workers)
    return Recent(
        rate=(batches - before.batches) / seconds if seconds else 0.0,
        waiting=waited / seconds if seconds else 0.0,
        busy=sum(busy) / len(busy) if busy else float(before.busy),
        workers=0 if stats.settings.get("num_workers") == 0 else workers,
    )
