# needs: torch
# quick
# launch: python SCRIPT
# launch: python -m MODULE
"""I have a torch loader, and try penstock beside it, in the same script, without a main guard."""

import torch
from torch.utils.data import DataLoader as TorchLoader

import penstock


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        # large enough for torch to use several threads
        return (torch.rand(300_000) + 1).sum().item(), i


data = Noise()
data[0]  # look at a sample first
for _, indices in TorchLoader(data, 4, num_workers=2):
    assert len(indices) == 4
seen = []
for _, indices in penstock.DataLoader(data, 4, num_workers=2):
    seen += indices.tolist()
assert seen == list(range(16)), seen
for _, indices in TorchLoader(data, 4, num_workers=2):
    assert len(indices) == 4
print("ok")
