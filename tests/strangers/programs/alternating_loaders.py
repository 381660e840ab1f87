# needs: torch
"""Functions of a benchmark: torch's loader, penstock.torch and penstock in turn, three times."""

import time

import numpy as np
import torch
import torch.utils.data

import penstock
import penstock.torch


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        image = torch.full((3, 64, 64), float(i))
        return torch.nn.functional.avg_pool2d(image, 2), i


def with_torch():
    return torch.utils.data.DataLoader(Images(), batch_size=8, num_workers=2)


def with_the_face():
    return penstock.torch.DataLoader(Images(), batch_size=8, num_workers=2)


def with_penstock():
    return penstock.DataLoader(Images(), batch_size=8, num_workers=2)


def measure(make):
    began = time.perf_counter()
    total = 0
    for images, labels in make():
        assert tuple(images.shape) == (8, 3, 32, 32)
        total += int(np.asarray(labels).sum())
    assert total == 63 * 64 // 2
    return time.perf_counter() - began


def main():
    torch.rand(1000, 1000) @ torch.rand(1000, 1000)  # warm up
    for _ in range(3):
        for make in (with_torch, with_the_face, with_penstock):
            print(f"{make.__name__}: {measure(make):.2f} s")


if __name__ == "__main__":
    main()
