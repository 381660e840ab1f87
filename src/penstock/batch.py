"""A batch, with what is known about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Batch"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Batch(Generic[_T]):
    """What `DataLoader.batches()` yields: the batch, and which samples it holds.

    `data` is what plain iteration yields. `index` has one sample key for each row, where keys are
    integers (for a stream: the positions in it), else None. `pad` is how many rows at the end are
    only there to fill it up (`last_batch="pad"`), and do not count in a metric. `extra` is whatever the
    source sent along. `skipped` lists the samples that failed, where `on_error=` allows it, each with its key
    and exception; `index` then has the keys of the rows that are there.
    """

    data: _T
    index: NDArray[np.uint64] | None
    epoch: int
    step: int
    pad: int = 0
    extra: object = None
    skipped: list[tuple[Any, Exception]] = field(default_factory=list)
