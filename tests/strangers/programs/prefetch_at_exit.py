# needs: torch
"""A prefetcher around a torch loader at module level, left in the middle."""

import torch
import torch.utils.data

import penstock

data = torch.utils.data.TensorDataset(torch.rand(4096, 64), torch.arange(4096))
batches = penstock.prefetch(torch.utils.data.DataLoader(data, batch_size=16))
for step, (x, y) in enumerate(batches):
    assert x.shape == (16, 64)
    if step == 20:
        break
print("ok")
