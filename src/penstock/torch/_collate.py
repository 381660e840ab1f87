"""torch's default_collate, its tensors written straight into the slab.

What comes out is what torch's own function makes of the same samples: its containers and its choice of
a rule are repeated here, the rules that copy are replaced. A rule of ours does a column of the usual
kind, or says None; then torch's own does it, and raises what it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from operator import attrgetter
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert

# The one private module of torch's that is used here: `collate`, `default_collate_fn_map` (both named in the
# documentation of default_collate), and the rules in it: `collate_tensor_fn`, `collate_numpy_array_fn`,
# `collate_numpy_scalar_fn`, `collate_float_fn`, `collate_int_fn`. test_torch_collate.py fails when torch moves one.
from torch.utils.data._utils import collate as theirs

from penstock._fill.cast import DTYPES, Into
from penstock.torch._tensors import NATIVE, blank

Empty = Callable[[tuple[int, ...], "np.dtype[Any]"], "np.ndarray[Any, Any]"]
"""Hands out C-contiguous memory for one array: of the slab, or `np.empty`."""

Rules = dict[Any, Callable[..., Any]]

# Rows of fewer bytes are stacked in memory of their own, and copied into the slab afterwards: that takes less time
# than to look at each before all are written into given memory (64 rows of 512 bytes 36 us against 41, of 4 KB 70
# against 60).
SMALL = 1024


def convert(sample: object) -> Any:
    """What torch makes of a sample that is not part of a batch (`batch_size=None`)."""
    return default_convert(sample)  # type: ignore[no-untyped-call]


def collate(samples: Any, empty: Empty, *, alone: bool = True) -> Any:
    """What `torch.utils.data.default_collate` makes of these samples, large tensors in memory of `empty`.

    `alone`: with the strides that they have without workers. In a worker, torch's tensors are contiguous.
    """
    if not torch.empty(0).is_cpu:  # torch.set_default_device: numbers and arrays become tensors there
        return default_collate(samples)
    return _collate(samples, empty, theirs.default_collate_fn_map, alone)


def _collate(batch: Any, empty: Empty, rules: Rules, alone: bool) -> Any:
    first = batch[0]
    kind = type(first)
    rule = rules.get(kind)
    if rule is None:
        rule = next((rules[key] for key in rules if isinstance(first, key)), None)
    if rule is not None:
        return _apply(rule, empty, rules, alone, batch)
    if kind is dict:
        each = zip(first, _below(empty, first), strict=False)
        return {key: _collate([sample[key] for sample in batch], its, rules, alone) for key, its in each}
    if kind is tuple or kind is list:
        if len(set(map(len, batch))) == 1:
            columns = zip(zip(*batch, strict=True), _below(empty, range(len(first))), strict=False)
            return [_collate(column, its, rules, alone) for column, its in columns]
    elif issubclass(kind, tuple) and hasattr(first, "_fields"):
        columns = zip(zip(*batch, strict=False), _below(empty, first._fields), strict=False)
        return kind(*[_collate(column, its, rules, alone) for column, its in columns])
    if type(empty) is Into:
        empty = empty.empty  # what they hold is converted afterwards
    # Other containers are torch's, with our rules in its table.
    ours: Rules = {key: partial(_apply, rule, empty, rules, alone) for key, rule in rules.items()}
    return theirs.collate(batch, collate_fn_map=ours)


def _below(empty: Empty, keys: Iterable[Any]) -> Iterable[Empty]:
    return empty.below(keys) if type(empty) is Into else repeat(empty)


def _apply(
    rule: Callable[..., Any],
    empty: Empty,
    rules: Rules,
    alone: bool,
    batch: Any,
    collate_fn_map: Any = None,
) -> Any:
    usual = type(rule) is FunctionType and type(batch) in _BATCHES
    ours = _OURS.get(rule) if usual else None
    if type(empty) is Into:
        made = None if ours is None else _converted(batch, empty)
        if made is not None:
            return made
        empty = empty.empty  # it is converted afterwards, if it must be
    made = None if ours is None else ours(batch, empty, rules, alone)
    return rule(batch, collate_fn_map=rules) if made is None else made


def _converted(batch: Any, into: Into) -> torch.Tensor | None:
    """The column as the field's dtype, converted while it is written; None where that is not certain to be right."""
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


# ---- the rules: a tensor, or None where it is not certain that torch would make just this one ----------


def _tensors(batch: Any, empty: Empty, rules: Rules, alone: bool) -> torch.Tensor | None:
    first = batch[0]
    dtype, size = first.dtype, len(batch)
    if first.layout is not torch.strided:
        return None
    try:
        # Of clips with the channels last torch makes such a batch where it is alone. That is left to it.
        special = first.ndim > 3 and not first.is_contiguous()
        if alone if special else first.nbytes < SMALL:
            made = torch.stack(batch)
            # With dtypes mixed, or gradients, a worker of torch's does not do what its inline loader does.
            if made.dtype is dtype and not made.requires_grad:
                return made
        elif set(map(type, batch)) == {torch.Tensor} and set(map(attrgetter("dtype"), batch)) == {dtype}:
            return torch.stack(batch, out=blank((size, *first.shape), dtype, empty))
    except Exception:
        pass  # torch's own rule says what is wrong
    return None


def _arrays(batch: Any, empty: Empty, rules: Rules, alone: bool) -> torch.Tensor | None:
    if rules.get(torch.Tensor) is not _STACK:
        return None  # torch's rule hands the arrays to that one, as tensors
    first, size = batch[0], len(batch)
    dtype, shape = first.dtype, first.shape
    at_once = type(batch) is np.ndarray  # what a dataset's __getitems__ may give
    if dtype not in _DTYPES or not (at_once or _ARRAYS.issuperset(map(type, batch))):
        return None
    if _refused({first.strides} if at_once else set(map(attrgetter("strides"), batch)), dtype):
        return None
    try:
        if at_once:
            out = empty(batch.shape, dtype)
            out[...] = batch
        elif len(set(map(len, batch))) == 1:
            out = empty((size, *shape), dtype)
            # It refuses other lengths in the other axes, and by "no" other dtypes.
            np.concatenate(batch, out=out.reshape(size * shape[0], *shape[1:]), casting="no")
        else:
            return None
    except (TypeError, ValueError):
        return None
    return torch.from_numpy(out)


def _refused(every: set[tuple[int, ...]], dtype: np.dtype[Any]) -> bool:
    """Whether there are steps that torch refuses: backwards, and over parts of an element."""
    return any(step < 0 or step % dtype.itemsize for strides in every for step in strides)


def _numbers(
    kinds: dict[type, np.dtype[Any]], batch: Any, empty: Empty, rules: Rules, alone: bool
) -> torch.Tensor | None:
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
    """Whether torch makes a tensor of scalars of this class, with the dtype that numpy gives them."""
    try:
        return bool(torch.as_tensor([kind(1)]).numpy().dtype == np.dtype(kind))
    except (TypeError, ValueError):
        return False


_BATCHES = {list, tuple, np.ndarray}
_ARRAYS = {np.ndarray, np.memmap}
_DTYPES = set(NATIVE.values())
_INTS: dict[type, np.dtype[Any]] = {int: np.dtype(np.int64), bool: np.dtype(np.bool_)}
_FLOATS: dict[type, np.dtype[Any]] = {float: np.dtype(np.float64)}
_SCALARS: dict[type, np.dtype[Any]] = {dtype.type: dtype for dtype in _DTYPES if _is_taken(dtype.type)}

_STACK = theirs.collate_tensor_fn
_OURS: dict[Any, Callable[[Any, Empty, Rules, bool], torch.Tensor | None]] = {
    _STACK: _tensors,
    theirs.collate_numpy_array_fn: _arrays,
    theirs.collate_numpy_scalar_fn: partial(_numbers, _SCALARS),
    theirs.collate_float_fn: partial(_numbers, _FLOATS),
    theirs.collate_int_fn: partial(_numbers, _INTS),
}
