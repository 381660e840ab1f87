"""The private names of torch that penstock uses, except for those in `_collate.py` and `_tensors.py`.

`tests/parity/test_private.py` fails when torch moves one of these names.
"""

from __future__ import annotations

from typing import Any

from torch import _utils
from torch._C import _autograd
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data import dataloader as _dataloader
from torch.utils.data._utils import pin_memory as _pin_memory
from torch.utils.data._utils import worker as _worker

from penstock._system.warnings import called_through

called_through(_dataloader.__file__)  # torch's `__iter__` and `__next__` call our iterators

# The method that makes an iterator: called for each epoch, with persistent workers only for the first.
ITERATOR_METHOD = "_get_iterator"

PIPES = (IterDataPipe, MapDataPipe)  # the datasets that torch's loader seeds and shards
ExceptionWrapper: Any = _utils.ExceptionWrapper
# (base seed, index of the worker) -> the seed of `numpy.random` in that worker.
numpy_seed: Any = _worker._generate_state
# (batch, device) -> the pinned batch, by torch's own rules: nested containers, objects with a `pin_memory` method.
pin: Any = _pin_memory.pin_memory

# True while a profiler records this thread. To ask takes 0.04 us, and a range that nobody records takes 12.
is_profiled: Any = _autograd._profiler_enabled

BaseIterator: Any = _dataloader._BaseDataLoaderIter
InlineIterator: Any = _dataloader._SingleProcessDataLoaderIter
WorkersIterator: Any = _dataloader._MultiProcessingDataLoaderIter
NEXT: Any = BaseIterator.__next__


def is_stream(loader: Any) -> bool:
    return bool(loader._dataset_kind == _dataloader._DatasetKind.Iterable)


def is_batched(loader: Any) -> bool:
    return bool(loader._auto_collation)


def profiled_as(kind: Any) -> str:
    return f"enumerate(DataLoader)#{kind.__name__}.__next__"


def set_worker_info(id: int, num_workers: int, seed: int, dataset: Any) -> None:
    _worker._worker_info = _worker.WorkerInfo(id=id, num_workers=num_workers, seed=seed, dataset=dataset)
