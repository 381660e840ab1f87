"""`Batch`, the pytree that `DataLoader.batches()` yields."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax

import penstock.batch

__all__ = ["Batch"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Batch(penstock.batch.Batch[_T]):
    """A batch as a pytree, with the mask of its rows: an item of `penstock.jax.DataLoader.batches()`.

    `mask` is an array of bools, one for each row: False for the rows at the end that only fill up the batch, with
    `last_batch="pad"`. It is None if samples are not batched. The other fields are those of `penstock.Batch`. With a
    sharding over several processes, `pad` counts rows of the global batch, and `index` has the keys of the rows that
    this process has loaded.

    The pytree has the leaves of `data`, and `mask`, `epoch`, `step` and `pad`, so that a jitted function can take the
    batch as it is. The other fields (`index`, `skipped`, `sources`) are lost where JAX rebuilds the batch, as
    `jax.tree.map` does. `DataLoader.commit` takes the batch that was handed out.

        >>> import jax, numpy as np, penstock.jax
        >>> total = jax.jit(lambda batch: (batch.data * batch.mask).sum())
        >>> [int(total(batch)) for batch in penstock.jax.DataLoader(np.arange(10), batch_size=4).batches()]
        [6, 22, 17]
    """

    mask: Any = None


_LEAVES = ("data", "mask", "epoch", "step", "pad")


def _flatten(batch: Batch[Any]) -> tuple[list[Any], None]:
    return [getattr(batch, name) for name in _LEAVES], None


def _flatten_with_keys(batch: Batch[Any]) -> tuple[list[Any], None]:
    return [(jax.tree_util.GetAttrKey(name), getattr(batch, name)) for name in _LEAVES], None


def _unflatten(_: None, leaves: Iterable[Any]) -> Batch[Any]:
    return Batch(index=None, **dict(zip(_LEAVES, leaves, strict=True)))


jax.tree_util.register_pytree_with_keys(Batch, _flatten_with_keys, _unflatten, _flatten)
