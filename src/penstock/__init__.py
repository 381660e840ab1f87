"""penstock is a data loader: it turns a dataset into a stream of batches, prefetched by workers."""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from penstock._memory.guests import GUESTS as _GUESTS
from penstock._open import open
from penstock._progress import progress
from penstock.batch import Batch
from penstock.collate import default_collate, pad
from penstock.errors import (
    CastError,
    CollateError,
    InternalError,
    LoaderTimeout,
    RemoteTraceback,
    StateError,
    UnshippableDataset,
    WorkerLost,
)
from penstock.loader import DataLoader
from penstock.plan import (
    BatchSampler,
    BlockSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from penstock.prefetch import Prefetcher, prefetch
from penstock.random import each, rng
from penstock.source import (
    ArrayDataset,
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    PackedList,
    StackDataset,
    Subset,
    dataset,
    mix,
    random_split,
)
from penstock.source._stages import survey_by as _survey_by
from penstock.stats._hooks import on_stats
from penstock.worker_info import WorkerInfo, get_worker_info

if _TYPE_CHECKING:
    from penstock.source._packing import cu_seqlens, pack

__version__ = "0.1.0"

_LATE = ("formats", "image", "records", "testing", *_GUESTS)  # imported when a program first names them
_LATE_FUNCTIONS = {"cu_seqlens": "penstock.source._packing", "pack": "penstock.source._packing"}
_MODULES = ("errors", "stats", *_LATE)


def __getattr__(name: str) -> _ModuleType:  # for type checkers, to which the functions are known
    if name in _LATE_FUNCTIONS:
        found: _Any = getattr(_import_module(_LATE_FUNCTIONS[name]), name)
        globals()[name] = found
        return found  # type: ignore[no-any-return]
    if name in _LATE:
        try:
            return _import_module(f"penstock.{name}")
        except ImportError as error:  # without torch, hasattr(penstock, "torch") is False, and does not raise
            raise AttributeError(str(error)) from error
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def _survey(*args: _Any) -> _Any:
    from penstock._survey import survey  # late: few programs need it and its imports

    return survey(*args)


_survey_by(_survey)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "__doc__", *(name for name in _MODULES if name in globals())])


__all__ = [
    "ArrayDataset",
    "Batch",
    "BatchSampler",
    "BlockSampler",
    "CastError",
    "ChainDataset",
    "CollateError",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "InternalError",
    "IterableDataset",
    "LoaderTimeout",
    "PackedList",
    "Prefetcher",
    "RandomSampler",
    "RemoteTraceback",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "StateError",
    "Subset",
    "SubsetRandomSampler",
    "UnshippableDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "WorkerLost",
    "cu_seqlens",
    "dataset",
    "default_collate",
    "each",
    "get_worker_info",
    "mix",
    "on_stats",
    "open",
    "pack",
    "pad",
    "prefetch",
    "progress",
    "random_split",
    "rng",
]
