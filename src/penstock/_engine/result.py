"""What an engine hands to the iterator that reads it."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock._wire.task import Mended, Task


class StepResult(NamedTuple):
    """What `next` returns: a batch, the error in its place, or the end of the run (no task). `worker` did it."""

    task: Task | None
    data: Any = None
    rows: int = 0
    error: BaseException | None = None
    mended: Mended | None = None
    worker: int = -1
