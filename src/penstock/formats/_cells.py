"""Reads values of one column of an Arrow record batch by row number.

The type of a value depends on the type of the column and on nulls in the row itself, never on other rows:

    Arrow type                                            value of a row
    integers, floats, bool                                numpy scalar of the same dtype
    date, timestamp, time of day, duration                datetime64, or timedelta64 (time: since midnight)
    list or fixed-size list of one of these               numpy array; lists of fixed-size lists have more axes
    fixed-shape tensor                                    numpy array of its shape
    string, binary (also large, views, fixed size)        str, bytes
    dictionary (categories)                               the category, converted by its own type
    struct                                                dict, with each field converted by its type
    other extension types                                 as for their storage type
    everything else: decimals, maps, lists of strings     the Python object that pyarrow makes, with dates and times
                                                          inside as above
    a null of any type                                    None
    a list with a null inside                             Python list with None inside
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

Values = NDArray[Any]

# Rows of at least this many bytes are copied one by one. Smaller rows are first gathered, then spread over the batch.
_LONG = 512


class Cells:
    """The values of one column in one record batch.

    If `is_direct` is True, `put` can write rows directly into a column of a batch: an array, or a list of str or
    bytes. `plain` is a mask of the rows without nulls, or None if nulls need no check.
    """

    is_direct = False
    is_text = False
    holds_arrays: bool | None = None
    """True if all values are arrays, False if none is, None if unknown. `view` returns arrays without copying."""

    def __init__(self, array: Any, plain: NDArray[np.bool_] | None = None) -> None:
        self.array = array
        self.plain = plain

    def item(self, row: int) -> Any:
        """Returns a copy of the value in a row."""
        if self.plain is not None and not self.plain[row]:
            return self._object(row)
        return self._item(row)

    def _item(self, row: int) -> Any:
        return self._object(row)

    def view(self, row: int) -> Values:
        raise NotImplementedError

    def _object(self, row: int) -> Any:
        return _python(self.array[row])

    def form(self, row: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        raise NotImplementedError

    def put(self, out: Any, places: Sequence[int], rows: list[int]) -> bool:
        """Writes rows to `out[places]`. Returns False if a row has a null or does not fit the shape of `out`."""
        if self.plain is not None and not self.plain[rows].all():
            return False
        return self._put(out, places, rows)

    def _put(self, out: Any, places: Sequence[int], rows: list[int]) -> bool:
        return False


class NumberCells(Cells):
    """A column of numbers, or of arrays that all have the same shape. Row i is `values[i]`."""

    is_direct = True

    def __init__(self, array: Any, values: Values, plain: NDArray[np.bool_] | None) -> None:
        super().__init__(array, plain)
        self.values = values
        self._long = values.ndim > 1 and values.itemsize * values[:1].size >= _LONG
        self.holds_arrays = False if values.ndim == 1 else True if plain is None else None

    def view(self, row: int) -> Values:
        found: Values = self.values[row]
        return found

    def _item(self, row: int) -> Any:
        return self.values[row].copy() if self.values.ndim > 1 else self.values[row]

    def form(self, row: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        return self.values.shape[1:], self.values.dtype

    def _put(self, out: Any, places: Sequence[int], rows: list[int]) -> bool:
        values = self.values
        if values.shape[1:] != out.shape[1:]:
            return False
        if type(places) is range:
            values.take(rows, 0, out[places.start : places.stop], "clip")  # "raise" would copy through a buffer
        elif self._long:
            for place, row in zip(places, rows, strict=True):
                out[place] = values[row]
        else:
            out[places] = values[rows]
        return True


class ListCells(Cells):
    """A column of lists of any length. Row i is `values[edges[i] : edges[i + 1]]`."""

    is_direct = True

    def __init__(self, array: Any, values: Values, edges: Values, plain: NDArray[np.bool_] | None) -> None:
        super().__init__(array, plain)
        self.values = values
        self._edges = edges.data  # a memoryview returns Python ints in half of numpy's time
        self.holds_arrays = True if plain is None else None

    def view(self, row: int) -> Values:
        return self.values[self._edges[row] : self._edges[row + 1]]

    def _item(self, row: int) -> Any:
        return self.view(row).copy()

    def form(self, row: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        length = self._edges[row + 1] - self._edges[row]
        return (length, *self.values.shape[1:]), self.values.dtype

    def _put(self, out: Any, places: Sequence[int], rows: list[int]) -> bool:
        values, edges, length = self.values, self._edges, out.shape[1]
        if values.shape[1:] != out.shape[2:]:
            return False
        for place, row in zip(places, rows, strict=True):
            start, stop = edges[row], edges[row + 1]
            if stop - start != length:
                return False
            out[place] = values[start:stop]
        return True


class TextCells(Cells):
    """A column of strings or binary data. Row i is `data[edges[i] : edges[i + 1]]`."""

    is_direct = is_text = True
    holds_arrays = False  # also of nulls

    def __init__(
        self, array: Any, data: memoryview, edges: Values, plain: NDArray[np.bool_] | None, is_string: bool
    ) -> None:
        super().__init__(array, plain)
        self._data, self._edges = data, edges.data
        self._made: Callable[[memoryview], Any] = _string if is_string else bytes

    def _item(self, row: int) -> Any:
        return self._made(self._data[self._edges[row] : self._edges[row + 1]])

    def _put(self, out: Any, places: Sequence[int], rows: list[int]) -> bool:
        for place, row in zip(places, rows, strict=True):
            out[place] = self._item(row)
        return True


class StructCells(Cells):
    def __init__(self, array: Any, fields: dict[str, Cells], plain: NDArray[np.bool_] | None) -> None:
        super().__init__(array, plain)
        self._fields = fields

    def _item(self, row: int) -> Any:
        return {name: cells.item(row) for name, cells in self._fields.items()}


class JoinedCells(Cells):
    """A column that is too large for one record batch, and is therefore split over several."""

    def __init__(self, parts: Sequence[Cells]) -> None:
        super().__init__(None)
        self._parts = parts
        self._edges = np.cumsum([0, *(len(part.array) for part in parts)]).tolist()
        self.is_direct = all(part.is_direct for part in parts)
        self.is_text = all(part.is_text for part in parts)

    def _part_of(self, row: int) -> tuple[Cells, int]:
        number = bisect_right(self._edges, row) - 1
        return self._parts[number], row - self._edges[number]

    def _item(self, row: int) -> Any:
        part, inside = self._part_of(row)
        return part.item(inside)

    def form(self, row: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        part, inside = self._part_of(row)
        return part.form(inside)

    def _put(self, out: Any, places: Sequence[int], rows: list[int]) -> bool:
        for place, row in zip(places, rows, strict=True):
            part, inside = self._part_of(row)
            if not part.put(out, range(place, place + 1), [inside]):
                return False
        return True


def _string(data: memoryview) -> str:
    return str(data, "utf-8")


def cells_of(arrays: Sequence[Any]) -> Cells:
    return cells(arrays[0]) if len(arrays) == 1 else JoinedCells([cells(array) for array in arrays])


def cells(array: Any) -> Cells:
    """Returns the values of an Arrow array. Raises an error if a damaged file makes the values unsafe to read."""
    kind = array.type
    if kinds.is_dictionary(kind):
        array.validate(full=True)  # checks that the indices are within the dictionary
        return cells(array.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
        return cells(array.storage)
    if is_text(kind):
        return _text(array)
    if kinds.is_struct(kind) and len({field.name for field in kind}) == kind.num_fields:
        fields = {kind.field(at).name: cells(array.field(at)) for at in range(kind.num_fields)}
        return StructCells(array, fields, _valid(array))
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        if is_numeric(kind.value_type):
            return _lists(array)
    elif is_numeric(kind):
        return NumberCells(array, *_numbers(array))
    array.validate(full=True)  # because pyarrow reads the values
    return Cells(array)


def is_text(kind: Any) -> bool:
    tests = kinds.is_string, kinds.is_large_string, kinds.is_string_view
    return any(test(kind) for test in tests) or is_binary(kind)


def is_binary(kind: Any) -> bool:
    tests = kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary
    return any(test(kind) for test in tests)


@lru_cache(maxsize=1024)
def is_numeric(kind: Any) -> bool:
    """True if a value of this type is a number, or an array of numbers whose shape is part of the type."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return kind.permutation in (None, list(range(len(kind.shape)))) and is_numeric(kind.value_type)
    if kinds.is_fixed_size_list(kind):
        return is_numeric(kind.value_type)
    return kinds.is_boolean(kind) or number_dtype(kind) is not None


@lru_cache(maxsize=1024)
def number_dtype(kind: Any) -> np.dtype[Any] | None:
    """Returns the numpy dtype for an Arrow type of numbers, dates or times, or None for any other type."""
    dtype: Any = None
    if kinds.is_boolean(kind):
        dtype = bool
    elif kinds.is_integer(kind) or kinds.is_floating(kind):
        # Not kind.to_pandas_dtype(), which needs pandas before pyarrow 26.
        letter = "f" if kinds.is_floating(kind) else "i" if kinds.is_signed_integer(kind) else "u"
        dtype = f"{letter}{kind.bit_width // 8}"
    elif kinds.is_date(kind):
        dtype = "M8[D]" if kinds.is_date32(kind) else "M8[ms]"
    elif kinds.is_timestamp(kind):
        dtype = f"M8[{kind.unit}]"  # in UTC if the type has a time zone
    elif kinds.is_duration(kind) or kinds.is_time(kind):
        dtype = f"m8[{kind.unit}]"
    return None if dtype is None else np.dtype(dtype)


def _python(scalar: Any) -> Any:
    """Converts a scalar as pyarrow does, except that dates and times become numpy objects."""
    kind = scalar.type
    if not scalar.is_valid or not _has_times(kind):
        return scalar.as_py()
    if (dtype := number_dtype(kind)) is not None:
        # as_py needs pandas for nanoseconds, has no years after 9999, and depends on whether pandas is installed.
        return np.int64(scalar.value).view(dtype)
    if kinds.is_map(kind):
        return [(_python(entry[0]), _python(entry[1])) for entry in scalar.values]
    if kinds.is_struct(kind) and len({field.name for field in kind}) == kind.num_fields:
        return {name: _python(value) for name, value in scalar.items()}
    if kinds.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        return _python(scalar.value)
    if hasattr(scalar, "values"):
        return [_python(each) for each in scalar.values]
    return scalar.as_py()


@lru_cache(maxsize=1024)
def _has_times(kind: Any) -> bool:
    if kinds.is_dictionary(kind):
        return _has_times(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _has_times(kind.storage_type)
    if kinds.is_nested(kind):
        return any(_has_times(kind.field(at).type) for at in range(kind.num_fields))
    return kinds.is_temporal(kind) and number_dtype(kind) is not None


def _numbers(array: Any) -> tuple[Values, NDArray[np.bool_] | None]:
    """Returns the numbers, and a mask of the rows without nulls. The mask is None if there are no nulls."""
    kind, count = array.type, len(array)
    if isinstance(kind, pa.FixedShapeTensorType):
        values, plain = _numbers(array.storage)
        return values.reshape(count, *kind.shape), plain
    if kinds.is_fixed_size_list(kind):
        size = kind.list_size
        inner, whole = _numbers(array.values.slice(array.offset * size, count * size))
        values, plain = inner.reshape(count, size, *inner.shape[1:]), _valid(array)
        if whole is not None:
            sound: NDArray[np.bool_] = np.all(whole.reshape(count, size), 1)
            plain = sound if plain is None else plain & sound
        return values, plain
    return _flat(array), _valid(array)


def _flat(array: Any) -> Values:
    """Returns a number for each row. The number for a null is arbitrary."""
    kind, count, offset = array.type, len(array), array.offset
    dtype = number_dtype(kind)
    assert dtype is not None
    buffer = array.buffers()[1]
    if count == 0:
        return np.empty(0, dtype)
    if kinds.is_boolean(kind):
        return _bits(buffer, offset, count)
    width = kind.bit_width // 8
    if width == dtype.itemsize:
        return np.frombuffer(buffer, dtype, count, offset * width)
    stored = np.frombuffer(buffer, f"i{width}", count, offset * width)  # numpy's dates and times have 64 bits
    return stored.astype(np.int64).view(dtype)


def _bits(buffer: Any, offset: int, count: int) -> NDArray[np.bool_]:
    first = offset // 8
    packed = np.frombuffer(buffer, np.uint8, (offset + count + 7) // 8 - first, first)
    bits = np.unpackbits(packed, bitorder="little")
    return bits[offset % 8 : offset % 8 + count].view(np.bool_)


def _valid(array: Any) -> NDArray[np.bool_] | None:
    """Returns a mask of the rows that are not null, or None if no row is null."""
    if array.null_count == 0:
        return None
    buffer = array.buffers()[0]
    return np.zeros(len(array), np.bool_) if buffer is None else _bits(buffer, array.offset, len(array))


def _lists(array: Any) -> Cells:
    values, whole = _numbers(array.values)
    wide = kinds.is_large_list(array.type)
    edges = _edges(array, "i8" if wide else "i4", len(values))
    plain = _valid(array)
    if whole is not None:
        # The number of nulls before each edge, which is the same at both edges of a row without nulls.
        nulls = np.concatenate([[0], np.cumsum(~whole)])[edges]
        sound = nulls[1:] == nulls[:-1]
        plain = sound if plain is None else plain & sound
    lengths = np.diff(edges)
    if plain is None and len(lengths) and (lengths == lengths[0]).all():
        rows = values[edges[0] : edges[-1]].reshape(len(lengths), int(lengths[0]), *values.shape[1:])
        return NumberCells(array, rows, None)
    return ListCells(array, values, edges, plain)


def is_tokens(kind: Any) -> bool:
    """True for lists of integers of any length."""
    is_list = kinds.is_list(kind) or kinds.is_large_list(kind)
    return bool(is_list and kinds.is_integer(kind.value_type))


def list_lengths(array: Any) -> NDArray[np.int64]:
    """Returns the number of elements of each list in a column, or 0 for a null."""
    edges = _edges(array, "i8" if kinds.is_large_list(array.type) else "i4", len(array.values))
    lengths, valid = np.diff(edges).astype(np.int64), _valid(array)
    return lengths if valid is None else lengths * valid


def _text(array: Any) -> Cells:
    kind = array.type
    is_string = not is_binary(kind)
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        array.validate(full=True)
        array = array.cast(pa.large_string() if is_string else pa.large_binary())
        kind = array.type
    valid = _valid(array)
    if kinds.is_fixed_size_binary(kind):
        width, data = kind.byte_width, _memory(array.buffers()[1])
        edges = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * width
        if len(array) and edges[-1] > len(data):
            raise ValueError(f"{len(array):,} values of {width} bytes do not fit into {len(data):,} bytes")
        return TextCells(array, data, edges, valid, is_string)
    wide = kinds.is_large_string(kind) or kinds.is_large_binary(kind)
    data = _memory(array.buffers()[2])
    return TextCells(array, data, _edges(array, "i8" if wide else "i4", len(data)), valid, is_string)


def _memory(buffer: Any) -> memoryview:
    return memoryview(b"" if buffer is None else buffer)


def _edges(array: Any, dtype: str, end: int) -> Values:
    """Returns the offset of each row and the end of the last row. Raises ValueError if the offsets are invalid."""
    buffer, width = array.buffers()[1], int(dtype[1])
    if buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, dtype)
    edges: Values = np.frombuffer(buffer, dtype, len(array) + 1, array.offset * width)
    if edges[0] < 0 or edges[-1] > end or (edges[1:] < edges[:-1]).any():
        raise ValueError(f"the offsets of a column of type {array.type} are not within its {end:,} values")
    return edges


def form_of(kind: Any) -> str:
    """Describes the values of a column of this type. For example, "int32[any]" is an int32 array of any length."""
    if kinds.is_dictionary(kind):
        return form_of(kind.value_type)
    if isinstance(kind, pa.FixedShapeTensorType):
        return f"{number_dtype(kind.value_type)}{list(kind.shape)}" if is_numeric(kind) else str(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return form_of(kind.storage_type)
    if is_text(kind):
        return "bytes" if is_binary(kind) else "str"
    if kinds.is_fixed_size_list(kind) and is_numeric(kind):
        return f"{form_of(kind.value_type)}[{kind.list_size}]"
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        inner = form_of(kind.value_type)  # writers name the inner field differently: item, element
        return f"{inner}[any]" if is_numeric(kind.value_type) else f"list<{inner}>"
    if kinds.is_struct(kind):
        return f"{{{', '.join(f'{field.name}: {form_of(field.type)}' for field in kind)}}}"
    if kinds.is_timestamp(kind) and kind.tz is not None:  # without a time zone, it is a local time
        return f"UTC {number_dtype(kind)}"
    return str(number_dtype(kind) or kind)
