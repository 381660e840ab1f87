# needs: jax
# seconds: 120
"""A dataset that normalises with jax.numpy; its constants are made when the module is imported."""

import jax.numpy as jnp
import numpy as np

import penstock

MEAN = jnp.array([0.5, 0.4, 0.3])


class Pixels:
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return np.asarray(jnp.full(3, float(i)) - MEAN)


if __name__ == "__main__":
    rows = [row for batch in penstock.DataLoader(Pixels(), 4, num_workers=2) for row in batch]
    assert len(rows) == 12
    np.testing.assert_allclose(rows[5], [4.5, 4.6, 4.7], rtol=1e-6)
    print("ok")
