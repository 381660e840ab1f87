# needs: jax
# seconds: 120
# launch: python SCRIPT
# launch: notebook
"""Batches of jax.Arrays on four devices; the program keeps some, stops in the middle, resumes, and never closes."""

# %%
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import penstock.jax

# %%
images = np.random.default_rng(0).integers(0, 255, (200, 16, 16, 3), dtype=np.uint8)


class Images:
    def __len__(self):
        return len(images)

    def __getitem__(self, i):
        return {"image": images[i], "label": i % 10, "name": f"{i}.png"}


mesh = jax.make_mesh((4,), ("data",))


def make():
    split = NamedSharding(mesh, P("data"))
    return penstock.jax.DataLoader(
        Images(), batch_size=32, sharding=split, shuffle=True, seed=0, num_workers=2, dtype={"image": "bfloat16"}
    )


@jax.jit
def mean(image, mask):
    return (image.astype(jnp.float32).mean((1, 2, 3)) * mask).sum() / mask.sum()


# %%
loader = make()
kept, means = [], []
for number, batch in enumerate(loader.batches()):
    kept.append(batch.data)
    means.append(float(mean(batch.data["image"], batch.mask)))
    if number == 3:
        state = loader.state_dict()
assert len(means) == 7, means
assert mean._cache_size() == 1

# %%
again = make()
again.load_state_dict(state)
rest = [float(mean(batch.data["image"], batch.mask)) for batch in again.batches()]
assert rest == means[4:], (rest, means)
for data in kept:
    keys = [int(name.removesuffix(".png")) for name in data["name"]]
    assert np.array_equal(np.asarray(data["image"]), images[keys].astype(jnp.bfloat16))
    assert data["label"].tolist() == [key % 10 for key in keys]
print("ok")
