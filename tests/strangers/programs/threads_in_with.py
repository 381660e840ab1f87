# needs: torch
"""Threads inside of `with`, whole epochs, and an error in the main program afterwards that is caught."""

import torch

import penstock


class Rows:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return (torch.rand(50_000) * i).sum().item()


def main():
    with penstock.DataLoader(Rows(), batch_size=8, num_workers=4, backend="thread") as loader:
        for _ in range(3):
            assert sum(len(batch) for batch in loader) == 64
    with penstock.DataLoader(Rows(), batch_size=8, num_workers=4, backend="thread") as loader:
        next(iter(loader))


main()
print("ok")
