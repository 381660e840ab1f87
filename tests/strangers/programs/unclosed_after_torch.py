# needs: torch
"""A torch loader, and then an unfinished epoch of penstock that nobody closes."""

import torch
import torch.utils.data

import penstock

data = torch.utils.data.TensorDataset(torch.arange(64.0))
for _ in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2):
    pass
batches = iter(penstock.DataLoader(range(64), batch_size=8, num_workers=2))
next(batches)
print("ok")
