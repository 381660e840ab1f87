"""The batch sampler of a torch loader with `batch_tokens=`, for the frameworks that read or replace it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import penstock


class TokenBatches:
    """The keys of the batches of each epoch, with at most `batch_tokens` tokens in a batch.

    Each pass is the next epoch, unless `set_epoch` sets another one. The torch loader plans its batches by itself. It
    passes this sampler to torch's constructor, so that a framework sees a loader with a batch sampler, and may wrap
    it.
    """

    batch_size = None

    def __init__(self, dataset: Any, order: dict[str, Any], settings: dict[str, Any]) -> None:
        self.order, self.epoch = order, 0
        self.drop_last = bool(order["drop_last"])
        self._loader = penstock.DataLoader(dataset, **{**order, **settings})

    def __iter__(self) -> Iterator[list[int]]:
        self._loader.set_epoch(self.epoch)
        self.epoch += 1
        return iter(self._loader.batch_sampler)

    def __len__(self) -> int:
        self._loader.set_epoch(self.epoch)
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
