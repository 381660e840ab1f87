"""`ArrayDataset`, which copies rows from its columns (arrays) directly into the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._fill.cast import Empty, FieldMemory
from penstock._printable import counted
from penstock.source._dataset import Dataset, check_either
from penstock.source._nested import gathers_numpy

Array = NDArray[Any]


class ArrayDataset(Dataset[Any]):
    """A dataset of columns of equal length. Sample i consists of row i of each column.

    Pass one array to get rows, several arrays to get tuples of rows, or arrays by name to get dicts. Memory maps are
    read in place, without a copy. Choose this class whenever the data is in arrays, or can be memory-mapped as
    arrays: a batch then costs one `take` for each column, about as much as `array[keys]`.

    Numbers, dates and structured rows become arrays. A column of strings (one axis, dtype U, S or StringDType)
    becomes a list of str or bytes. A column of object dtype raises TypeError, because its elements have no fixed
    layout.

    >>> data = ArrayDataset(x=np.arange(6).reshape(3, 2), name=np.array(["a", "b", "c"]))
    >>> data[1]
    {'x': array([2, 3]), 'name': 'b'}
    >>> data.__gather__([2, -3], np.empty)
    {'x': array([[4, 5],
           [0, 1]]), 'name': ['c', 'a']}
    """

    def __init__(self, *arrays: Any, **named: Any) -> None:
        check_either("ArrayDataset", "array", arrays, named)
        self.names: tuple[str, ...] | None = tuple(named) or None
        labels = self.names or range(len(arrays))
        self.columns: tuple[Array, ...] = tuple(map(_column, labels, arrays or named.values()))
        lengths = {label: len(column) for label, column in zip(labels, self.columns, strict=True)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"ArrayDataset needs columns of equal length, but their lengths are {lengths}.")
        self._views = _views(self.columns)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._sample([_item(view, index) for view in self._views])
        except (IndexError, OverflowError) as error:
            raise IndexError(f"key {index} is not in a dataset with {counted(len(self), 'row')}: {error}.") from None

    def __getitems__(self, keys: Sequence[int]) -> list[Any]:
        checked = checked_keys(keys, len(self)).tolist()
        rows = [[_item(view, key) for key in checked] for view in self._views]
        return [self._sample(parts) for parts in zip(*rows, strict=True)]

    @gathers_numpy
    def __gather__(self, keys: Sequence[int] | NDArray[Any], empty: Empty) -> Any:
        """Returns the same batch as collating the samples would. `empty(shape, dtype)` allocates the memory."""
        checked = checked_keys(keys, len(self))
        if type(empty) is FieldMemory:
            columns = zip(self._views, self._into(empty), strict=True)
            return self._sample([_converted(view, checked, into) for view, into in columns])
        return self._sample([_gathered(view, checked, empty) for view in self._views])

    def _into(self, batch: FieldMemory) -> Sequence[FieldMemory]:
        if self.names is not None:
            return batch.below(self.names)
        return [batch] if len(self.columns) == 1 else batch.below(range(len(self.columns)))

    def _sample(self, parts: Sequence[Any]) -> Any:
        if self.names is not None:
            return dict(zip(self.names, parts, strict=True))
        return parts[0] if len(self.columns) == 1 else tuple(parts)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_views"]  # they would be pickled as copies of the columns
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._views = _views(self.columns)

    def __repr__(self) -> str:
        labels = self.names or range(len(self.columns))
        columns = (f"{label}: {c.dtype}{c.shape}" for label, c in zip(labels, self.columns, strict=True))
        return f"{type(self).__name__}({', '.join(columns)})"


def checked_keys(keys: Sequence[int] | NDArray[Any], n: int) -> NDArray[np.int64]:
    """Returns the keys as non-negative int64. Raises IndexError for a key that is not in a dataset of n samples."""
    found = np.asarray(keys)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        what = f"{found.dtype} of shape {found.shape}"
        raise TypeError(f"keys must be integers along one axis, but they are {what}.")
    checked = found.astype(np.int64, copy=False)
    # As uint64 a negative key is huge, so one comparison checks both bounds. `argmax` is five times as fast as `max`.
    unsigned = checked.view(np.uint64)
    if checked.size and unsigned.item(unsigned.argmax()) >= n:
        wrapped = (checked < 0) & (found > 0)  # beyond the range of int64
        outside = np.flatnonzero((checked < -n) | (checked >= n) | wrapped)
        if outside.size:
            row = outside[0]
            raise IndexError(
                f"key {found[row]} (row {row} of the step) is not in a dataset with {counted(n, 'row')}."
            )
        checked = np.where(checked < 0, checked + n, checked)
    return checked


def _column(label: object, array: Any) -> Array:
    column = array if isinstance(array, np.ndarray) else np.asarray(array)
    if isinstance(array, np.ma.MaskedArray):
        wrong = "is a masked array; its mask would be lost. Fill it (.filled(value)), or add the mask as a column."
    elif column.ndim == 0:
        wrong = f"must have rows, but it is a single {column.dtype} value."
    elif column.dtype.hasobject and column.dtype.kind != "T":
        wrong = (
            f"has dtype {column.dtype}, and Python objects cannot be copied into a batch. Convert it to numbers or "
            "strings, or put a list or a PackedList beside the other columns with StackDataset."
        )
    elif column.dtype.kind == "T" and column.ndim > 1:
        axes = f"{column.ndim} axes, but can have only one"
        wrong = f"is a StringDType array with {axes}. Convert it to a fixed width (astype('U'))."
    else:
        return column
    raise TypeError(f"column {label} {wrong}")


def _views(columns: Sequence[Array]) -> list[Array]:
    # Indexing a memmap returns a memmap, at five times the cost of a plain view of the same memory.
    return [np.asarray(column) for column in columns]


def _is_text(column: Array) -> bool:
    return column.ndim == 1 and column.dtype.kind in "UST"


def _item(column: Array, index: Any) -> Any:
    item = column[index]
    return item.item() if isinstance(item, (np.str_, np.bytes_)) else item


def _gathered(column: Array, keys: NDArray[np.int64], empty: Empty) -> Any:
    if _is_text(column):
        return column[keys].tolist()
    dtype = column.dtype
    if column.ndim == 1 and dtype.kind != "V":
        # The same as collate: the elements are scalars, which always have the machine's byte order.
        dtype = dtype.newbyteorder("=")
    out = empty((len(keys), *column.shape[1:]), dtype)
    if column.flags.c_contiguous and column.flags.aligned and dtype == column.dtype:
        # The keys are checked, so clipping changes none. Rejected: mode="raise", which copies through a buffer.
        column.take(keys, 0, out, "clip")
    else:
        # take would make a contiguous copy of the whole column first.
        out[...] = column[keys]
    return out


def _converted(column: Array, keys: NDArray[np.int64], into: FieldMemory) -> Any:
    if _is_text(column):
        into.field.wanted("U", "text")
    elif into.field.target(column.dtype) is not None:
        return into.gather(column, keys)
    return _gathered(column, keys, into)
