"""Makes batches of tensors with the dataset's `__gather__`, which writes all rows into the slab at once.

A gathered batch is equal to the batch that torch's default_collate would make. If equality is not certain, or if
anything raises an exception, the samples are fetched and collated instead (see `_collate.py`). The result is then
torch's batch or torch's error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock._fill.cast import DTYPES, Empty, FieldMemory
from penstock._memory.guests import LateLeaves
from penstock._system.panics import ordinary
from penstock._work.job import Job
from penstock.source._dataset import Subset
from penstock.source._mixture import MixtureDataset
from penstock.source._nested import is_of_numpy, leaves_of, method_of
from penstock.source._packing import PackedRows
from penstock.source._stages import SameKeys
from penstock.torch._collate import is_usual, takes, takes_rows
from penstock.torch._tensors import native


class Gathered(NamedTuple):
    batch: object
    rows: int


class TensorGather:
    """Gathers the batches of one worker. Checks once, with one sample, whether torch would stack such samples.

    `has_run` is True if the last call ran `__gather__`. The user's code may then have drawn random numbers, even if
    the call returned None. Only a `seeded` caller can draw these numbers again. For other callers, datasets whose
    `__gather__` may run the user's code are not gathered.

    `late` is True if the batch is sent to another process, which makes the tensors.
    """

    has_run = False

    def __init__(self, job: Job, *, seeded: bool, late: bool) -> None:
        self._dataset, self._seeded = job.dataset, seeded
        # __gather__ converts to numpy's dtypes. Others, such as bfloat16, are made of the finished tensors.
        self._converts = job.cast is None or {name for _, name in job.cast.fields} <= {None, *DTYPES}
        self._late = late and self._converts
        self._is_certain: bool | None = None  # None: not known yet

    def __call__(self, keys: Any, empty: Empty) -> Gathered | None:
        """Returns the batch for these keys, or None if the samples must be fetched and collated."""
        self.has_run = False
        if self._is_certain is False or not _are_usable(keys, self._dataset) or not is_usual():
            return None
        try:
            return self._gathered(keys if type(keys[0]) is tuple else np.asarray(keys), empty)
        except BaseException as error:
            if not isinstance(ordinary(error), Exception):
                raise
            return None  # an error that remains is raised by the samples

    def _gathered(self, keys: Any, empty: Empty) -> Gathered | None:
        # Looked up for each batch, because worker_init_fn may have changed the dataset.
        gather = method_of(self._dataset, "__gather__")
        if not is_of_numpy(gather) or "__getitems__" in getattr(self._dataset, "__dict__", ()):
            self._is_certain = False
            return None
        if self._is_certain is None and not self._seeded and not _packs_closed(self._dataset):
            self._is_certain = False
            return None
        self.has_run = True
        if type(empty) is FieldMemory and not self._converts:
            empty = empty.empty
        batch = gather(keys, empty)
        if batch is NotImplemented:
            return None
        if self._is_certain is None:
            first = keys.item(0) if type(keys) is np.ndarray else keys[0]
            self._is_certain = _would_be_stacked(self._dataset[first])
            if not self._is_certain:
                return None
        if self._late:
            return Gathered(LateLeaves(_as_torch(batch, _itself), native), len(keys))
        return Gathered(_as_torch(batch, torch.from_numpy), len(keys))


def is_closed(dataset: Any) -> bool:
    """True if the samples are made by penstock's code alone. Any other code might draw random numbers."""
    kind = type(dataset)
    if kind is PackedRows:
        return is_closed(dataset.documents)
    if kind is MixtureDataset:
        return all(map(is_closed, dataset.sources))
    if kind is SameKeys:
        return type(dataset.dataset) is list or is_closed(dataset.dataset)
    if kind is Subset:
        return type(dataset.indices) in (list, tuple, range, np.ndarray) and is_closed(dataset.dataset)
    if kind.__module__ == "penstock.formats._megatron":  # not imported here, because all formats would be
        return True
    return kind.__module__.startswith("penstock.") and is_of_numpy(method_of(dataset, "__gather__"))


def _packs_closed(dataset: Any) -> bool:
    """False if the dataset contains packed rows whose documents may come from the user's code."""
    return all(is_closed(leaf) for leaf in leaves_of(dataset) if isinstance(leaf, PackedRows))


def _are_usable(keys: Any, dataset: Any) -> bool:
    """True for integer keys, and for the tuples with which a loader requests planned rows."""
    if type(keys) is np.ndarray:
        return keys.ndim == 1 and len(keys) > 0 and keys.dtype.kind in "iu"
    kinds = set(map(type, keys)) if type(keys) is list else None
    return kinds == {int} or (kinds == {tuple} and method_of(dataset, "__windows__") is not None)


def _would_be_stacked(sample: Any) -> bool:
    values = sample.values() if type(sample) is dict else sample if type(sample) is tuple else (sample,)
    return all(type(value) in (str, bytes) or takes(value) for value in values)


def _itself(array: Any) -> Any:
    return array


def _as_torch(batch: Any, leaf: Callable[[Any], Any], texts: type = list) -> Any:
    """Converts a batch to the containers that torch makes, and each array to `leaf(array)`.

    Raises TypeError if torch might collate the samples differently.
    """
    kind = type(batch)
    if kind is np.ndarray:
        if not takes_rows(batch.dtype, batch.ndim == 1) or not batch.flags.c_contiguous:
            raise TypeError(f"torch may not keep {batch.dtype}")
        return leaf(batch)
    if kind is dict:
        return {key: _as_torch(column, leaf) for key, column in batch.items()}
    if kind is tuple:
        return [_as_torch(column, leaf, tuple) for column in batch]  # torch zips tuples: a column of text is a tuple
    if kind is list:
        return texts(batch)
    raise TypeError(f"a {kind.__name__} is not a part of a gathered batch")
