"""Collates the samples of one step. Each array of the batch is written once, directly into the slab.

A batch is filled column by column. A column consists of one field's values from all samples. If the values are
arrays, their classes, dtypes and shapes are checked without a Python loop, and one call to `np.concatenate` copies
all rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import fields
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np

from penstock._fill.cast import Empty, FieldMemory
from penstock._fill.misfit import PAD_OR_PACK, Array, Column, Misfit, in_rows, is_arraylike, rows_of_each
from penstock._memory.forms import close_dataclass, close_named, is_dataclass, is_namedtuple, remake
from penstock._memory.tree import MAX_DEPTH
from penstock._wire.failure import safe_text, type_name
from penstock.errors import CollateError


def convert(sample: object) -> object:
    """Returns the sample unchanged, because with `batch_size=None` nothing is stacked."""
    return sample


def collate(samples: Sequence[object], empty: Empty) -> Any:
    """Returns the batch of these samples. Each array gets its memory from one call to `empty`.

    `samples` may also be an array, such as the result of a dataset's `__getitems__`. Each row is then a sample, and
    the array is copied once.
    """
    try:
        if not isinstance(samples, (list, tuple)):
            if hasattr(type(samples), "__array__"):
                return _rows(_as_array(samples), empty)
            if isinstance(samples, (Mapping, str, bytes)):
                raise Misfit(f"a {type_name(samples)} is not a sequence of samples. Give a list of them")
            given, samples = samples, list(samples)
            if isinstance(given, Sized) and len(given) != len(samples):  # an IndexError or StopIteration ends a loop
                raise Misfit(f"a {type_name(given)} has {len(given)} samples, and ends after {len(samples)}")
        if not samples:
            raise Misfit(_NO_SAMPLES)
        return _column(samples, empty, 0)
    except Misfit as misfit:
        error = CollateError(f"sample{misfit.where()}: {misfit}.")
        error.rows, error.reference = misfit.rows, misfit.reference
        raise error from misfit.__cause__


_NO_SAMPLES = "there are no samples: the step is empty. Leave empty steps out of the batch_sampler"


def _column(values: Column, empty: Empty, depth: int) -> Any:
    kind = type(values[0])
    if list(map(type, values)).count(kind) == len(values):
        if kind is np.ndarray or kind is np.memmap:
            return _arrays(values, empty)
        if kind in _NUMBERS:
            return _numbers(values, kind, empty)
        if kind is str or kind is bytes:
            return _text(values, empty)
        if depth == MAX_DEPTH:
            raise Misfit(f"nested deeper than {MAX_DEPTH} levels, or the sample contains itself. Pass collate_fn=")
        if kind is dict:
            return _dicts(values, empty, depth)
        if kind is tuple:
            return tuple(_sequences(values, empty, depth))
        if kind is list:
            return _sequences(values, empty, depth)
        if issubclass(kind, np.generic) and kind not in _NOT_BY_CLASS:
            return _listed_numbers(values, np.dtype(kind), empty)
    return _unusual(values, empty, depth)


# ---- containers -----------------------------------------------------------------------------------


def _fields(columns: Sequence[Column], keys: Sequence[Any], path: str, empty: Empty, depth: int) -> list[Any]:
    batch: list[Any] = []
    each: Iterable[Empty] = empty.below(keys) if type(empty) is FieldMemory else repeat(empty)
    try:
        for column, its in zip(columns, each):  # noqa: B905  (`each` may be endless)
            batch.append(_column(column, its, depth + 1))
    except Misfit as misfit:
        misfit.path.append(path.format(keys[len(batch)]))
        raise
    return batch


def _dicts(values: Sequence[dict[Any, Any]], empty: Empty, depth: int) -> dict[Any, Any]:
    keys = list(values[0])
    # Every dict has as many keys as the first one, and has all of its keys, so the keys are equal, in any order.
    if len(set(map(len, values))) != 1:
        raise Misfit.of_keys(values)
    columns: list[Column]
    try:
        if len(keys) == 1:
            columns = [list(map(itemgetter(*keys), values))]
        else:
            columns = list(zip(*map(itemgetter(*keys), values), strict=True)) if keys else []
    except KeyError:
        raise Misfit.of_keys(values) from None
    return dict(zip(keys, _fields(columns, keys, "[{!r}]", empty, depth), strict=True))


def _mappings(values: Sequence[Mapping[Any, Any]], kind: type, empty: Empty, depth: int) -> Mapping[Any, Any]:
    plain: list[dict[Any, Any]] = [{key: value[key] for key in value} for value in values]
    batch = _dicts(plain, empty, depth)
    if kind is defaultdict:
        return defaultdict(values[0].default_factory, batch)  # type: ignore[attr-defined]
    made: Mapping[Any, Any] | None = remake(kind, batch)
    return batch if made is None else made


def _sequences(values: Sequence[Sequence[Any]], empty: Empty, depth: int) -> list[Any]:
    if len(set(map(len, values))) != 1:
        groups = rows_of_each(map(len, values))
        of_numbers = all(map(is_arraylike, {type(item) for value in values for item in value}))
        remedy = f". {PAD_OR_PACK}" if of_numbers else ". Pad them to one length, make them arrays of one shape"
        raise Misfit.of("sequences of different lengths cannot be collated", groups, remedy)
    columns = list(zip(*values, strict=True))
    return _fields(columns, range(len(columns)), "[{}]", empty, depth)


def _dataclasses(values: Sequence[Any], kind: Any, empty: Empty, depth: int) -> Any:
    """Collates the fields of dataclasses. Other attributes belong to a single sample, and are left out."""
    missing = object()
    names: list[str] = []
    columns: list[Column] = []
    for field in fields(kind):
        column = [getattr(value, field.name, missing) for value in values]
        unset = [row for row, value in enumerate(column) if value is missing]
        if unset and len(unset) < len(column):
            raise Misfit(f"the field {field.name!r} is not set in {in_rows(unset)}. Set it in all", unset)
        if not unset:  # a field with init=False may be unset in all samples
            names.append(field.name)
            columns.append(column)
    return close_dataclass(kind, names, _fields(columns, names, ".{}", empty, depth))


def _text(values: Column, empty: Empty) -> list[Any]:
    if type(empty) is FieldMemory:
        empty.field.wanted("U", "text")
    return list(values)


# ---- arrays and numbers ---------------------------------------------------------------------------

_NUMBERS: dict[type, np.dtype[Any]] = {kind: np.dtype(kind) for kind in (bool, int, float, complex)}
# Different dtypes are promoted to a common one only within a family.
_FAMILY = dict.fromkeys("biufc", "number")
_NO_INT = "Use floats or strings, or pass collate_fn="
# Scalars whose class does not determine their dtype (units, widths, fields), and text.
_NOT_BY_CLASS = frozenset({np.datetime64, np.timedelta64, np.void, np.str_, np.bytes_, np.object_})


def _rows(array: Array, empty: Empty) -> Array:
    if array.ndim == 0:
        raise Misfit("an array without rows (0-d) is not a sequence of samples. Give one row for each key")
    if len(array) == 0:
        raise Misfit(_NO_SAMPLES)
    _storable(array.dtype, range(len(array)))
    return _copied(array, empty)


def _copied(array: Array, empty: Empty) -> Array:
    if type(empty) is FieldMemory:
        return empty.put(array)
    out = empty(array.shape, array.dtype)
    out[...] = array
    return out


def _listed_numbers(values: Column, dtype: np.dtype[Any], empty: Empty) -> Array:
    if type(empty) is FieldMemory:
        return empty.put(np.array(values, dtype))
    out = empty((len(values),), dtype)
    out[:] = values
    return out


def _numbers(values: Column, kind: type, empty: Empty) -> Array:
    if kind is not int:
        return _listed_numbers(values, _NUMBERS[kind], empty)
    try:
        array = np.fromiter(values, np.int64, len(values))
    except OverflowError:
        least, most = min(values), max(values)
        if least < 0 or most >= 2**64:
            rows = [row for row, value in enumerate(values) if not -(2**63) <= value < 2**63]
            large = f"(too large for int64: {in_rows(rows)}). {_NO_INT}"
            raise Misfit(f"integers from {least} to {most} fit neither int64 nor uint64 {large}", rows) from None
        array = np.array(values, np.uint64)
    return _copied(array, empty)


def _arrays(values: Sequence[Array], empty: Empty) -> Array:
    """Stacks arrays of the same shape. Their class must be np.ndarray or np.memmap."""
    first = values[0]
    shape, size = first.shape, len(values)
    dtype = common_dtype(values)
    if not shape:
        if any(value.ndim for value in values):
            raise Misfit.of_shapes(values)
        return _listed_numbers(list(values), dtype, empty)  # a tuple could be one record
    # Lengths are compared here, and concatenate compares all other axes, so all shapes are equal.
    try:
        ragged = len(set(map(len, values))) != 1
    except TypeError:  # one of the arrays is 0-d
        ragged = True
    if ragged:
        raise Misfit.of_shapes(values)
    try:
        if type(empty) is FieldMemory:
            return empty.stack(values, dtype)
        out = empty((size, *shape), dtype)
        np.concatenate(values, out=out.reshape((size * shape[0], *shape[1:])))
    except ValueError:
        if len({value.shape for value in values}) == 1:
            raise  # the error is not about shapes
        raise Misfit.of_shapes(values) from None
    return out


def common_dtype(values: Sequence[Array]) -> np.dtype[Any]:
    """Returns a dtype that can hold the values of all arrays.

    Raises Misfit if there is no such dtype, for example for a mix of numbers and text.
    """
    dtype: np.dtype[Any] = values[0].dtype
    try:
        holds_all = np.result_type(*values) is dtype
    except TypeError:
        holds_all = False
    if holds_all and dtype.kind in _FAMILY:
        return dtype  # the usual case: one dtype, for which numpy has a single object if it is a dtype of numbers
    groups = rows_of_each(value.dtype for value in values)
    for each, rows in groups.items():
        _storable(each, rows)
    if len(groups) == 1:
        return dtype  # not result_type, which gives the native byte order
    cause = None
    if len({_FAMILY.get(each.kind, each.kind) for each in groups}) == 1:
        try:
            return np.dtype(np.result_type(*groups))
        except TypeError as error:
            cause = error
    remedy = ", and no dtype holds them all. Convert them to one dtype"
    raise Misfit.of("arrays of different dtypes cannot be stacked", groups, remedy) from cause


def _storable(dtype: np.dtype[Any], rows: Sequence[int]) -> None:
    if dtype.hasobject:
        raise Misfit(
            f"arrays of dtype {dtype} ({in_rows(rows)}) hold pointers to Python objects, which mean nothing "
            "in another process. Convert them to a numeric dtype, drop the field, or pass collate_fn=",
            rows,
        )


def as_arrays(values: Column, kinds: set[type]) -> list[Array]:
    arrays: list[Array] = []
    if len(kinds) == 1 and hasattr(kind := type(values[0]), "numpy"):
        # A tensor's __array__ calls numpy(); this is the same, in 0.9 us instead of 2.
        with suppress(Exception):  # the loop below finds the row and says what is wrong
            made: list[Array] = list(map(kind.numpy, values))
            # A StopIteration would have ended the list.
            if set(map(type, made)) == {np.ndarray} and len(made) == len(values):
                return made
    try:
        for value in values:
            arrays.append(_as_array(value))  # noqa: PERF401 - the number of arrays tells which row fails
    except Misfit as misfit:
        row = len(arrays)
        raise Misfit(f"row {row}: {misfit}", [row]) from misfit.__cause__
    return arrays


def _as_array(value: Any) -> Array:
    """Converts a number, a numpy scalar or an object with `__array__` to a plain array of the same dtype."""
    if isinstance(value, np.ma.MaskedArray):
        raise Misfit(
            "a masked array would lose its mask. Fill it (.filled(value)), make the mask a field of its own, "
            "or pass collate_fn="
        )
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    for kind in _NUMBERS:
        if isinstance(value, kind):
            array: Array = np.array(kind(value))  # an int becomes int64, or else uint64, or else an object
            if array.dtype.hasobject:
                raise Misfit(f"the integer {value} fits neither int64 nor uint64. {_NO_INT}")
            return array
    try:
        return np.asarray(value)
    except Exception as error:  # for example, a tensor is on a GPU, or needs a gradient
        said = safe_text(error).rstrip(".")
        raise Misfit(
            f"a {type_name(value)} cannot be made an array: {said}. Convert it in the dataset, or pass collate_fn="
        ) from error


# ---- the rest -------------------------------------------------------------------------------------


def _unusual(values: Column, empty: Empty, depth: int) -> Any:
    """Collates subclasses, objects with `__array__` and numbers of mixed types. Raises Misfit for anything else."""
    kinds = set(map(type, values))
    if all(issubclass(kind, (str, bytes)) for kind in kinds):
        return _text(values, empty)
    if all(map(is_arraylike, kinds)):
        return _arrays(as_arrays(values, kinds), empty)
    if len(kinds) == 1:
        kind: Any = next(iter(kinds))
        if is_namedtuple(kind):
            columns = list(zip(*values, strict=True))
            return close_named(kind, None, _fields(columns, kind._fields, ".{}", empty, depth))
        if issubclass(kind, (list, tuple)):
            batch = _sequences(values, empty, depth)
            made = remake(kind, batch)
            return made if made is not None else batch if issubclass(kind, list) else tuple(batch)
        if issubclass(kind, Mapping):
            return _mappings(values, kind, empty, depth)
        if is_dataclass(kind):
            return _dataclasses(values, kind, empty, depth)
    raise Misfit.of_types(values)
