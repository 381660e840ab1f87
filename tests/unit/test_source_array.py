"""ArrayDataset: what it gathers is what collating its samples gives."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from same import same

from penstock.source._array import ArrayDataset

ROWS = 12


def collated(samples: list[Any]) -> Any:
    """What default_collate does with such samples, in a few lines of its own."""
    first = samples[0]
    if isinstance(first, dict):
        return {name: collated([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple):
        return tuple(collated(list(column)) for column in zip(*samples, strict=True))
    if isinstance(first, (str, bytes)):
        return samples
    return np.array(samples) if first.ndim == 0 else np.stack(samples).astype(first.dtype, copy=False)


def columns() -> dict[str, Any]:
    numbers = np.arange(ROWS * 6)
    return {
        "1-d": numbers[:ROWS],
        "2-d": numbers.reshape(ROWS, 6).astype(np.float32),
        "3-d": numbers.reshape(ROWS, 2, 3),
        "strided": numbers[: 2 * ROWS : 2],
        "reversed": numbers.reshape(ROWS, 6)[::-1],
        "columns of a table": numbers.reshape(ROWS, 6)[:, 1:3],
        "fortran order": np.asfortranarray(numbers.reshape(ROWS, 6)),
        "broadcast": np.broadcast_to(np.arange(3), (ROWS, 3)),
        "big-endian 1-d": numbers[:ROWS].astype(">i4"),
        "big-endian 2-d": numbers.reshape(ROWS, 6).astype(">f8"),
        "not aligned": np.frombuffer(bytes(1 + 8 * ROWS), dtype=np.uint8)[1:].view(np.int64),
        "bool": numbers[:ROWS] % 3 == 0,
        "dates": numbers[:ROWS].astype("datetime64[D]"),
        "complex": numbers[:ROWS] * 1j,
        "records": np.array([(i, i / 2) for i in range(ROWS)], dtype=[("n", "i4"), ("x", "f8")]),
        "text": np.array([f"name {i}" for i in range(ROWS)]),
        "bytes": np.array([b"%d" % i for i in range(ROWS)]),
        "no bytes in a row": np.empty((ROWS, 0), np.int8),
        "text in rows": np.array([[f"{i}", "abc"] for i in range(ROWS)]),
        "list": list(range(ROWS)),
    }


@pytest.mark.parametrize("name", columns())
@pytest.mark.parametrize("shape", ["one", "tuple", "dict"])
def test_gathering_equals_collating_one_by_one(name: str, shape: str) -> None:
    column = columns()[name]
    other = np.arange(ROWS) * 1.5
    dataset = {
        "one": lambda: ArrayDataset(column),
        "tuple": lambda: ArrayDataset(column, other),
        "dict": lambda: ArrayDataset(a=column, b=other),
    }[shape]()
    keys = [3, 0, 11, 3, -1, -12]
    one_by_one = collated([dataset[key] for key in keys])
    assert same(dataset.__gather__(np.array(keys), np.empty), one_by_one)
    assert same(collated(dataset.__getitems__(keys)), one_by_one)


def test_variable_width_strings_become_a_list() -> None:
    strings = pytest.importorskip("numpy.dtypes").StringDType()
    dataset = ArrayDataset(np.array(["a", "bcd", "ef"], dtype=strings))
    assert dataset.__gather__([2, 0], np.empty) == ["ef", "a"]
    assert type(dataset[1]) is str


def test_a_sample_is_a_row_a_tuple_or_a_dict() -> None:
    x, y = np.arange(6).reshape(3, 2), np.array([5, 6, 7])
    assert ArrayDataset(x)[1].tolist() == [2, 3]
    assert isinstance(ArrayDataset(x, y)[1], tuple)
    assert ArrayDataset(x=x, y=y)[-1]["y"] == 7
    assert type(ArrayDataset(np.array(["a"]))[0]) is str
    assert len(ArrayDataset(x, y)) == 3


def test_rows_are_views_of_the_column() -> None:
    x = np.zeros((3, 2))
    dataset = ArrayDataset(x)
    assert np.shares_memory(dataset[1], x)
    assert all(np.shares_memory(row, x) for row in dataset.__getitems__([0, 2]))


def test_a_slice_gives_the_rows_of_every_column() -> None:
    part = ArrayDataset(x=np.arange(10), name=np.array(list("abcdefghij")))[2:4]
    assert part["x"].tolist() == [2, 3]
    assert part["name"].tolist() == ["c", "d"]


def test_the_batch_is_written_into_the_memory_given() -> None:
    asked = []

    def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        asked.append((shape, dtype, np.empty(shape, dtype)))
        return asked[-1][2]

    x = np.arange(6, dtype=np.int16).reshape(3, 2)
    dataset = ArrayDataset(x=x, t=np.array(["a", "b", "c"]), y=np.ones(3))
    batch = dataset.__gather__([2, 1], empty)
    assert [(shape, dtype.str[1:]) for shape, dtype, _ in asked] == [((2, 2), "i2"), ((2,), "f8")]
    assert batch["x"] is asked[0][2]
    assert batch["y"] is asked[1][2]


def test_memory_maps_are_kept_and_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(20).reshape(10, 2))
    mapped = np.load(path, mmap_mode="r")
    dataset = ArrayDataset(mapped)
    assert dataset.columns[0] is mapped
    assert type(dataset[3]) is np.ndarray
    assert np.shares_memory(dataset[3], mapped)
    batch = dataset.__gather__([9, 0], np.empty)
    assert batch.tolist() == [[18, 19], [0, 1]]
    assert batch.flags.writeable


def test_a_memory_map_is_pickled_once(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "rows.bin", np.int64, "w+", shape=(1000, 2))
    mapped[:] = np.arange(2000).reshape(1000, 2)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(ArrayDataset(mapped), protocol=5, buffer_callback=buffers.append)
    assert len(data) + sum(len(buffer.raw()) for buffer in buffers) < mapped.nbytes + 1000
    assert pickle.loads(data, buffers=buffers)[-1].tolist() == [1998, 1999]


@pytest.mark.parametrize("of", ["a table", "rows without alignment"])
def test_a_column_that_is_not_in_one_piece_is_not_copied_as_a_whole(of: str) -> None:
    table = np.zeros((1_000_000, 9), np.int8)
    column = table[:, :8] if of == "a table" else table.reshape(-1)[1:8_000_001].view(np.int64)
    dataset = ArrayDataset(column)
    tracemalloc.start()
    try:
        dataset.__gather__([5, 999_999], np.empty)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_torch_tensor_is_viewed_not_copied() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6).reshape(3, 2)
    dataset = ArrayDataset(tensor)
    tensor[1, 1] = 99
    assert dataset[1].tolist() == [2, 99]


@pytest.mark.parametrize("keys", [[0, 3], [-4, 0], np.array([2**62]), np.array([2**64 - 1], dtype=np.uint64)])
def test_a_key_outside_is_an_error_that_names_it_and_the_length(keys: Any) -> None:
    dataset = ArrayDataset(np.arange(3))
    wrong = next(int(key) for key in keys if not -3 <= key < 3)
    with pytest.raises(IndexError, match=f"key {wrong} .*3 rows"):
        dataset.__gather__(keys, np.empty)
    with pytest.raises(IndexError, match=f"key {wrong} .*3 rows"):
        dataset.__getitems__(keys)
    with pytest.raises(IndexError, match=f"key {wrong} is not in a dataset with 3 rows"):
        dataset[wrong]


@pytest.mark.parametrize("keys", [[0.0], [[0]], ["a"], [True], 3])
def test_keys_must_be_integers_along_one_axis(keys: Any) -> None:
    with pytest.raises(TypeError, match="keys must be integers along one axis"):
        ArrayDataset(np.arange(3)).__gather__(keys, np.empty)


@pytest.mark.parametrize("keys", [[], np.array([], dtype=np.int64)])
def test_no_keys_give_an_empty_batch(keys: Any) -> None:
    batch = ArrayDataset(np.zeros((3, 2), np.int8)).__gather__(keys, np.empty)
    assert batch.shape == (0, 2)
    assert batch.dtype == np.int8


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_keys_of_any_integer_type_are_keys(dtype: Any) -> None:
    assert ArrayDataset(np.arange(3)).__gather__(np.array([2, 1], dtype=dtype), np.empty).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "message"),
    [
        ((), {}, ValueError, "at least one array"),
        (([1],), {"y": [1]}, ValueError, r"1 by position and \['y'\] by name"),
        (([1, 2], [1]), {}, ValueError, r"lengths are \{0: 2, 1: 1\}"),
        ((), {"x": [1, 2], "y": [1]}, ValueError, r"lengths are \{'x': 2, 'y': 1\}"),
        ((np.array(3),), {}, TypeError, "column 0 must have rows"),
        ((np.array([{}, []], dtype=object),), {}, TypeError, "column 0 has dtype object.*PackedList"),
        ((), {"x": np.ma.masked_array([1, 2], [False, True])}, TypeError, "column x is a masked array"),
    ],
)
def test_wrong_columns_are_refused(args: Any, kwargs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ArrayDataset(*args, **kwargs)


def test_it_is_pickled_with_its_arrays_out_of_band_and_once_each() -> None:
    dataset = ArrayDataset(x=np.arange(1000), y=np.ones((1000, 2)))
    dataset.note = "kept"  # type: ignore[attr-defined]
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(dataset, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 2
    assert len(data) < 1000
    copy = pickle.loads(data, buffers=buffers)
    assert same(copy.__gather__([3, -1], np.empty), dataset.__gather__([3, -1], np.empty))
    assert copy.note == "kept"


def test_its_text_is_short() -> None:
    assert repr(ArrayDataset(x=np.zeros((3, 2)))) == "ArrayDataset(x: float64(3, 2))"


@settings(deadline=None)
@given(n=st.integers(1, 50), width=st.integers(0, 4), step=st.sampled_from([1, -1, 2]), data=st.data())
def test_gathering_is_fancy_indexing(n: int, width: int, step: int, data: st.DataObject) -> None:
    table = np.arange(n * 2 * max(width, 1)).reshape(n * 2, -1)[::step][:n, :width]
    keys = data.draw(st.lists(st.integers(-n, n - 1), max_size=30))
    expected = table[np.array(keys, dtype=np.int64)]
    assert same(ArrayDataset(table).__gather__(keys, np.empty), expected)
