"""`penstock.get_worker_info()`: information about the worker, for code that runs in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock._at_work import current_worker

__all__ = ["WorkerInfo", "get_worker_info"]


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Describes one worker.

    `id` is a number from 0 to `num_workers - 1`, or a higher one if the loader was given more workers while it ran:
    `num_workers` is the number that it began with. A worker that replaces a crashed one has the same id. `seed` is
    the loader's seed plus the id. `dataset` is the worker's copy of the dataset (threads share one object).
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


def get_worker_info() -> WorkerInfo | None:
    """The worker in which this is called; None outside of workers, and with `num_workers=0`."""
    info: WorkerInfo | None = current_worker()
    return info
