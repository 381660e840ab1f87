"""Laws of dtype=: what is written is what numpy makes of it, and a value is lost only where an error says so."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock import ArrayDataset, CastError, CollateError, DataLoader
from penstock._fill.cast import DTYPES, Cast, FieldMemory

SOURCES = [np.dtype(name) for name in (*DTYPES, "int16", "uint16", "uint32", "uint64", ">i4", ">f8", "longdouble")]
law = settings(deadline=None, max_examples=150)


def edges(dtype: np.dtype[Any]) -> list[Any]:
    """Values of this dtype around the ends of all others."""
    found: list[Any] = [0, 1, -1]
    for name in DTYPES:
        info: Any = np.finfo(name) if "float" in name else np.iinfo(name)
        found += [int(end) + step for end in (info.min, info.max) for step in (-1, 0, 1)]
    if dtype.kind == "f":
        found += [0.5, math.nan, math.inf, -math.inf, 65519.0, 65520.0, 1e40, 2.0**63, 2.0**64, -(2.0**63)]
        with np.errstate(all="ignore"):
            return [np.array(value, object).astype(dtype)[()] for value in found]
    bounds = np.iinfo(dtype)
    return [dtype.type(value) for value in found if bounds.min <= value <= bounds.max]


def is_lost(value: Any, goal: np.dtype[Any]) -> bool:
    """By the words of the documentation, in exact numbers."""
    if goal.kind == "f":
        with np.errstate(all="ignore"):
            return bool(np.isinf(np.array(value).astype(goal)) and np.isfinite(value))
    if not np.isfinite(value):
        return True
    exact = Fraction(*value.as_integer_ratio()) if hasattr(value, "as_integer_ratio") else Fraction(int(value))
    return exact.denominator != 1 or not np.iinfo(goal).min <= exact <= np.iinfo(goal).max


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(SOURCES))
    plain = hnp.from_dtype(dtype if dtype.name != "longdouble" else np.dtype("float64"))
    small = st.integers(0, 100).map(dtype.type)
    if dtype.kind == "f":
        small = st.one_of(small, st.sampled_from([0.5, 2.25]).map(dtype.type))
    values = draw(st.lists(st.one_of(small, small, st.sampled_from(edges(dtype)), plain), max_size=12))
    with np.errstate(all="ignore"):
        array = np.array(values, dtype)
    if len(array) % 2 == 0 and draw(st.booleans()):
        array = array.reshape(-1, 2)
    return array[::-1] if draw(st.booleans()) else array


def put(array: Any, goal: str, casting: str) -> Any:
    cast = Cast.of(goal, casting)
    assert cast is not None
    return FieldMemory(cast.root(), np.empty).put(array)


@law
@given(array=arrays(), goal=st.sampled_from(DTYPES))
def test_what_is_not_lost_is_what_numpy_makes_of_it(array: Any, goal: str) -> None:
    dtype = np.dtype(goal)
    lost = [value for value in array.ravel() if is_lost(value, dtype)]
    with np.errstate(all="ignore"):
        expected = array.astype(dtype)
    if lost:
        with pytest.raises(CastError) as caught:
            put(array, goal, "checked")
        assert repr(lost[0].item()) in str(caught.value)
        (row,) = caught.value.rows
        assert any(is_lost(value, dtype) for value in np.atleast_1d(array[row]))
    else:
        got = put(array, goal, "checked")
        assert got.dtype == dtype and np.array_equal(got, expected, equal_nan=dtype.kind == "f")


@pytest.mark.parametrize(
    ("value", "goal", "why"),
    [
        (300, "uint8", "uint8 holds 0 to 255"),
        (-1, "uint8", "uint8 holds 0 to 255"),
        (2**31, "int32", "int32 holds -2147483648 to 2147483647"),
        (0.5, "int64", "int64 holds whole numbers only"),
        (2.0**63, "int64", "int64 holds -9223372036854775808 to"),
        (math.nan, "int32", "int32 holds"),
        (math.inf, "int8", "int8 holds"),
        (65520.0, "float16", "it is outside the range of float16"),
        (70_000, "float16", "it is outside the range of float16"),
        (1e40, "float32", "it is outside the range of float32"),
    ],
)
def test_a_value_that_is_lost_alone_among_others(value: Any, goal: str, why: str) -> None:
    with pytest.raises(
        CastError, match=rf"{re.escape(repr(value))} in the batch \(row 2\) would be lost, because {why}"
    ):
        put(np.array([1, 2, value, 3]), goal, "checked")


@pytest.mark.parametrize(
    ("value", "goal"),
    [
        (0.1, "float16"),
        (65519.0, "float16"),
        (math.nan, "float16"),
        (math.inf, "float32"),
        (2**53 + 1, "float64"),
    ],
)
def test_what_is_rounded_is_not_lost(value: Any, goal: str) -> None:
    assert put(np.array([value]), goal, "checked").dtype == goal


@law
@given(array=arrays(), goal=st.sampled_from(DTYPES))
def test_unsafe_is_numpy(array: Any, goal: str) -> None:
    with np.errstate(all="ignore"):
        expected = array.astype(goal)
    assert put(array, goal, "unsafe").tobytes() == expected.tobytes()


@law
@given(array=arrays(), goal=st.sampled_from(DTYPES), data=st.data())
def test_rows_gathered_stacked_and_whole_are_converted_alike(array: Any, goal: str, data: Any) -> None:
    if not len(array):
        return
    keys = data.draw(st.lists(st.integers(0, len(array) - 1), min_size=1, max_size=6))

    def outcome(dataset: Any, **settings: Any) -> Any:
        loader = DataLoader(dataset, batch_sampler=[keys], dtype=goal, **settings)
        try:
            (batch,) = loader
        except CastError as error:
            return error.rows
        return batch.dtype, batch.tobytes()

    gathered = outcome(ArrayDataset(array))
    assert outcome(list(array)) == gathered
    assert outcome([np.asarray(row) for row in array]) == gathered
    # Not through the scalars, which have the machine's byte order.
    assert outcome(array, collate_fn=np.array) == gathered


@pytest.mark.parametrize("goal", ["float16", "uint8", "int64"])
def test_blocks_find_a_value_wherever_it_is(goal: str) -> None:
    """Much longer than a block, which is a detail of how it is written."""
    lost = 1e30
    for shape in ((200_000,), (400, 500), (2, 100_000)):
        for at in (0, 65_536, 123_457, 199_999):
            array = np.zeros(shape)
            array.flat[at] = lost
            with pytest.raises(CastError, match="1e\\+30") as caught:
                put(array, goal, "checked")
            assert caught.value.rows == (int(np.unravel_index(at, shape)[0]),)


@pytest.mark.parametrize("goal", ["float16", "uint8"])
@pytest.mark.parametrize("size", [10, 40_000])
@pytest.mark.parametrize("step", [1, -2])
def test_stacked_rows_small_and_large_name_the_sample(goal: str, size: int, step: int) -> None:
    rows = [np.full((2, size), key, float)[::, ::step] for key in range(6)]
    (batch,) = DataLoader(rows, 6, dtype=goal)
    assert batch.dtype == goal and (batch == np.arange(6)[:, None, None]).all()
    rows[4][1, -1] = 1e30
    with pytest.raises(CastError, match=r"1e\+30 in the batch \(row 1\)") as caught:
        list(DataLoader(rows, 3, dtype=goal))
    assert "row 1 is sample 4." in caught.value.__notes__


def test_rows_without_elements_are_converted() -> None:
    (batch,) = DataLoader([np.zeros((0, 2))] * 3, 3, dtype="float32")
    assert (batch.shape, batch.dtype) == ((3, 0, 2), np.float32)


@pytest.mark.parametrize("size", [10, 40_000])
def test_rows_of_other_shapes_are_the_error_that_they_are_without_it(size: int) -> None:
    rows = [np.zeros((2, size)), np.zeros((2, size + 1))]
    with pytest.raises(CollateError, match="arrays of different shapes cannot be stacked"):
        list(DataLoader(rows, 2, dtype="uint8"))
