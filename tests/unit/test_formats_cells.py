"""What a value of an Arrow column becomes: decided by its type, and by nulls in its own row only."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from same import same

from penstock.formats._cells import cells, form_of

DAY = datetime.date(2024, 2, 29)
NOON = datetime.datetime(2024, 2, 29, 12, 0, 0, 123456)
UTC = datetime.UTC
AT = datetime.time(1, 2, 3)

# The type, three rows as pyarrow takes them, and as samples have them.
TYPES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "int8": (pa.int8(), [1, -2, 3], [np.int8(1), np.int8(-2), np.int8(3)]),
    "uint64": (pa.uint64(), [1, 2**64 - 1, 0], [np.uint64(1), np.uint64(2**64 - 1), np.uint64(0)]),
    "float16": (pa.float16(), [np.float16(0.5)] * 3, [np.float16(0.5)] * 3),
    "float32": (pa.float32(), [0.5, 1.5, 2.5], [np.float32(0.5), np.float32(1.5), np.float32(2.5)]),
    "bool": (pa.bool_(), [True, False, True], [np.True_, np.False_, np.True_]),
    "date": (pa.date32(), [DAY] * 3, [np.datetime64("2024-02-29")] * 3),
    "date in ms": (pa.date64(), [DAY] * 3, [np.datetime64("2024-02-29", "ms")] * 3),
    "timestamp": (pa.timestamp("us"), [NOON] * 3, [np.datetime64(NOON)] * 3),
    "timestamp with a zone": (
        pa.timestamp("us", "Asia/Tokyo"),
        [NOON.replace(tzinfo=UTC)] * 3,
        [np.datetime64(NOON)] * 3,
    ),
    "time": (pa.time32("s"), [AT] * 3, [np.timedelta64(3723, "s")] * 3),
    "duration": (pa.duration("ms"), [5, 6, 7], [np.timedelta64(n, "ms") for n in (5, 6, 7)]),
    "str": (pa.string(), ["a", "", "zwölf"], ["a", "", "zwölf"]),
    "large str": (pa.large_string(), ["a", "", "zwölf"], ["a", "", "zwölf"]),
    "str by views": (pa.string_view(), ["a", "", "longer than twelve bytes"], ["a", "", "longer than twelve bytes"]),
    "bytes": (pa.binary(), [b"a", b"", b"\xff"], [b"a", b"", b"\xff"]),
    "bytes of one length": (pa.binary(2), [b"ab", b"cd", b"\0\0"], [b"ab", b"cd", b"\0\0"]),
    "list": (pa.list_(pa.int32()), [[1, 2], [], [3]], [np.array(x, np.int32) for x in ([1, 2], [], [3])]),
    "lists of one length": (pa.list_(pa.int8()), [[1], [3], [5]], list(np.array([[1], [3], [5]], np.int8))),
    "large list": (pa.large_list(pa.bool_()), [[True], [], []], [np.array(x, bool) for x in ([True], [], [])]),
    "fixed-size list": (pa.list_(pa.float64(), 2), [[1, 2], [3, 4], [5, 6]], list(np.arange(1.0, 7).reshape(3, 2))),
    "matrix": (
        pa.list_(pa.list_(pa.int8(), 2), 2),
        [[[1, 2], [3, 4]]] * 3,
        [np.array([[1, 2], [3, 4]], np.int8)] * 3,
    ),
    "list of pairs": (
        pa.list_(pa.list_(pa.int8(), 2)),
        [[[1, 2]], [], [[3, 4], [5, 6]]],
        [np.array(x, np.int8).reshape(-1, 2) for x in ([[1, 2]], [], [[3, 4], [5, 6]])],
    ),
    "list of dates": (pa.list_(pa.date32()), [[DAY], [], [DAY]], [np.array(x, "M8[D]") for x in ([DAY], [], [DAY])]),
    "categories": (pa.dictionary(pa.int8(), pa.string()), ["x", "y", "x"], ["x", "y", "x"]),
    "categories of numbers": (pa.dictionary(pa.int8(), pa.int64()), [7, 8, 7], [np.int64(n) for n in (7, 8, 7)]),
    "struct": (
        pa.struct([("n", pa.int16()), ("ids", pa.list_(pa.int32())), ("name", pa.string())]),
        [{"n": 1, "ids": [1], "name": "a"}] * 3,
        [{"n": np.int16(1), "ids": np.array([1], np.int32), "name": "a"}] * 3,
    ),
    "decimal": (pa.decimal128(5, 2), [decimal.Decimal("1.25")] * 3, [decimal.Decimal("1.25")] * 3),
    "list of str": (pa.list_(pa.string()), [["a"], [], ["b", "c"]], [["a"], [], ["b", "c"]]),
    "list of lists": (pa.list_(pa.list_(pa.int8())), [[[1], []], [], [[2]]], [[[1], []], [], [[2]]]),
    "map": (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [], [("b", 2)]], [[("a", 1)], [], [("b", 2)]]),
    "null": (pa.null(), [None] * 3, [None] * 3),
    "uuid": (pa.uuid(), [uuid.UUID(int=n).bytes for n in (1, 2, 3)], [uuid.UUID(int=n).bytes for n in (1, 2, 3)]),
    "tensor": (
        pa.fixed_shape_tensor(pa.int8(), [2, 2]),
        [[1, 2, 3, 4]] * 3,
        [np.array([[1, 2], [3, 4]], np.int8)] * 3,
    ),
}


def made(kind: Any, rows: list[Any]) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(rows, kind.storage_type))
    return pa.array(rows, kind)


def variants(kind: Any, rows: list[Any]) -> dict[str, Any]:
    """The same three rows: alone, in the middle of others, and after nulls that come first in the same memory."""
    return {
        "whole": made(kind, rows),
        "sliced": made(kind, [*rows, *rows, *rows])[3:6],
        "sliced at 8": made(kind, [*rows, *rows, *rows, *rows])[9:],
        "after nulls": made(kind, [None, None, *rows])[2:],
    }


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("variant", ["whole", "sliced", "sliced at 8", "after nulls"])
def test_a_value_has_the_type_of_its_column(name: str, variant: str) -> None:
    kind, rows, expected = TYPES[name]
    found = cells(variants(kind, rows)[variant])
    assert [same(found.item(row), expected[row]) for row in range(3)] == [True] * 3


@pytest.mark.parametrize("name", TYPES)
def test_a_null_is_none_and_changes_no_other_row(name: str) -> None:
    kind, rows, expected = TYPES[name]
    found = cells(made(kind, [rows[0], None, *rows[1:]]))
    values = [found.item(row) for row in range(4)]
    assert values[1] is None
    assert same([values[0], *values[2:]], expected)


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.list_(pa.int8(), 2), pa.large_list(pa.int8())])
def test_a_list_with_a_null_inside_is_a_list_and_others_are_arrays(kind: Any) -> None:
    found = cells(pa.array([[1, 2], [3, None], [5, 6]], kind))
    assert found.item(1) == [3, None]
    assert same([found.item(0), found.item(2)], [np.array([1, 2], np.int8), np.array([5, 6], np.int8)])


def test_an_array_has_memory_of_its_own_and_may_be_changed() -> None:
    found = cells(pa.array([[1, 2], [3, 4]]))
    row = found.item(1)
    row[:] = 9
    assert found.item(1).tolist() == [3, 4]
    assert row.base is None


@pytest.mark.parametrize("name", TYPES)
def test_rows_are_written_where_they_belong(name: str) -> None:
    kind, rows, expected = TYPES[name]
    found = cells(made(kind, rows))
    if not found.is_direct or (not found.is_text and len({np.shape(value) for value in expected}) > 1):
        return
    for places, order in (([3, 0], [2, 1]), (range(1, 4), [2, 0, 1])):
        if found.is_text:
            out: Any = [None] * 4
        else:
            shape, dtype = found.form(0)
            out = np.zeros((4, *shape), dtype)
        assert found.put(out, places, order)
        assert same([out[place] for place in places], [expected[row] for row in order])


def test_rows_that_do_not_fit_are_not_written() -> None:
    ragged = cells(pa.array([[1, 2], [3], [4, 5]]))
    assert not ragged.put(np.zeros((2, 2), np.int64), [0, 1], [0, 1])
    assert ragged.put(np.zeros((2, 2), np.int64), [0, 1], [0, 2])
    with_null = cells(pa.array([1, None, 3]))
    assert not with_null.put(np.zeros(2, np.int64), [0, 1], [0, 1])
    assert with_null.put(np.zeros(2, np.int64), [0, 1], [0, 2])


def lists(offsets: list[int], values: list[int]) -> Any:
    """An array that nobody has checked, as one from a damaged file."""
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32))]
    child = pa.array(values, pa.int32())
    return pa.Array.from_buffers(pa.list_(pa.int32()), len(offsets) - 1, buffers, children=[child])


@pytest.mark.parametrize("offsets", [[0, -1, 2], [0, 99, 2], [0, 2, 1, 3]])
def test_offsets_outside_of_the_values_are_an_error(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets of a column of type list<item: int32> are not within its 3 values"):
        cells(lists(offsets, [1, 2, 3]))


def test_a_category_that_does_not_exist_is_an_error() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int8()), pa.array(["a"]), safe=False)
    with pytest.raises(pa.ArrowInvalid):
        cells(array)


def test_text_that_is_not_utf_8_is_an_error_of_its_row() -> None:
    buffers = [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")]
    found = cells(pa.Array.from_buffers(pa.string(), 2, buffers))
    assert found.item(0) == "a"
    with pytest.raises(UnicodeDecodeError):
        found.item(1)


def test_the_form_of_a_column_is_said_in_words() -> None:
    forms = {name: form_of(kind) for name, (kind, _, _) in TYPES.items()}
    assert forms["list"] == "int32[any]"
    assert forms["fixed-size list"] == "float64[2]"
    assert forms["categories"] == forms["str"] == forms["large str"] == forms["str by views"] == "str"
    assert forms["struct"] == "{n: int16, ids: int32[any], name: str}"
    assert forms["tensor"] == "int8[2, 2]"
    assert forms["decimal"] == "decimal128(5, 2)"


@pytest.mark.parametrize(
    ("kind", "rows", "expected"),
    [
        (pa.list_(pa.timestamp("ns")), [[1, None]], [[np.datetime64(1, "ns"), None]]),
        (pa.list_(pa.timestamp("ns", tz="UTC"), 2), [[1, None]], [[np.datetime64(1, "ns"), None]]),
        (pa.large_list(pa.duration("ns")), [[None, 3]], [[None, np.timedelta64(3, "ns")]]),
        (pa.list_(pa.list_(pa.time64("ns"))), [[[5], None]], [[[np.timedelta64(5, "ns")], None]]),
        (pa.map_(pa.string(), pa.timestamp("ns")), [[("a", 1)]], [[("a", np.datetime64(1, "ns"))]]),
        (pa.list_(pa.struct([("t", pa.timestamp("ns"))])), [[{"t": 1}]], [[{"t": np.datetime64(1, "ns")}]]),
        (pa.list_(pa.timestamp("us")), [[1 << 60, None]], [[np.datetime64(1 << 60, "us"), None]]),
        (pa.list_(pa.date32()), [[1, None]], [[np.datetime64(1, "D"), None]]),
    ],
)
def test_times_within_python_objects_need_no_pandas(kind: Any, rows: list[Any], expected: list[Any]) -> None:
    found = cells(pa.array(rows, kind))
    assert [found.item(row) for row in range(len(rows))] == expected
