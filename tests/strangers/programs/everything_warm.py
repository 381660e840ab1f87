# needs: torch jax cv2 pandas sklearn numba
# seconds: 240
"""A research script with everything imported and used before the loaders are made, in functions."""

import cv2
import jax
import jax.numpy as jnp
import numba
import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression

import penstock
import penstock.torch


@numba.njit(parallel=True)
def add(a, b):
    out = np.empty_like(a)
    for i in numba.prange(len(a)):
        out[i] = a[i] + b[i]
    return out


def warm_up():
    torch.rand(500, 500).matmul(torch.rand(500, 500)).sum().item()
    jax.jit(lambda x: (x @ x).sum())(jnp.ones((100, 100))).block_until_ready()
    cv2.GaussianBlur(np.zeros((500, 500, 3), np.uint8), (7, 7), 0)
    pd.DataFrame({"a": range(100)}).describe()
    LogisticRegression().fit(np.random.rand(100, 4), np.arange(100) % 2)
    add(np.ones(1000), np.ones(1000))


class Mixed:
    def __len__(self):
        return 32

    def __getitem__(self, i):
        image = cv2.resize(np.full((100, 100, 3), i, np.uint8), (32, 32))
        return torch.from_numpy(image).float().mean().item() + add(np.ones(10), np.ones(10)).sum()


def run(make, **options):
    loader = make(Mixed(), batch_size=8, num_workers=2, **options)
    values = np.concatenate([np.asarray(batch) for batch in loader])
    np.testing.assert_allclose(values, np.arange(32) + 20)


if __name__ == "__main__":
    warm_up()
    for _ in range(2):
        run(torch.utils.data.DataLoader, multiprocessing_context="spawn")
        run(penstock.DataLoader)
        run(penstock.torch.DataLoader)
        warm_up()
    print("ok")
