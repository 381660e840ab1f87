"""Figures that show where a loader's time goes and what to improve."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.stats._figures import (
        Bucket,
        BudgetFigures,
        CacheFigures,
        CommitFigures,
        Decision,
        FirstBatch,
        Machine,
        Memory,
        MixtureFigures,
        Moment,
        Outage,
        PackingFigures,
        Period,
        SlowSample,
        SourceFigures,
        Spans,
        Stats,
        WorkerFigures,
    )

__all__ = [
    "Bucket",
    "BudgetFigures",
    "CacheFigures",
    "CommitFigures",
    "Decision",
    "FirstBatch",
    "Machine",
    "Memory",
    "MixtureFigures",
    "Moment",
    "Outage",
    "PackingFigures",
    "Period",
    "SlowSample",
    "SourceFigures",
    "Spans",
    "Stats",
    "WorkerFigures",
]


def __getattr__(name: str) -> Any:
    """Imports the classes of this package on first use, because importing them takes 5 ms."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.stats import _figures

    return getattr(_figures, name)
