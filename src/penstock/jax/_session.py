"""The session of a JAX loader: penstock's semantics, with `jax.Array`s in the batches."""

from __future__ import annotations

from typing import Any

from penstock._feed import Feed
from penstock._session.seeded import SeedSession
from penstock.jax._arrays import DevicePlacer
from penstock.jax._batch import Batch


class JaxSession(SeedSession):
    """A session whose engines convert batches to `jax.Array`s. Up to `ahead` batches are converted in advance."""

    def __init__(self, feed: Feed, placer: DevicePlacer, ahead: int) -> None:
        self.placer, self.ahead = placer, ahead
        super().__init__(feed, "penstock.jax")
        self._full: Any = None  # the last mask of a batch without padding

    def manner(self) -> dict[str, Any]:
        # Without workers no batch is ever done before it is asked for.
        early = self.ahead if self.options.num_workers else 0
        return {**super().manner(), "receive": self.placer, "early": early}

    def made(self, data: Any, rows: int, **about: Any) -> Batch[Any]:
        if not self.feed.batched:
            return Batch(data, **about)
        return Batch(data, mask=self._mask(rows, about["pad"]), **about)

    def _mask(self, rows: int, pad: int) -> Any:
        rows, full = self.placer.rows_in_all(rows), self._full
        if pad:
            return self.placer.mask(rows, pad)
        # It is the same array for each batch, unless a jitted function was given it to use its memory (donation).
        if full is None or full.shape != (rows,) or full.is_deleted():
            full = self._full = self.placer.mask(rows, 0)
        return full

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_full": None}
