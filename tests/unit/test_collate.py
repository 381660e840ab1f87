"""Collate: each rule once, each refusal with its message and the rows that it blames."""

from __future__ import annotations

import enum
import pickle
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock._fill.collate import collate, convert
from penstock.collate import default_collate
from penstock.errors import CollateError

Pair = namedtuple("Pair", "image label")


@dataclass
class Box:
    corner: Any
    label: Any = 0


@dataclass(frozen=True, slots=True)
class Frozen:
    corner: Any
    label: Any


@dataclass
class Late:
    x: Any
    later: Any = field(init=False)

    def __post_init__(self) -> None:
        self.cache = None


class Sample(dict):  # type: ignore[type-arg]
    pass


class Strict(dict):  # type: ignore[type-arg]
    def __init__(self, items: Any, *, owner: str) -> None:
        super().__init__(items)


class Row(list):  # type: ignore[type-arg]
    pass


class Guest:
    """Something that numpy can read, as a tensor is."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"Guest({self.values})"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.values)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 7


def refused(samples: Any) -> CollateError:
    with pytest.raises(CollateError) as caught:
        default_collate(samples)
    return caught.value


def recorded() -> tuple[Callable[..., Any], list[Any]]:
    """An allocator, and what it has handed out."""
    handed: list[Any] = []

    def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        handed.append(np.empty(shape, dtype))
        return handed[-1]

    return empty, handed


# ---- numbers


@pytest.mark.parametrize(
    ("samples", "dtype"),
    [
        ([1, 2], "int64"),
        ([-(2**63), 2**63 - 1], "int64"),
        ([2**63, 2**64 - 1, 0], "uint64"),
        ([1.5, float("inf")], "float64"),
        ([True, False], "bool"),
        ([1j, 2], "complex128"),
        ([1, 2.5], "float64"),
        ([True, 3], "int64"),
        ([np.float32(1.5), np.float32(2)], "float32"),
        ([np.int8(1), np.int16(2)], "int16"),
        ([np.uint8(1), 2], "int64"),
        ([np.bool_(True), False], "bool"),
        ([np.float64(1), 2.0], "float64"),
        ([Level.LOW, Level.HIGH], "int64"),
        ([np.array(1, np.int16), np.array(2, np.int16)], "int16"),
        ([np.array(1.5), 2], "float64"),
    ],
    ids=repr,
)
def test_numbers_become_one_array_of_the_dtype_that_holds_them(samples: list[Any], dtype: str) -> None:
    batch = default_collate(samples)
    assert type(batch) is np.ndarray
    assert batch.dtype == dtype
    assert batch.tolist() == [np.asarray(sample).item() for sample in samples]


@pytest.mark.parametrize("samples", [[2**64], [2**63, -1], [0.5, 2**70], [1, 2**64, np.int8(3)]], ids=repr)
def test_an_integer_that_no_dtype_holds_is_refused(samples: list[Any]) -> None:
    error = refused(samples)
    assert "neither int64 nor uint64" in str(error)
    assert all(abs(samples[row]) >= 2**63 for row in error.rows)
    assert error.rows


# ---- arrays


DTYPES = ["u1", "<i4", ">i4", ">f8", "c8", "?", "<U5", ">U2", "S3", "M8[D]", "m8[s]", "f2", "V4", "<i4,>f8"]


@pytest.mark.parametrize("shape", [(), (1,), (5,), (0,), (3, 0), (0, 3), (2, 3), (1, 1, 4)], ids=str)
def test_arrays_of_one_shape_and_dtype_are_stacked_as_they_are(shape: tuple[int, ...]) -> None:
    for dtype in map(np.dtype, DTYPES):
        size = dtype.itemsize * int(np.prod(shape))
        samples = [np.full(size, row, "u1").view(dtype).reshape(shape) for row in (0, 1)]
        if dtype.kind == "U":
            samples = [np.full(shape, text, dtype) for text in ("a", "bc")]
        batch = default_collate(samples)
        assert batch.dtype == dtype
        assert batch.shape == (2, *shape)
        assert batch.tobytes() == samples[0].tobytes() + samples[1].tobytes()


@pytest.mark.parametrize(
    "look",
    [
        np.asfortranarray,
        lambda a: a[::-1],
        lambda a: a[:, ::-2],
        lambda a: a.T,
        lambda a: np.broadcast_to(a[0], a.shape),
    ],
    ids=["fortran", "reversed", "strided", "transposed", "broadcast"],
)
def test_how_an_array_lies_in_memory_does_not_matter(look: Any) -> None:
    samples = [look(np.arange(12).reshape(3, 4) + row) for row in range(3)]
    samples[1].flags.writeable = False
    batch = default_collate(samples)
    assert batch.flags.c_contiguous
    assert batch.tolist() == [sample.tolist() for sample in samples]


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["i4", "i8"], "i8"),
        (["f8", "f4"], "f8"),
        (["?", "u1"], "u1"),
        (["i8", "u8"], "f8"),
        ([">i4", "<i4"], "<i4"),
        (["<U3", "<U7"], "<U7"),
        (["S1", "S4"], "S4"),
        (["M8[D]", "M8[s]"], "M8[s]"),
    ],
    ids=str,
)
def test_arrays_of_different_dtypes_are_promoted(dtypes: list[str], expected: str) -> None:
    batch = default_collate([np.zeros(2, dtype) for dtype in dtypes])
    assert batch.dtype == expected


@pytest.mark.parametrize(
    "dtypes",
    [
        ["f8", "<U3"],
        ["<U21", "i8"],
        ["m8[s]", "i8"],
        ["i8", "m8[s]"],
        ["M8[s]", "m8[s]"],
        ["S3", "U3"],
        ["i4,i4", "f8"],
    ],
    ids=str,
)
def test_numbers_do_not_become_text_or_times(dtypes: list[str]) -> None:
    error = refused([np.zeros(2, dtype) for dtype in dtypes])
    assert "arrays of different dtypes cannot be stacked" in str(error)
    assert error.rows == (1,)


def test_rows_of_a_memory_map_become_a_plain_array(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "rows", np.int32, "w+", shape=(4, 3))
    mapped[:] = np.arange(12).reshape(4, 3)
    batch = default_collate([mapped[2], mapped[0]])
    assert type(batch) is np.ndarray
    assert batch.tolist() == [[6, 7, 8], [0, 1, 2]]


class Image(np.ndarray[Any, Any]):
    pass


def test_a_subclass_of_array_becomes_a_plain_array() -> None:
    batch = default_collate([np.array([1, 2]).view(Image), np.array([3, 4])])
    assert type(batch) is np.ndarray
    assert batch.tolist() == [[1, 2], [3, 4]]


def test_scalars_of_structured_rows_become_a_structured_array() -> None:
    table = np.array([(1, 2.5), (3, 4.5)], "i4,f8")
    batch = default_collate([table[1], table[0]])
    assert batch.dtype == table.dtype
    assert batch.tolist() == [(3, 4.5), (1, 2.5)]


def test_times_of_different_units_keep_the_finer_one() -> None:
    batch = default_collate([np.datetime64("2020-01-01"), np.datetime64("2020-01-01T05")])
    assert batch.dtype == "M8[h]"


def test_guests_with_an_array_are_read_through_it() -> None:
    assert default_collate([Guest([1, 2]), Guest([3, 4])]).tolist() == [[1, 2], [3, 4]]


def test_guests_and_arrays_may_be_mixed() -> None:
    assert default_collate([Guest([1, 2]), np.array([3, 4])]).tolist() == [[1, 2], [3, 4]]


def test_a_guest_that_gives_no_array_is_named_with_its_own_words() -> None:
    class Remote(Guest):
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise RuntimeError("it is on another device.")

    error = refused([{"x": Guest([1])}, {"x": Remote([1])}])
    assert str(error).startswith("sample['x']: row 1: a ")
    assert "Remote cannot be made an array: it is on another device. Convert it" in str(error)
    assert error.rows == (1,)
    assert isinstance(error.__cause__, RuntimeError)


@pytest.mark.parametrize(
    "shapes",
    [[(2, 3), (3, 2)], [(4,), (2, 2)], [(2,), ()], [(), (1,)], [(2, 3), (2, 4)], [(0,), (0, 2)]],
    ids=str,
)
def test_two_shapes_are_refused(shapes: list[tuple[int, ...]]) -> None:
    error = refused([np.zeros(shape) for shape in shapes])
    assert "arrays of different shapes cannot be stacked" in str(error)
    assert error.rows == (1,)


def test_ragged_rows_whose_total_fits_are_refused() -> None:
    assert refused([np.zeros(4), np.zeros(3), np.zeros(5)]).rows == (1, 2)


def test_an_error_of_shapes_says_field_shapes_rows_and_remedy() -> None:
    odd, usual = np.zeros((7, 4)), np.zeros((3, 4))
    error = refused([{"boxes": [odd if row == 2 else usual]} for row in range(4)])
    assert str(error) == (
        "sample['boxes'][0]: arrays of different shapes cannot be stacked: "
        "(3, 4) in rows 0, 1, 3 and (7, 4) in row 2. Pad them to one shape, or pass collate_fn=."
    )
    assert error.rows == (2,)


def test_an_error_over_many_rows_stays_short() -> None:
    error = refused([np.zeros(row) for row in range(500)])
    assert len(str(error)) < 300
    assert len(error.rows) == 499


def test_masked_arrays_are_refused() -> None:
    error = refused([np.array([1]), np.ma.masked_array([1], [True])])
    assert "would lose its mask" in str(error)
    assert error.rows == (1,)


POINTERS: list[Any] = [object, [("a", "i4"), ("b", object)]]
if hasattr(np.dtypes, "StringDType"):  # numpy 2
    POINTERS.append(np.dtypes.StringDType())


@pytest.mark.parametrize("dtype", POINTERS, ids=str)
def test_arrays_of_pointers_are_refused(dtype: Any) -> None:
    error = refused([{"x": np.zeros(2, dtype)}])
    assert str(error).startswith("sample['x']: arrays of dtype ")
    assert "(row 0) hold pointers" in str(error)


# ---- text


def test_text_stays_a_list() -> None:
    assert default_collate(["a", "b"]) == ["a", "b"]
    assert default_collate([b"a", b"b"]) == [b"a", b"b"]


def test_numpy_text_stays_a_list_as_it_is() -> None:
    batch = default_collate([np.str_("a"), "b"])
    assert [type(text) for text in batch] == [np.str_, str]


# ---- containers


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: Row([x, y]),
        Pair,
        Frozen,
        Box,
        lambda x, y: {"x": x, "y": y},
        lambda x, y: OrderedDict(y=y, x=x),
        lambda x, y: Sample(x=x, y=y),
        lambda x, y: UserDict(x=x, y=y),
        lambda x, y: {"in": ({"x": x}, [y])},
    ],
    ids=["tuple", "list", "Row", "named", "frozen", "data", "dict", "Ordered", "Sample", "User", "nested"],
)
def test_a_container_keeps_its_class_and_is_collated_field_by_field(make: Any) -> None:
    batch = default_collate([make(1, "a"), make(2, "b")])
    assert type(batch) is type(make(1, "a"))
    expected = make("numbers", ["a", "b"])
    numbers = []

    def fill(made: Any) -> Any:
        if isinstance(made, np.ndarray):
            numbers.append(made.tolist())
            return "numbers"
        return made

    assert repr_with(batch, fill) == repr_with(expected, fill)
    assert numbers == [[1, 2]]


def repr_with(tree: Any, change: Callable[[Any], Any]) -> str:
    if isinstance(tree, (dict, UserDict)):
        inner = {key: repr_with(value, change) for key, value in tree.items()}
    elif isinstance(tree, (Box, Frozen)):
        inner = {"corner": repr_with(tree.corner, change), "label": repr_with(tree.label, change)}
    elif isinstance(tree, (list, tuple)):
        inner = [repr_with(value, change) for value in tree]  # type: ignore[assignment]
    else:
        return repr(change(tree))
    return f"{type(tree).__name__} {inner}"


def test_empty_containers_stay_empty() -> None:
    assert default_collate([{}, {}]) == {}
    assert default_collate([(), ()]) == ()
    assert default_collate([[], []]) == []


def test_a_default_factory_is_kept() -> None:
    batch = default_collate([defaultdict(list, x=1), defaultdict(list, x=2)])
    assert batch["new"] == []


def test_a_missing_key_of_a_defaultdict_is_missing() -> None:
    samples = [defaultdict(int, x=1), defaultdict(int, y=2)]
    assert "different keys" in str(refused(samples))
    assert "x" not in samples[1]


def test_a_mapping_that_no_dict_makes_becomes_a_dict() -> None:
    batch = default_collate([Strict({"x": 1}, owner="me"), Strict({"x": 2}, owner="me")])
    assert type(batch) is dict
    assert batch["x"].tolist() == [1, 2]


def test_keys_in_another_order_are_the_same_keys() -> None:
    batch = default_collate([{"a": 1, "b": 2}, {"b": 4, "a": 3}])
    assert list(batch) == ["a", "b"]
    assert batch["a"].tolist() == [1, 3]


def test_only_the_fields_of_a_dataclass_are_collated() -> None:
    batch = default_collate([Late(1), Late(2)])
    assert vars(batch).keys() == {"x"}
    assert batch.x.tolist() == [1, 2]


def test_a_field_that_only_some_samples_set_is_refused() -> None:
    samples = [Late(1), Late(2), Late(3)]
    samples[0].later = samples[1].later = 5
    error = refused(samples)
    assert "'later' is not set in row 2" in str(error)
    assert error.rows == (2,)


def test_missing_and_extra_keys_are_named_with_their_rows() -> None:
    samples = [{"m": {"a": 1, "b": 2}} for _ in range(5)]
    samples[1] = {"m": {"a": 1}}
    samples[3] = {"m": {"a": 1, "b": 2, "c": 3}}
    error = refused(samples)
    assert str(error) == (
        "sample['m']: dicts with different keys cannot be collated: row 1 lacks ['b']; row 3 has also ['c']; "
        "the other rows have ['a', 'b']. Give every sample the same keys, or pass collate_fn=."
    )
    assert error.rows == (1, 3)


def test_an_error_over_many_keys_stays_short() -> None:
    samples: list[Any] = [{f"key{number}": 1 for number in range(1000)}, {"other": 1}]
    assert len(str(refused(samples))) < 600


def test_as_many_keys_but_others_are_refused() -> None:
    error = refused([{"a": 1}, {"a": 1}, {"b": 1}])
    assert "row 2 lacks ['a'] and has also ['b']" in str(error)


@pytest.mark.parametrize("make", [list, tuple, Row], ids=lambda make: make.__name__)
def test_sequences_of_different_lengths_are_refused(make: Any) -> None:
    error = refused([make([1, 2]), make([1, 2]), make([1])])
    assert "sequences of different lengths cannot be collated: 2 in rows 0, 1 and 1 in row 2" in str(error)
    assert error.rows == (2,)


@pytest.mark.parametrize(
    ("sample", "path"),
    [
        ({"a": [0, {1: None}]}, "sample['a'][1][1]"),
        (Pair(1, None), "sample.label"),
        (Box((None,)), "sample.corner[0]"),
        (None, "sample"),
        (OrderedDict(k=[None]), "sample['k'][0]"),
    ],
    ids=repr,
)
def test_an_error_names_the_path_of_the_field(sample: Any, path: str) -> None:
    assert str(refused([sample, sample])).startswith(f"{path}: values of type NoneType cannot be collated.")


@pytest.mark.parametrize(
    "value", [None, {1}, object(), range(3), deque([1]), datetime(2020, 1, 1), bytearray(b"x"), int]
)
def test_a_type_that_cannot_be_collated_is_named_with_the_remedy(value: Any) -> None:
    error = refused([value, value])
    assert type(value).__name__ in str(error)
    assert "drop the field, or pass collate_fn=" in str(error)
    assert error.rows == (0, 1)


@pytest.mark.parametrize(
    ("samples", "rows"),
    [
        ([None, 1], (0,)),
        ([1, 2, None], (2,)),
        ([None, None, 1], (0, 1)),
        (["a", 1, 2], (0,)),
        ([np.str_("1"), 1, 2], (0,)),
        ([(1, 2), [1, 2], [1, 2]], (0,)),
        ([{"a": 1}, OrderedDict(a=1)], (1,)),
        ([np.zeros(2), [0.0, 0.0]], (1,)),
        ([[0.0, 0.0], np.zeros(2)], (1,)),
    ],
    ids=repr,
)
def test_values_of_different_types_are_refused_and_odd_rows_named(samples: Any, rows: Any) -> None:
    error = refused(samples)
    assert "values of different types cannot be collated" in str(error)
    assert error.rows == rows


def test_a_sample_that_contains_itself_is_refused() -> None:
    around: list[Any] = [1]
    around.append(around)
    error = refused([around, around])
    assert "contains itself" in str(error)
    assert len(str(error)) < 200


# ---- the whole batch


@pytest.mark.parametrize("samples", [[], (), np.zeros((0, 3))], ids=["list", "tuple", "array"])
def test_no_samples_are_refused(samples: Any) -> None:
    assert "there are no samples" in str(refused(samples))


@pytest.mark.parametrize("samples", [{"a": 1}, "text", b"bytes", np.array(3)], ids=repr)
def test_what_is_no_sequence_of_samples_is_refused(samples: Any) -> None:
    assert "is not a sequence of samples" in str(refused(samples))


def test_any_other_sequence_of_samples_will_do() -> None:
    assert default_collate(deque([1, 2])).tolist() == [1, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rows", [np.ones((2, 3))[::-1], np.array(["a", "b"]), np.array([1.5])], ids=["2-d", "text", "1-d"]
)
def test_an_array_of_rows_is_copied_once_into_the_slab(rows: Any) -> None:
    empty, handed = recorded()
    batch = collate(rows, empty)
    assert [id(batch)] == [id(array) for array in handed]
    assert not np.shares_memory(batch, rows)
    assert batch.dtype == rows.dtype
    assert batch.tolist() == rows.tolist()


def test_rows_of_a_guest_are_copied_too() -> None:
    assert default_collate(Guest([[1], [2]])).tolist() == [[1], [2]]  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [np.ma.array([1, 2]), np.array([None, None])], ids=["masked", "object"])
def test_rows_that_cannot_be_stored_are_refused(rows: Any) -> None:
    assert refused(rows)


@pytest.mark.parametrize(
    "samples",
    [
        [1, 2],
        [2**63, 1],
        [1, 2.5],
        [np.zeros(2, "i4"), np.zeros(2, "i8")],
        [np.array(1), np.array(2)],
        [Guest([1]), Guest([2])],
        [np.float32(1), np.float32(2)],
    ],
    ids=repr,
)
def test_memory_is_asked_for_once_and_is_the_batch_itself(samples: Any) -> None:
    empty, handed = recorded()
    batch = collate(samples, empty)
    assert [id(batch)] == [id(array) for array in handed]


def test_an_error_of_the_allocator_passes_as_it_is() -> None:
    def full(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        raise ValueError("the slab is full")

    for samples in ([1, 2], [np.zeros(2), np.zeros(2)], [{"a": 1.5}], np.zeros((2, 2))):
        with pytest.raises(ValueError, match=r"^the slab is full$"):
            collate(samples, full)  # type: ignore[arg-type]


def test_memory_of_a_wrong_shape_is_not_blamed_on_the_samples() -> None:
    with pytest.raises(ValueError) as caught:
        collate([np.zeros(2), np.zeros(2)], lambda shape, dtype: np.empty(3, dtype))
    assert type(caught.value) is ValueError


def test_samples_are_left_as_they_were() -> None:
    samples = [{"a": np.arange(2), "b": UserDict(c=1)}, {"a": np.arange(2), "b": UserDict(c=2)}]
    batch = default_collate(samples)
    batch["a"][:] = 9
    assert samples[0]["a"].tolist() == [0, 1]
    assert samples[0]["b"]["c"] == 1


def test_an_error_keeps_its_rows_through_pickle() -> None:
    error = pickle.loads(pickle.dumps(refused([1, None])))
    assert type(error) is CollateError
    assert error.rows == (1,)


def test_without_batches_a_sample_stays_itself() -> None:
    sample = {"a": np.zeros(2), "b": Pair(1, "x")}
    assert convert(sample) is sample


class Short:
    """Says that it has three samples, and stops after two, as if they were all."""

    def __init__(self, stop: type[Exception]) -> None:
        self.stop = stop

    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> int:
        if row == 2:
            raise self.stop
        return row


class ShortByNext(Short):
    def __iter__(self) -> Any:
        return map(self.__getitem__, range(3))


@pytest.mark.parametrize("samples", [Short(IndexError), ShortByNext(StopIteration)])
def test_samples_that_end_before_their_length_are_an_error(samples: Any) -> None:
    with pytest.raises(CollateError, match="has 3 samples, and ends after 2"):
        default_collate(samples)


class StoppingGuest:
    """Its `numpy`, and its `__array__`, raise StopIteration for one row."""

    def __init__(self, row: int) -> None:
        self.row = row

    def numpy(self) -> Any:
        if self.row == 1:
            raise StopIteration
        return np.array(self.row)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()


def test_a_row_that_raises_stop_iteration_does_not_shorten_the_batch() -> None:
    with pytest.raises(CollateError, match=r"row 1: a .*StoppingGuest cannot be made an array"):
        default_collate([StoppingGuest(row) for row in range(3)])
