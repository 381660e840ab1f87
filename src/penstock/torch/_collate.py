"""torch's default_collate, with tensors written directly into the slab (the shared memory of the batch).

As in torch, containers are taken apart, and the type of a column's first element decides which rule collates the
column. Only the rules that copy data are replaced. If the result might differ from torch's, penstock's rule returns
None, and torch's own rule collates the column or raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import attrgetter
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

# The only private module of torch that is used here: `collate` and `default_collate_fn_map` (both are named in the
# documentation of default_collate), and the rules `collate_tensor_fn`, `collate_numpy_array_fn`,
# `collate_numpy_scalar_fn`, `collate_float_fn`, `collate_int_fn`, `collate_str_fn`. test_torch_collate.py fails if
# torch moves one.
from torch.utils.data._utils import collate as theirs

import penstock.collate
from penstock._fill.cast import DTYPES, Empty, FieldMemory
from penstock._fill.pad import Pad, check_called
from penstock._memory.tree import flatten, unflatten
from penstock.errors import CollateError
from penstock.torch._tensors import NATIVE, blank

Rules = dict[Any, Callable[..., Any]]
Kinds = dict[type, np.dtype[Any]]

# Rows of fewer bytes are stacked in ordinary memory, and then copied into the slab: that is faster than checking each
# row before all are written to given memory (64 rows of 512 bytes: 36 us against 41; of 4 KB: 70 against 60).
SMALL = 1024


def collate(samples: Any, empty: Empty, *, alone: bool = True) -> Any:
    """Collates as torch's default_collate does, but makes large tensors in memory allocated by `empty`.

    `alone` is True if there are no workers. torch then keeps some memory layouts, whereas torch's workers make
    tensors contiguous.
    """
    if not torch.empty(0).is_cpu:  # torch.set_default_device: tensors are made on that device
        return default_collate(samples)
    return _collate(samples, empty, alone)


def is_usual() -> bool:
    """True if torch's default_collate has only its original rules, and makes tensors in CPU memory."""
    return theirs.default_collate_fn_map == _USUAL and torch.empty(0).is_cpu


def takes(value: Any) -> bool:
    """True if torch's default_collate stacks values like this one into a contiguous tensor of the same dtype."""
    if type(value) is not np.ndarray:
        return type(value) in _SCALARS
    is_plain = value.ndim > 0 and value.flags.c_contiguous and value.flags.aligned
    return is_plain and not _refused({value.strides}, value.dtype) and takes_rows(value.dtype, False)


def takes_rows(dtype: np.dtype[Any], scalars: bool) -> bool:
    """True if torch's default_collate keeps this dtype for arrays or, if `scalars` is True, for scalars."""
    return dtype.isnative and dtype.char in (_SCALAR_CODES if scalars else _ARRAY_CODES)


def explained(samples: Any) -> Any:
    """Collates as torch's default_collate does, but adds to each error the field's name, which torch leaves out."""
    try:
        return default_collate(samples)
    except Exception as error:
        explain(error, samples)
        raise


def explain(error: Exception, samples: Any) -> None:
    """Adds a note to the error that names the field and the rows that do not fit together."""
    try:
        penstock.collate.default_collate(samples)
    except CollateError as found:
        error.add_note(str(found))
    except Exception:
        pass  # the samples are not even a batch


@dataclass(frozen=True)
class PadTensors:
    """Does the same as `penstock.pad`, but makes tensors, which share the memory of the padded arrays."""

    padding: Pad

    def with_padding(self, pad: Pad) -> PadTensors:
        return PadTensors(pad)

    def __call__(self, samples: Any) -> Any:
        return _as_tensors(self.padding(samples))

    def into(self, samples: Any, empty: Empty) -> Any:
        return _as_tensors(self.padding.into(samples, empty))


def with_tensors(collate_fn: Any) -> Any:
    """Returns `collate_fn` or, if `collate_fn` is a `penstock.pad`, a version that makes tensors."""
    check_called(collate_fn)
    return PadTensors(collate_fn) if isinstance(collate_fn, Pad) else collate_fn


def _as_tensors(batch: Any) -> Any:
    leaves, spec = flatten(batch)
    known = _DTYPES | {np.dtype(np.bool_)}
    made = [torch.from_numpy(leaf) if getattr(leaf, "dtype", None) in known else leaf for leaf in leaves]
    return unflatten(spec, made)


def _collate(batch: Any, empty: Empty, alone: bool) -> Any:
    first, rules = batch[0], theirs.default_collate_fn_map
    kind = type(first)
    rule = rules.get(kind)
    if rule is None:
        rule = next((rules[key] for key in rules if isinstance(first, key)), None)
    if rule is not None:
        return _apply(rule, empty, alone, batch)
    if kind is dict:
        each = zip(first, _below(empty, first), strict=False)
        return {key: _collate([sample[key] for sample in batch], its, alone) for key, its in each}
    if kind is tuple or kind is list:
        if len(set(map(len, batch))) == 1:
            columns = zip(zip(*batch, strict=True), _below(empty, range(len(first))), strict=False)
            return [_collate(column, its, alone) for column, its in columns]
    elif issubclass(kind, tuple) and hasattr(first, "_fields"):
        columns = zip(zip(*batch, strict=False), _below(empty, first._fields), strict=False)
        return kind(*[_collate(column, its, alone) for column, its in columns])
    if type(empty) is FieldMemory:
        empty = empty.empty  # the values are converted afterwards
    # Other containers are left to torch, with our rules in its table.
    ours: Rules = {key: partial(_apply, rule, empty, alone) for key, rule in rules.items()}
    return theirs.collate(batch, collate_fn_map=ours)


def _below(empty: Empty, keys: Iterable[Any]) -> Iterable[Empty]:
    return empty.below(keys) if type(empty) is FieldMemory else repeat(empty)


def _apply(rule: Callable[..., Any], empty: Empty, alone: bool, batch: Any, collate_fn_map: Any = None) -> Any:
    usual = type(rule) is FunctionType and type(batch) in _BATCHES
    ours = _OURS.get(rule) if usual else None
    if type(empty) is FieldMemory:
        made = None if ours is None else _converted(batch, empty)
        if made is not None:
            return made
        empty = empty.empty  # the column is converted afterwards, if necessary
    made = None if ours is None else ours(batch, empty, alone)
    return rule(batch, collate_fn_map=theirs.default_collate_fn_map) if made is None else made


def _converted(batch: Any, into: FieldMemory) -> torch.Tensor | None:
    """Writes a column, converted to its field's dtype. Returns None if torch's result might differ."""
    first, kinds = batch[0], set(map(type, batch))
    if kinds == {torch.Tensor} and set(map(attrgetter("dtype"), batch)) <= NATIVE.keys():
        if any(each.requires_grad or each.layout is not torch.strided for each in batch):
            return None
        if first.ndim > 3 and not first.is_contiguous():
            return None
        batch = [each.numpy() for each in batch]
    elif not kinds <= _ARRAYS:
        return None
    dtype = batch[0].dtype
    if set(map(attrgetter("dtype"), batch)) != {dtype} or dtype not in _DTYPES or not batch[0].ndim:
        return None
    name = into.field.wanted(dtype.kind, "a tensor of ", dtype)
    if name not in DTYPES or name == dtype.name or len(set(map(attrgetter("shape"), batch))) > 1:
        return None
    if _refused(set(map(attrgetter("strides"), batch)), dtype):
        return None
    return torch.from_numpy(into.stack(batch, dtype))


# ---- the rules: each returns a tensor, or None if torch's result might differ ----------------------------


def _tensors(batch: Any, empty: Empty, alone: bool) -> torch.Tensor | None:
    first = batch[0]
    dtype, size = first.dtype, len(batch)
    if first.layout is not torch.strided:
        return None
    try:
        # Without workers torch keeps channels_last in a batch of such tensors. torch.stack does that.
        special = first.ndim > 3 and not first.is_contiguous()
        if alone if special else first.nbytes < SMALL:
            made = torch.stack(batch)
            # With mixed dtypes or gradients, torch's workers and torch's inline loader differ.
            if made.dtype is dtype and not made.requires_grad:
                return made
        elif set(map(type, batch)) == {torch.Tensor} and set(map(attrgetter("dtype"), batch)) == {dtype}:
            return torch.stack(batch, out=blank((size, *first.shape), dtype, empty))
    except Exception:
        pass  # torch's own rule raises the right error
    return None


def _arrays(batch: Any, empty: Empty, alone: bool) -> torch.Tensor | None:
    if theirs.default_collate_fn_map.get(torch.Tensor) is not _STACK:
        return None  # the rule for tensors was replaced, and torch's rule for arrays calls it
    first, size = batch[0], len(batch)
    dtype, shape = first.dtype, first.shape
    at_once = type(batch) is np.ndarray  # a dataset's __getitems__ may return one
    if dtype not in _DTYPES or not (at_once or _ARRAYS.issuperset(map(type, batch))):
        return None
    if _refused({first.strides} if at_once else set(map(attrgetter("strides"), batch)), dtype):
        return None
    if alone and first.ndim > 3 and not first.flags.c_contiguous:
        return None  # torch keeps channels_last (see `_tensors`)
    try:
        if at_once:
            out = empty(batch.shape, dtype)
            out[...] = batch
        elif len(set(map(len, batch))) == 1:
            out = empty((size, *shape), dtype)
            # Raises if the other axes differ, and because of "no" if the dtypes differ.
            np.concatenate(batch, out=out.reshape(size * shape[0], *shape[1:]), casting="no")
        else:
            return None
    except (TypeError, ValueError):
        return None
    return torch.from_numpy(out)


def _refused(every: set[tuple[int, ...]], dtype: np.dtype[Any]) -> bool:
    """True if torch refuses one of these strides, because it is negative or not a multiple of the element size."""
    return any(step < 0 or step % dtype.itemsize for strides in every for step in strides)


def _numbers(kinds: Kinds, batch: Any, empty: Empty, alone: bool) -> torch.Tensor | None:
    kind, size = type(batch[0]), len(batch)
    dtype = kinds.get(kind)
    if dtype is None or list(map(type, batch)).count(kind) != size:
        return None
    out = empty((size,), dtype)
    try:
        out[:] = batch
    except OverflowError:
        return None
    return torch.from_numpy(out)


def _is_taken(kind: type[np.generic]) -> bool:
    """True if torch can make a tensor from scalars of this class, with the same dtype that numpy uses."""
    try:
        return bool(torch.as_tensor([kind(1)]).numpy().dtype == np.dtype(kind))
    except (TypeError, ValueError):
        return False


_BATCHES = {list, tuple, np.ndarray}
_ARRAYS = {np.ndarray, np.memmap}
_DTYPES = set(NATIVE.values())
_INTS: Kinds = {int: np.dtype(np.int64), bool: np.dtype(np.bool_)}
_FLOATS: Kinds = {float: np.dtype(np.float64)}
_SCALARS: Kinds = {dtype.type: dtype for dtype in _DTYPES if _is_taken(dtype.type)}

# By numpy's codes, because dtypes that are equal may differ for torch: it takes uint64 ("L"), and refuses "Q".
_ARRAY_CODES = {dtype.char for dtype in _DTYPES}
_SCALAR_CODES = {dtype.char for dtype in _SCALARS.values()}

_USUAL = {
    torch.Tensor: theirs.collate_tensor_fn,
    np.ndarray: theirs.collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): theirs.collate_numpy_scalar_fn,
    float: theirs.collate_float_fn,
    int: theirs.collate_int_fn,
    str: theirs.collate_str_fn,
    bytes: theirs.collate_str_fn,
}
_STACK = theirs.collate_tensor_fn
_OURS: dict[Any, Callable[[Any, Empty, bool], torch.Tensor | None]] = {
    _STACK: _tensors,
    theirs.collate_numpy_array_fn: _arrays,
    theirs.collate_numpy_scalar_fn: partial(_numbers, _SCALARS),
    theirs.collate_float_fn: partial(_numbers, _FLOATS),
    theirs.collate_int_fn: partial(_numbers, _INTS),
}
