"""What code that runs in a worker can ask about the worker."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


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


# Of the thread, because with backend="thread" several workers are in one process.
_current = threading.local()


def get_worker_info() -> WorkerInfo | None:
    """The worker that is calling, or None outside of workers (also with `num_workers=0`)."""
    info: WorkerInfo | None = getattr(_current, "info", None)
    return info


def set_worker_info(info: WorkerInfo) -> None:
    _current.info = info
