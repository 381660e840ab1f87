"""Samplers that yield keys planned by penstock, for frameworks that read, wrap or divide a torch loader's sampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import penstock


class Planned:
    """A sampler that yields the keys that a penstock loader with the given settings would read.

    Each pass yields the keys of the next epoch, unless `set_epoch` has chosen another epoch. The torch loader plans
    its batches itself and does not read this sampler. It passes the sampler to torch's constructor, so that
    frameworks see an ordinary loader and may wrap the sampler.
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
    """Yields the keys of each batch of an epoch, with at most `batch_tokens` tokens in a batch."""

    batch_size = None

    def __init__(self, dataset: Any, order: dict[str, Any], settings: dict[str, Any]) -> None:
        super().__init__(dataset, order, settings)
        self.drop_last = bool(order["drop_last"])

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._next().batch_sampler)


class PlannedKeys(Planned):
    """Yields the keys of a mixture or of packed rows, which torch's own samplers cannot yield."""

    def __init__(self, dataset: Any, order: dict[str, Any], settings: dict[str, Any]) -> None:
        super().__init__(dataset, order, {**settings, "batch_size": 1})

    def __iter__(self) -> Iterator[Any]:
        return iter(self._next().sampler)


def planned_in(loader: Any) -> Planned | None:
    """Returns the loader's `Planned` sampler, or None if the loader has no such sampler.

    The result is also None if a framework has replaced or wrapped the sampler.
    """
    batches = getattr(loader, "batch_sampler", None)
    found = batches if isinstance(batches, Planned) else getattr(batches, "sampler", None)
    return found if isinstance(found, Planned) else None
