"""Samples of one step become one batch, each array of it written once, straight into its place.

A batch is filled column by column: the values of one field over all samples. One look at the classes
in a column chooses the rule; the rules for arrays check class, dtype and shape of every row with calls
that stay in C, and leave the copying to one `np.concatenate`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np

from penstock._fill.cast import Into
from penstock._memory.tree import MAX_DEPTH, close_dataclass, close_named, is_dataclass, is_namedtuple, remake
from penstock.errors import CollateError

Empty = Callable[[tuple[int, ...], "np.dtype[Any]"], "np.ndarray[Any, Any]"]
"""Hands out C-contiguous memory for one array: of the slab, or `np.empty`. An `Into` has its numbers converted."""

Column = Sequence[Any]
Array = np.ndarray[Any, Any]


def convert(sample: object) -> object:
    """The sample as it is: without batches (`batch_size=None`) nothing is stacked, so nothing is changed."""
    return sample


def collate(samples: Sequence[object], empty: Empty) -> Any:
    """The batch of these samples; the memory of each of its arrays comes from one call of `empty`.

    An array of samples (what a dataset's `__getitems__` may return) is a batch already: its rows are
    the samples, and it is copied once.
    """
    try:
        if not isinstance(samples, (list, tuple)):
            if hasattr(type(samples), "__array__"):
                return _rows(_as_array(samples), empty)
            if isinstance(samples, (Mapping, str, bytes)):
                raise _Misfit(f"a {_name(type(samples))} is not a sequence of samples. Give a list of them")
            samples = list(samples)
        if not samples:
            raise _Misfit(_NO_SAMPLES)
        return _column(samples, empty, 0)
    except _Misfit as misfit:
        error = CollateError(f"sample{misfit.where()}: {misfit}.")
        error.rows = misfit.rows
        raise error from misfit.__cause__


class _Misfit(Exception):
    """Why a column cannot become part of a batch; the levels it passes on its way up add the path."""

    def __init__(self, text: str, rows: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.rows = tuple(rows)
        self.path: list[str] = []

    def where(self) -> str:
        path = self.path[::-1]
        return "".join(path if len(path) < 12 else [*path[:4], " ... ", *path[-2:]])


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
            raise _Misfit(f"nested deeper than {MAX_DEPTH} levels, or it contains itself. Pass collate_fn=")
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
    each: Iterable[Empty] = empty.below(keys) if type(empty) is Into else repeat(empty)
    try:
        for column, its in zip(columns, each):  # noqa: B905  (the other may have no end)
            batch.append(_column(column, its, depth + 1))
    except _Misfit as misfit:
        misfit.path.append(path.format(keys[len(batch)]))
        raise
    return batch


def _dicts(values: Sequence[dict[Any, Any]], empty: Empty, depth: int) -> dict[Any, Any]:
    keys = list(values[0])
    # As many keys as the first, and all keys of the first: the same keys, in whatever order.
    if len(set(map(len, values))) != 1:
        raise _wrong_keys(values)
    columns: list[Column]
    try:
        if len(keys) == 1:
            columns = [list(map(itemgetter(*keys), values))]
        else:
            columns = list(zip(*map(itemgetter(*keys), values), strict=True)) if keys else []
    except KeyError:
        raise _wrong_keys(values) from None
    return dict(zip(keys, _fields(columns, keys, "[{!r}]", empty, depth), strict=True))


def _mappings(values: Sequence[Mapping[Any, Any]], kind: type, empty: Empty, depth: int) -> Mapping[Any, Any]:
    """As `_dicts` for any Mapping; a plain dict where its class cannot be made from one."""
    plain: list[dict[Any, Any]] = [{key: value[key] for key in value} for value in values]
    batch = _dicts(plain, empty, depth)
    if kind is defaultdict:
        return defaultdict(values[0].default_factory, batch)  # type: ignore[attr-defined]
    made: Mapping[Any, Any] | None = remake(kind, batch)
    return batch if made is None else made


def _sequences(values: Sequence[Sequence[Any]], empty: Empty, depth: int) -> list[Any]:
    if len(set(map(len, values))) != 1:
        groups = _groups(map(len, values))
        raise _Misfit(
            f"sequences of different lengths cannot be collated: {_listed(groups)}. "
            "Pad them to one length, make them arrays of one shape, or pass collate_fn=",
            _odd(groups),
        )
    columns = list(zip(*values, strict=True))
    return _fields(columns, range(len(columns)), "[{}]", empty, depth)


def _named(values: Sequence[Any], kind: Any, empty: Empty, depth: int) -> Any:
    columns = list(zip(*values, strict=True))
    return close_named(kind, None, _fields(columns, kind._fields, ".{}", empty, depth))


def _dataclasses(values: Sequence[Any], kind: Any, empty: Empty, depth: int) -> Any:
    """Only the fields: what `__post_init__` keeps beside them belongs to one sample, not to the batch."""
    missing = object()
    names: list[str] = []
    columns: list[Column] = []
    for field in fields(kind):
        column = [getattr(value, field.name, missing) for value in values]
        unset = [row for row, value in enumerate(column) if value is missing]
        if unset and len(unset) < len(column):
            raise _Misfit(f"the field {field.name!r} is not set in {_in_rows(unset)}. Set it in all", unset)
        if not unset:  # a field without init that nobody set stays so
            names.append(field.name)
            columns.append(column)
    return close_dataclass(kind, names, _fields(columns, names, ".{}", empty, depth))


def _text(values: Column, empty: Empty) -> list[Any]:
    if type(empty) is Into:
        empty.field.wanted("U", "text")
    return list(values)


# ---- arrays and numbers ---------------------------------------------------------------------------

_NUMBERS: dict[type, np.dtype[Any]] = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}
# dtypes of one family are promoted to one that holds them all.
_FAMILY = dict.fromkeys("biufc", "number")
# Scalars whose class does not say their dtype (units, widths, fields), and those that are text.
_NOT_BY_CLASS = frozenset({np.datetime64, np.timedelta64, np.void, np.str_, np.bytes_, np.object_})


def _rows(array: Array, empty: Empty) -> Array:
    if array.ndim == 0:
        raise _Misfit("an array without rows (0-d) is not a sequence of samples. Give one row for each key")
    if len(array) == 0:
        raise _Misfit(_NO_SAMPLES)
    _storable(array.dtype, range(len(array)))
    return _copied(array, empty)


def _copied(array: Array, empty: Empty) -> Array:
    if type(empty) is Into:
        return empty.put(array)
    out = empty(array.shape, array.dtype)
    out[...] = array
    return out


def _listed_numbers(values: Column, dtype: np.dtype[Any], empty: Empty) -> Array:
    """Scalars that are of this dtype, as a 1-d array."""
    if type(empty) is Into:
        return empty.put(np.array(values, dtype))
    out = empty((len(values),), dtype)
    out[:] = values
    return out


def _numbers(values: Column, kind: type, empty: Empty) -> Array:
    """Python numbers of one class, as a 1-d array."""
    if kind is not int:
        return _listed_numbers(values, _NUMBERS[kind], empty)
    try:
        array = np.fromiter(values, np.int64, len(values))
    except OverflowError:
        array = _large(values)
    return _copied(array, empty)


def _large(values: Sequence[int]) -> Array:
    """Python ints that are not all int64, as uint64."""
    least, most = min(values), max(values)
    if least < 0 or most >= 2**64:
        rows = [row for row, value in enumerate(values) if not -(2**63) <= value < 2**63]
        raise _Misfit(
            f"integers from {least} to {most} fit neither int64 nor uint64 (beyond int64 in "
            f"{_in_rows(rows)}). Make them floats or strings, or pass collate_fn=",
            rows,
        )
    return np.array(values, np.uint64)


def _arrays(values: Sequence[Array], empty: Empty) -> Array:
    """Arrays (plain or memory-mapped, nothing else) of one shape, stacked."""
    first = values[0]
    shape, size = first.shape, len(values)
    dtype = _common_dtype(values)
    if not shape:
        return _scalars(values, dtype, empty)
    # Equal lengths here, equal trailing axes and dimensions in concatenate: nothing ragged can pass.
    try:
        ragged = len(set(map(len, values))) != 1
    except TypeError:  # a 0-d array among them
        ragged = True
    if ragged:
        raise _wrong_shapes(values)
    try:
        if type(empty) is Into:
            return empty.stack(values, dtype)
        out = empty((size, *shape), dtype)
        np.concatenate(values, out=out.reshape((size * shape[0], *shape[1:])))
    except ValueError:
        if len({value.shape for value in values}) == 1:
            raise  # not about shapes
        raise _wrong_shapes(values) from None
    return out


def _scalars(values: Sequence[Array], dtype: np.dtype[Any], empty: Empty) -> Array:
    """0-d arrays as one 1-d array."""
    if any(value.ndim for value in values):
        raise _wrong_shapes(values)
    if type(empty) is Into:
        return empty.put(np.array([value[()] for value in values], dtype))
    out = empty((len(values),), dtype)
    for row, value in enumerate(values):
        out[row] = value
    return out


def _common_dtype(values: Sequence[Array]) -> np.dtype[Any]:
    """The dtype that holds all of these, where they are of one family: numbers do not become text."""
    dtype: np.dtype[Any] = values[0].dtype
    try:
        holds_all = np.result_type(*values) is dtype
    except TypeError:
        holds_all = False
    if holds_all and dtype.kind in _FAMILY:
        return dtype  # the usual case: one dtype, and each number's is one object
    groups = _groups(value.dtype for value in values)
    for each, rows in groups.items():
        _storable(each, rows)
    if len(groups) == 1:
        return dtype  # as it is: result_type would give the native byte order
    cause = None
    if len({_FAMILY.get(each.kind, each.kind) for each in groups}) == 1:
        try:
            return np.dtype(np.result_type(*groups))
        except TypeError as error:
            cause = error
    raise _Misfit(
        f"arrays of different dtypes have none in common: {_listed(groups)}. "
        "Convert them to one, or pass collate_fn=",
        _odd(groups),
    ) from cause


def _storable(dtype: np.dtype[Any], rows: Sequence[int]) -> None:
    if dtype.hasobject:
        raise _Misfit(
            f"arrays of dtype {dtype} ({_in_rows(rows)}) hold pointers to Python objects, which mean nothing "
            "in another process. Convert them to a numeric dtype, drop the field, or pass collate_fn=",
            rows,
        )


def _wrong_shapes(values: Sequence[Array]) -> _Misfit:
    groups = _groups(value.shape for value in values)
    return _Misfit(
        f"arrays of different shapes cannot be stacked: {_listed(groups)}. "
        "Pad them to one shape, or pass collate_fn=",
        _odd(groups),
    )


def _as_arrays(values: Column, kinds: set[type]) -> list[Array]:
    arrays: list[Array] = []
    if len(kinds) == 1 and hasattr(kind := type(values[0]), "numpy"):
        # torch's __array__ calls its numpy(), so this is the same, in 0.9 us a tensor instead of 2.
        with suppress(Exception):  # what is wrong, and with which row, is said below
            arrays = list(map(kind.numpy, values))
            if set(map(type, arrays)) == {np.ndarray}:
                return arrays
        arrays = []
    try:
        for value in values:
            arrays.append(_as_array(value))
    except _Misfit as misfit:
        row = len(arrays)
        raise _Misfit(f"row {row}: {misfit}", [row]) from misfit.__cause__
    return arrays


def _as_array(value: Any) -> Array:
    """A number, a numpy scalar or anything with `__array__`, as a plain array of its own dtype."""
    if isinstance(value, np.ma.MaskedArray):
        raise _Misfit(
            "a masked array would lose its mask. Fill it (.filled(value)), make the mask a field of its own, "
            "or pass collate_fn="
        )
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if isinstance(value, bool):
        return np.array(value, np.bool_)
    if isinstance(value, int):
        return _int_array(int(value))
    if isinstance(value, (float, complex)):
        return np.array(value, np.float64 if isinstance(value, float) else np.complex128)
    try:
        return np.asarray(value)
    except Exception as error:  # whatever a guest raises; torch: on a GPU, or needs a gradient
        said = str(error).rstrip(".")
        raise _Misfit(
            f"a {_name(type(value))} gives no array: {said}. Convert it in the dataset, or pass collate_fn="
        ) from error


def _int_array(value: int) -> Array:
    if -(2**63) <= value < 2**63:
        return np.array(value, np.int64)
    if 0 <= value < 2**64:
        return np.array(value, np.uint64)
    raise _Misfit(
        f"the integer {value} fits neither int64 nor uint64. Make it a float or a string, or pass collate_fn="
    )


# ---- the rest -------------------------------------------------------------------------------------


def _unusual(values: Column, empty: Empty, depth: int) -> Any:
    """Subclasses, guests with `__array__`, mixed numbers; and what cannot be collated."""
    kinds = set(map(type, values))
    if all(issubclass(kind, (str, bytes)) for kind in kinds):
        return _text(values, empty)
    if all(map(_is_arraylike, kinds)):
        return _arrays(_as_arrays(values, kinds), empty)
    if len(kinds) == 1:
        (kind,) = kinds
        if is_namedtuple(kind):
            return _named(values, kind, empty, depth)
        if issubclass(kind, (list, tuple)):
            batch = _sequences(values, empty, depth)
            made = remake(kind, batch)
            return made if made is not None else batch if issubclass(kind, list) else tuple(batch)
        if issubclass(kind, Mapping):
            return _mappings(values, kind, empty, depth)
        if is_dataclass(kind):
            return _dataclasses(values, kind, empty, depth)
    raise _wrong_types(values)


def _is_arraylike(kind: type) -> bool:
    if issubclass(kind, (str, bytes)):
        return False  # np.str_ among them: text
    return hasattr(kind, "__array__") or issubclass(kind, (int, float, complex))


def _is_known(kind: type) -> bool:
    return _is_arraylike(kind) or issubclass(kind, (str, bytes, list, tuple, Mapping)) or is_dataclass(kind)


def _wrong_types(values: Column) -> _Misfit:
    groups = _groups(map(type, values))
    unknown = [kind for kind in groups if not _is_known(kind)]
    named = {_name(kind): rows for kind, rows in groups.items()}
    if len(groups) > 1:
        return _Misfit(
            f"values of different types cannot be collated: {_listed(named)}. "
            "Give every sample the same type here, drop the field, or pass collate_fn=",
            sorted(row for kind in unknown for row in groups[kind]) or _odd(groups),
        )
    return _Misfit(
        f"values of type {next(iter(named))} cannot be collated. Batches are made of arrays, numbers, str, "
        "bytes, and of dicts, lists, tuples, namedtuples and dataclasses of them. Convert it, drop the "
        "field, or pass collate_fn=",
        range(len(values)),
    )


def _wrong_keys(values: Sequence[Mapping[Any, Any]]) -> _Misfit:
    groups = _groups(frozenset(value) for value in values)
    odd = _odd(groups)
    usual = next(keys for keys, rows in groups.items() if rows[0] not in odd)
    parts = []
    for keys, rows in list(groups.items())[:5]:
        if keys != usual:
            lacks, more = _shown(usual - keys), _shown(keys - usual)
            said = [f"lacks {lacks}"] * bool(lacks) + [f"has also {more}"] * bool(more)
            parts.append(f"{_in_rows(rows)} {' and '.join(said)}")
    return _Misfit(
        f"dicts with different keys cannot be collated: {'; '.join(parts)}; the other rows have "
        f"{_shown(usual)}. Give every sample the same keys, or pass collate_fn=",
        odd,
    )


# ---- words for messages ---------------------------------------------------------------------------


def _groups(values: Any) -> dict[Any, list[int]]:
    """The rows of each different value."""
    groups: dict[Hashable, list[int]] = {}
    for row, value in enumerate(values):
        groups.setdefault(value, []).append(row)
    return groups


def _odd(groups: dict[Any, list[int]]) -> list[int]:
    """The rows that are not like most."""
    most = max(groups.values(), key=len)
    return sorted(row for rows in groups.values() if rows is not most for row in rows)


def _listed(groups: dict[Any, list[int]]) -> str:
    parts = [f"{value} in {_in_rows(rows)}" for value, rows in list(groups.items())[:4]]
    if len(groups) > 4:
        parts.append(f"{len(groups) - 4} more")
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]


def _in_rows(rows: Sequence[int]) -> str:
    if len(rows) == 1:
        return f"row {rows[0]}"
    shown = ", ".join(map(str, rows[:8]))
    return f"rows {shown}" if len(rows) <= 8 else f"rows {shown}, ... ({len(rows)} rows)"


def _shown(keys: frozenset[Any]) -> str:
    """A few keys, as a list; nothing for none."""
    texts = sorted(map(repr, keys))
    if len(texts) > 12:
        texts = [*texts[:10], f"... ({len(texts)} keys)"]
    return f"[{', '.join(texts)}]" if texts else ""


def _name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
