"""A loader whose batches are pytrees of `jax.Array`s: `from penstock.jax import DataLoader`.

Batches are on the device before the training loop asks for them. With a `jax.sharding.Sharding`, each batch
consists of global arrays, and each process loads only the rows that its devices hold.
"""

from __future__ import annotations

try:
    import jax  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError('penstock.jax needs JAX: pip install ".[jax]" in a clone of penstock') from error

from penstock.jax._batch import Batch
from penstock.jax._loader import DataLoader

__all__ = ["Batch", "DataLoader"]
