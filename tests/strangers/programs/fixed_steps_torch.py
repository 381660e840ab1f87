# needs: torch
"""The same with penstock.torch, and persistent workers."""

import multiprocessing

import torch

from penstock.torch import DataLoader

data = torch.utils.data.TensorDataset(torch.arange(40))
loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
workers = set()
for epoch in range(3):
    batches = iter(loader)
    seen = [int(i) for _ in range(len(loader)) for i in next(batches)[0]]
    assert sorted(seen) == list(range(40))
    workers |= {child.pid for child in multiprocessing.active_children()}
assert len(workers) == 2, f"{len(workers)} workers for num_workers=2"
print("ok")
