# needs: torch accelerate
# seconds: 120
"""accelerate rebuilds my loader. The order that seed= gives stays."""

import torch
from accelerate import Accelerator

import penstock.torch

penstock.torch.enable()

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


def order():
    loader = DataLoader(TensorDataset(torch.arange(32)), batch_size=4, shuffle=True, num_workers=2, seed=7)
    return [int(i) for (batch,) in Accelerator(cpu=True).prepare(loader) for i in batch]


def main():
    first = order()
    assert sorted(first) == list(range(32))
    assert first != list(range(32))
    assert order() == first
    print("ok")


if __name__ == "__main__":
    main()
