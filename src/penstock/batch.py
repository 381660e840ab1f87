"""A batch together with the keys of its samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Batch"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Batch(Generic[_T]):
    """An item of `DataLoader.batches()`: a batch and the keys of its samples.

    `data` is the batch that plain iteration yields. `index` contains the key of each row's sample if keys are
    integers (for a stream, the sample's position in the stream); otherwise it is None. `pad` is the number of rows at
    the end that only fill up the batch (`last_batch="pad"`); leave them out of metrics. `skipped` lists the key and
    the exception of each sample that failed and was tolerated (`on_error=`); such samples are not in `index`.

    `epoch` and `step` are the position of the batch. `DataLoader.commit` also takes a copy of the batch, such as one
    that was pickled and sent.

    `sources` names the source of each sample of a mixture, or of each document of a packed row. Otherwise it is None.

    >>> import penstock
    >>> loader = penstock.DataLoader([10, 20, 30], batch_size=2)
    >>> [(batch.step, batch.index.tolist(), batch.data.tolist()) for batch in loader.batches()]
    [(0, [0, 1], [10, 20]), (1, [2], [30])]
    """

    data: _T
    index: NDArray[np.uint64] | None
    epoch: int
    step: int
    pad: int = 0
    skipped: list[tuple[Any, Exception]] = field(default_factory=list)
    sources: list[Any] | None = None
    _pass: int = field(default=0, repr=False, compare=False)  # the pass over the data, for `DataLoader.commit`
