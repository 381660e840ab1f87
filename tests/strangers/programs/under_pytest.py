# needs: torch
# launch: python -m pytest -q SCRIPT
"""Tests of a project that trains: fixtures, classes of the test module, both faces."""

import numpy as np
import pytest
import torch

import penstock
import penstock.torch


class Words:
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return np.array([i, i * i])


@pytest.fixture(params=[0, 2])
def workers(request):
    return request.param


@pytest.mark.parametrize("method", [None, "spawn", "forkserver"])
def test_batches(workers, method):
    context = {"multiprocessing_context": method} if workers and method else {}
    with penstock.DataLoader(Words(), batch_size=5, num_workers=workers, **context) as loader:
        assert [batch.shape for batch in loader] == [(5, 2), (5, 2)]


def test_training(workers):
    model = torch.nn.Linear(2, 1)
    for batch in penstock.torch.DataLoader(Words(), batch_size=5, num_workers=workers):
        model(batch.float()).sum().backward()
