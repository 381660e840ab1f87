# needs: jax
# seconds: 120
# launch: python SCRIPT
# launch: notebook
"""Linear regression in JAX: numpy samples from two workers, a jitted step, three epochs."""

import jax
import jax.numpy as jnp
import numpy as np

import penstock

# %%
rng = np.random.default_rng(0)
features = rng.normal(size=(512, 8)).astype(np.float32)
true = np.arange(8, dtype=np.float32)


class Rows:
    def __len__(self):
        return len(features)

    def __getitem__(self, i):
        return {"x": features[i], "y": features[i] @ true}


@jax.jit
def step(w, x, y):
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * slope, loss


# %%
w = jnp.zeros(8)
loader = penstock.DataLoader(Rows(), batch_size=32, shuffle=True, num_workers=2, seed=1)
for _ in range(8):
    for batch in loader:
        w, loss = step(w, batch["x"], batch["y"])
assert float(loss) < 0.01, float(loss)
np.testing.assert_allclose(np.asarray(w), true, atol=0.2)
loader.close()
print("ok")
