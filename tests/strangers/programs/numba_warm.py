# needs: numba
# seconds: 180
"""A parallel numba function, called once in the main program and then in every sample."""

import numba
import numpy as np

import penstock


@numba.njit(parallel=True)
def energy(x):
    total = 0.0
    for i in numba.prange(len(x)):
        total += x[i] * x[i]
    return total


class Energies:
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return energy(np.full(100_000, float(i)))


if __name__ == "__main__":
    assert energy(np.ones(100_000)) == 100_000
    loader = penstock.DataLoader(Energies(), batch_size=6, num_workers=2)
    got = np.concatenate(list(loader))
    np.testing.assert_allclose(got, np.arange(24.0) ** 2 * 100_000)
    print("ok")
