"""The sources of samples: datasets with keys, streams, arrays, and lists that workers share."""

from penstock.source._array import ArrayDataset
from penstock.source._dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    random_split,
)
from penstock.source._packed import PackedList
from penstock.source._stages import dataset, mix

__all__ = [
    "ArrayDataset",
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "PackedList",
    "StackDataset",
    "Subset",
    "dataset",
    "mix",
    "random_split",
]
