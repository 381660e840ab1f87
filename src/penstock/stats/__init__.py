"""Figures of a loader that runs: where the time goes, and what to do about it."""

from penstock.stats._figures import (
    Bucket,
    Decision,
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

__all__ = [
    "Bucket",
    "Decision",
    "FirstBatch",
    "Machine",
    "Memory",
    "Moment",
    "Period",
    "SlowSample",
    "Spans",
    "Stats",
    "WorkerFigures",
]
