# needs: torch
# quick
"""Threads, torch in every sample, and the program just ends: in the middle of an epoch, nothing closed."""

import torch

import penstock


class Convolved:
    def __len__(self):
        return 1000

    def __getitem__(self, i):
        image = torch.rand(1, 3, 128, 128)
        return torch.nn.functional.conv2d(image, torch.rand(8, 3, 5, 5))[0].numpy()


loader = penstock.DataLoader(Convolved(), batch_size=4, num_workers=2, backend="thread")
for step, batch in enumerate(loader):
    assert batch.shape == (4, 8, 124, 124)
    if step == 5:
        break
print("ok")
