"""Samplers of torch loaders whose keys penstock plans, for the frameworks that read, wrap or divide them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import penstock


class Planned:
    """A sampler of the keys that a penstock loader with these settings would read.

    Each pass is the next epoch, unless `set_epoch` sets another one. The torch loader plans its batches by itself. It
    passes this sampler to torch's constructor, so that a framework sees an ordinary loader, and may wrap the sampler.
    """

    def __init__(self, dataset: Any, order: dict[str, Any], settings: dict[str, Any]) -> None:
        self.order, self.epoch = order, 0
        self._loader = penstock.DataLoader(dataset, **{**order, **settings})

    def _next(self) -> penstock.DataLoader[Any]:
        self._loader.set_epoch(self.epoch)
        self.epoch += 1
        return self._loader

    def __len__(self) -> int:
        self._loader.set_epoch(self.epoch)
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class TokenBatches(Planned):
    """The keys of the batches of each epoch, with at most `batch_tokens` tokens in a batch."""

    batch_size = None

    def __init__(self, dataset: Any, order: dict[str, Any], settings: dict[str, Any]) -> None:
        super().__init__(dataset, order, settings)
        self.drop_last = bool(order["drop_last"])

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._next().batch_sampler)


class PlannedKeys(Planned):
    """The keys of each epoch of a mixture, or of packed rows. A torch sampler would give numbers instead."""

    def __init__(self, dataset: Any, order: dict[str, Any], settings: dict[str, Any]) -> None:
        super().__init__(dataset, order, {**settings, "batch_size": 1})

    def __iter__(self) -> Iterator[Any]:
        return iter(self._next().sampler)


def planned_in(loader: Any) -> Planned | None:
    """Returns the loader's `Planned` sampler, or None if it has none or if a framework has replaced or wrapped it.

    This sampler is not read, because the loader plans its batches by itself.
    """
    batches = getattr(loader, "batch_sampler", None)
    found = batches if isinstance(batches, Planned) else getattr(batches, "sampler", None)
    return found if isinstance(found, Planned) else None
