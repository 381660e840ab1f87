"""What the samples are: datasets with keys, streams, arrays, and lists that workers share."""

from penstock.source.array import ArrayDataset
from penstock.source.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    random_split,
)
from penstock.source.packed import PackedList

__all__ = [
    "ArrayDataset",
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "PackedList",
    "StackDataset",
    "Subset",
    "random_split",
]
