# needs: torch dill
"""Persistent workers of module-level loaders, an iterator and a batch that are still there at exit. dill is installed."""

import torch
import torch.utils.data

import penstock
from penstock.torch import DataLoader

data = torch.utils.data.TensorDataset(torch.arange(64.0))
loader = DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True)
other = penstock.DataLoader(list(range(64)), batch_size=4, num_workers=2, persistent_workers=True)
for (batch,) in loader:
    pass
iterator = iter(loader)
kept = next(iterator)
native = iter(other)
kept_too = next(native)
prefetched = penstock.prefetch(other)
first = next(iter(prefetched))
consumers = other.share(2)
last = next(consumers[0])
print("ok")
