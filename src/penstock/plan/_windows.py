"""Items (rows of documents, or batches) that are computed one window of positions at a time."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class ItemTable(NamedTuple):
    """The items of one window. Item i consists of `parts[offsets[i] : offsets[i + 1]]`."""

    offsets: NDArray[np.int64]
    parts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1


class Windows(Protocol):
    """Computes the items of each window of an epoch, without looking at other windows."""

    def count(self, epoch: int) -> int | None:
        """Returns the number of windows in the epoch, or None if the epoch never ends."""

    def table(self, epoch: int, number: int) -> ItemTable: ...
