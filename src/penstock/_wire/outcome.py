"""Outcomes: what a backend reports about a task.

They are named tuples because one is made for every batch: they cost a third of a frozen dataclass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._wire.task import Mended


class Filled(NamedTuple):
    """The batch of the step is ready, and took `seconds`. `held` is what the backend needs to open it.

    All views of the slab keep `root` alive. `mark`: see `Task`.
    """

    seq: int
    worker: int
    rows: int
    nbytes: int
    seconds: float
    root: NDArray[np.uint8]
    held: Any
    mended: Mended | None = None
    mark: bytes | None = None


class Failed(NamedTuple):
    """The user's code raised an exception in the step."""

    seq: int
    worker: int
    error: BaseException
    mark: bytes | None = None


class Bundle(NamedTuple):
    """All steps of a task with several steps are done. Their batches are in one slab: views of `root`."""

    seq: int
    worker: int
    nbytes: int
    seconds: float
    steps: list[Filled | Failed]
    root: NDArray[np.uint8]


class Ended(NamedTuple):
    """The stream had no samples left for the step. `mark`: see `Run.end`."""

    seq: int
    worker: int
    mark: bytes | None = None
