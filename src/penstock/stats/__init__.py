"""Figures of a loader that runs: where the time goes, and what to do about it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.stats._figures import (
        Bucket,
        CacheFigures,
        Decision,
        FirstBatch,
        Machine,
        Memory,
        Moment,
        Outage,
        Period,
        SlowSample,
        Spans,
        Stats,
        WorkerFigures,
    )

__all__ = [
    "Bucket",
    "CacheFigures",
    "Decision",
    "FirstBatch",
    "Machine",
    "Memory",
    "Moment",
    "Outage",
    "Period",
    "SlowSample",
    "Spans",
    "Stats",
    "WorkerFigures",
]


def __getattr__(name: str) -> Any:
    """Imported when they are first asked for: `import penstock` need not wait 5 ms for so many dataclasses."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.stats import _figures

    return getattr(_figures, name)
