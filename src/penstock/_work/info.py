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


# With backend="thread" several workers are in one process, and each is one thread. A worker process is
# one worker with all its threads, also those that the dataset starts.
_of_thread = threading.local()
_of_process: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """The worker that is calling, or None outside of workers (also with `num_workers=0`)."""
    info: WorkerInfo | None = getattr(_of_thread, "info", None)
    return _of_process if info is None else info


def is_worker_process() -> bool:
    """Whether this process is a worker, and nothing else."""
    return _of_process is not None


def set_worker_info(info: WorkerInfo, *, of_process: bool) -> None:
    global _of_process
    if of_process:
        _of_process = info
    else:
        _of_thread.info = info
