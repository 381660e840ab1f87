"""The figures of the last seconds, for live displays: the averages of an epoch hide what happens now."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.stats._figures import Moment, Stats

RECENT_SECONDS = 5.0
"""At least this many seconds: the rows of a long history are further apart."""


@dataclass(frozen=True, slots=True)
class Recent:
    """`rate`: batches a second. `waiting`: share of the time in which the caller waited. `busy`: busy workers."""

    rate: float
    waiting: float
    busy: float
    workers: int


def recent(stats: Stats) -> Recent:
    """The figures of the last RECENT_SECONDS, or since the first `iter()` if that is more recent.

    Pauses between two epochs do not count.
    """
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
