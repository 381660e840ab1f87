"""What code that runs in a worker can ask about the worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock._at_work import current_worker

__all__ = ["WorkerInfo", "get_worker_info"]


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Which worker this is.

    `id` counts from 0 to `num_workers - 1`; a worker that replaces a lost one has its id. `seed` is
    the loader's seed plus the id. `dataset` is this worker's copy (with threads: the one object).
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


def get_worker_info() -> WorkerInfo | None:
    """The worker that is calling, or None outside of workers (also with `num_workers=0`)."""
    info: WorkerInfo | None = current_worker()
    return info
