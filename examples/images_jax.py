"""Trains a small network on images with flax and optax, stops in the middle of an epoch, and continues exactly there.

    python examples/images_jax.py
    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/images_jax.py      on four devices

Needs flax, optax and orbax-checkpoint. The images are made here: circles and squares, with noise that workers add
anew in each epoch. The checkpoint has the weights, the optimiser's state and the position of the loader. The run that
was stopped ends with the same weights as one that was not.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import linen as nn
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import penstock
import penstock.jax

SIZE = 16
BATCH = 64  # rows of the global batch, on all devices of all processes
EPOCHS = 3


class Shapes:
    """Sample i is an image of a circle (label 0) or a square (label 1), with noise."""

    def __init__(self, n: int, noise: float) -> None:
        self.n, self.noise = n, noise

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> dict[str, Any]:
        shape = np.random.default_rng(key)  # the same in each epoch
        y, x = np.mgrid[:SIZE, :SIZE] - shape.uniform(6, SIZE - 6, (2, 1, 1))
        radius, label = shape.uniform(3, 6), key % 2
        inside = np.maximum(abs(x), abs(y)) < radius if label else np.hypot(x, y) < radius
        image = inside + self.noise * penstock.rng().normal(size=inside.shape)  # another in each epoch
        return {"image": np.clip(image * 255, 0, 255).astype(np.uint8)[..., None], "label": label}


class Network(nn.Module):
    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = images.astype(jnp.float32) / 255
        for features in (8, 16):
            x = nn.max_pool(nn.relu(nn.Conv(features, (3, 3))(x)), (2, 2), (2, 2))
        return nn.Dense(2)(x.reshape(len(x), -1))


network, optimiser = Network(), optax.adam(5e-3)
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
rows_split, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())


@jax.jit
def train(state: Any, batch: penstock.jax.Batch[Any]) -> tuple[Any, jax.Array]:
    def loss_of(weights: Any) -> jax.Array:
        logits = network.apply(weights, batch.data["image"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.data["label"])
        return jnp.sum(losses * batch.mask) / jnp.sum(
            batch.mask
        )  # rows that only fill up the last batch do not count

    weights, moments = state
    loss, slopes = jax.value_and_grad(loss_of)(weights)
    updates, moments = optimiser.update(slopes, moments)
    return (optax.apply_updates(weights, updates), moments), loss


@jax.jit
def right(state: Any, batch: penstock.jax.Batch[Any]) -> jax.Array:
    found = network.apply(state[0], batch.data["image"]).argmax(1)
    return jnp.sum((found == batch.data["label"]) & batch.mask)


def fresh() -> Any:
    weights = network.init(jax.random.key(0), jnp.zeros((1, SIZE, SIZE, 1)))
    return jax.device_put((weights, optimiser.init(weights)), everywhere)


def make_loader(n: int, noise: float, **given: Any) -> penstock.jax.DataLoader[Any]:
    return penstock.jax.DataLoader(Shapes(n, noise), BATCH, sharding=rows_split, seed=0, num_workers=2, **given)


def run(folder: str, stop_at: int | None) -> Any:
    """Trains from the last checkpoint, or from the beginning. Saves one and returns after `stop_at` steps."""
    manager = ocp.CheckpointManager(folder)
    state, step = fresh(), manager.latest_step() or 0
    with manager, make_loader(1000, 0.3, shuffle=True) as loader:
        if step:
            like = ocp.args.Composite(state=ocp.args.StandardRestore(state), loader=ocp.args.JsonRestore())
            found = manager.restore(step, args=like)
            state = found["state"]
            loader.load_state_dict(found["loader"])
            print(f"  continues after step {step}, in epoch {loader.epoch}")
        first = loader.state_dict()["epoch"]
        for epoch in range(first, EPOCHS):
            for batch in loader.batches():
                state, loss = train(state, batch)
                step += 1
                if step == stop_at:
                    position = loader.state_dict()  # the same in every process, and without what is ahead
                    saved = ocp.args.Composite(state=ocp.args.StandardSave(state), loader=ocp.args.JsonSave(position))
                    manager.save(step, args=saved)
                    manager.wait_until_finished()
                    print(f"  stops after step {step}, in epoch {epoch}")
                    return state
            print(f"  epoch {epoch}: loss {float(loss):.3f}")
    return state


def main() -> None:
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        print(f"without a stop, on {jax.device_count()} device(s):")
        whole = run(one, None)
        print("with a stop:")
        run(other, 24)
        state = run(other, None)
    same = jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), whole, state))
    print("the weights are", "the same to the last bit" if same else "DIFFERENT")
    with make_loader(250, 0.3) as loader:
        hits = sum(int(right(state, batch)) for batch in loader.batches())
    print(f"of 250 new images {hits} are right; one compilation for {train._cache_size()} shape of batches")
    print(f"{time.perf_counter() - begun:.0f} s")
    sys.exit(not same)


if __name__ == "__main__":
    main()
