"""Every private name of torch that is used here, except those in `_collate.py`.

`tests/parity/test_private.py` fails when torch moves one of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import _utils
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data import dataloader as _dataloader
from torch.utils.data._utils import pin_memory as _pin_memory
from torch.utils.data._utils import worker as _worker

from penstock._deliver.delivery import Delivery

# The method that makes an iterator: called for each epoch, with persistent workers only for the first.
ITERATOR_METHOD = "_get_iterator"

ExceptionWrapper: Any = _utils.ExceptionWrapper

BaseIterator: Any = _dataloader._BaseDataLoaderIter
InlineIterator: Any = _dataloader._SingleProcessDataLoaderIter
WorkersIterator: Any = _dataloader._MultiProcessingDataLoaderIter


def is_stream(loader: Any) -> bool:
    """True if the loader reads an IterableDataset."""
    return bool(loader._dataset_kind == _dataloader._DatasetKind.Iterable)


def is_pipe(dataset: object) -> bool:
    """True for a DataPipe, which torch's loader seeds and shards."""
    return isinstance(dataset, (IterDataPipe, MapDataPipe))


def is_batched(loader: Any) -> bool:
    """True if the loader makes batches of samples."""
    return bool(loader._auto_collation)


def profiled_as(kind: Any) -> str:
    """The name that `next` of such an iterator has in a profile."""
    return f"enumerate(DataLoader)#{kind.__name__}.__next__"


def numpy_seed(base_seed: int, worker: int) -> Any:
    """The seed that torch gives `numpy.random` in a worker."""
    return _worker._generate_state(base_seed, worker)  # type: ignore[no-untyped-call]


def set_worker_info(id: int, num_workers: int, seed: int, dataset: Any) -> None:
    """From now on `torch.utils.data.get_worker_info()` returns this."""
    _worker._worker_info = _worker.WorkerInfo(id=id, num_workers=num_workers, seed=seed, dataset=dataset)


def pinning(device: str | None) -> Delivery:
    """Pins a whole batch by torch's own rules: nested containers, and objects with a `pin_memory` method."""
    return partial(_pin_memory.pin_memory, device=device)


def untyped(storage: Any) -> torch.UntypedStorage:
    """The memory of a typed storage. Its public `untyped()` warns that typed storages are deprecated."""
    memory: torch.UntypedStorage = storage._untyped_storage
    return memory


def typed(memory: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    """A typed storage on this memory: tensors are pickled with these."""
    return torch.TypedStorage(wrap_storage=memory, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
