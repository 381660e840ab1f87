"""The result of one step, which an engine hands to a reader."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock._wire.task import Mended, Task


class StepResult(NamedTuple):
    """A batch, the error that replaces a batch, or the end of the run (if `task` is None)."""

    task: Task | None
    data: Any = None
    rows: int = 0
    error: BaseException | None = None
    mended: Mended | None = None
    worker: int = -1
