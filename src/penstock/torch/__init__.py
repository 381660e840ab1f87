"""The face for torch users: `from penstock.torch import DataLoader`, and nothing else changes.

`enable()` makes every loader of torch's in this process iterate on penstock, for frameworks that build their
loaders themselves.
"""

from __future__ import annotations

from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    get_worker_info,
    random_split,
)

from penstock.torch.iterators import served
from penstock.torch.loader import DataLoader, disable, enable

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate",
    "default_convert",
    "disable",
    "enable",
    "get_worker_info",
    "random_split",
    "served",
]
