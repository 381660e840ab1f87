"""How a batch is put into a slab and opened from it, arrays inside of other objects included."""

from __future__ import annotations

import copyreg
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from same import same

from penstock._memory import guests
from penstock._memory.layout import Layout, Writer
from penstock._memory.slabs import Leases
from penstock._wire.pickling import dumps

SIZE = 1 << 16


def slab() -> Any:
    return np.zeros(SIZE, np.uint8)


def travel(tree: object, root: Any) -> Any:
    """The tree as the other side opens it, from the same bytes."""
    writer = Writer(root)
    spec, spots, rest = writer.place(tree)
    buffers: list[pickle.PickleBuffer] = []
    pickled = dumps(rest, buffers)
    views = [root[start : start + length] for start, length in writer.hold(buffers)]
    assert not writer.overflow
    layout = pickle.loads(pickle.dumps(Layout(spec, spots)))
    return layout.open(root, pickle.loads(pickled, buffers=views))


class Box:
    """Not a container to `flatten`: it is pickled, whatever it holds."""

    def __init__(self, value: Any) -> None:
        self.value = value


def inside(root: Any, array: Any) -> bool:
    return bool(np.shares_memory(root, array))


# ---- arrays ------------------------------------------------------------------------------------------

arrays = hnp.arrays(
    st.sampled_from(["?", "u1", "<i2", ">i4", "<f8", "<c16", "M8[s]", "<U3", "<i4,>f8"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@settings(max_examples=60, deadline=None)
@given(arrays, st.booleans())
def test_an_array_arrives_as_it_was(array: Any, boxed: bool) -> None:
    root = slab()
    tree = [array.T, Box(array.T)][boxed]
    got = travel({"a": tree, "b": "text"}, root)
    value = got["a"].value if boxed else got["a"]
    assert same(np.asarray(array.T), value)
    # numpy does not give the bytes of dates out of band.
    assert inside(root, value) or not array.size or (boxed and array.dtype.kind == "M")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(4),
        np.arange(4)[::2],
        np.arange(6).reshape(2, 3).T,
        np.broadcast_to(np.arange(3), (2, 3)),
        np.frombuffer(b"abc", np.uint8),
    ],
    ids=["plain", "with gaps", "transposed", "repeated", "read-only"],
)
def test_arrays_in_an_object_are_writable_views_of_the_slab(array: Any) -> None:
    root = slab()
    got = travel(Box([array]), root).value[0]
    assert got.tolist() == array.tolist()
    assert got.flags.writeable
    assert inside(root, got)


def test_an_array_in_an_object_keeps_the_lease() -> None:
    leases, root = Leases(), slab()
    leases.lend(3, root)
    got = travel(Box(np.arange(4)), root).value
    del root
    got = got[1:]
    assert leases.collect() == []
    del got
    assert leases.collect() == [3]


def test_an_object_that_occurs_twice_is_one_object_afterwards() -> None:
    array = np.arange(3)
    box = travel(Box([array, array]), slab())
    assert box.value[0] is box.value[1]


def test_arrays_of_objects_are_pickled_whole() -> None:
    got = travel(Box(np.array([{1}, None], object)), slab()).value
    assert got.tolist() == [{1}, None]


def test_what_cannot_be_imported_by_name_is_pickled_by_value_with_its_arrays_out_of_band() -> None:
    @dataclass(frozen=True)
    class Local:
        value: Any

    root = slab()
    got = travel(Box(Local(np.arange(3))), root).value
    assert got.value.tolist() == [0, 1, 2]
    assert inside(root, got.value)


def test_what_the_first_pickler_gave_out_of_band_before_it_failed_is_forgotten() -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = dumps([np.arange(3), lambda: 7], buffers)
    array, function = pickle.loads(data, buffers=buffers)
    assert len(buffers) == 1
    assert array.tolist() == [0, 1, 2] and function() == 7


def test_a_reducer_that_a_program_registers_with_copyreg_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(copyreg.dispatch_table, Box, lambda box: (list, ([box.value],)))
    assert pickle.loads(dumps(Box(3), [])) == [3]


def test_what_only_cloudpickle_can_pickle_is_left_to_it() -> None:
    text, function = pickle.loads(dumps([memoryview(b"ab"), lambda: 7], []))
    assert text == b"ab" and function() == 7


# ---- guests ------------------------------------------------------------------------------------------


class Text:
    """A guest: text that is stored as its letters."""

    def __init__(self, text: str) -> None:
        self.text = text


class Loan:
    def __init__(self, view: Any) -> None:
        self.view = view

    @property
    def text(self) -> str:
        return self.view.tobytes().decode()


def make_loan(shape: tuple[int, ...], dtype: Any, root: Any, at: int) -> Loan:
    return Loan(np.ndarray(shape, dtype, root, at))


def rebuild_loan(buffer: Any) -> Loan:
    return Loan(np.frombuffer(buffer, np.uint8))


def store_text(text: Text, writer: Writer) -> Any:
    data = text.text.encode()
    if not data:
        return None
    start = writer.reserve(len(data))
    assert start is not None
    writer.root[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return make_loan, (len(data),), np.dtype(np.uint8), start


def reduce_text(text: Text) -> tuple[Any, ...]:
    return rebuild_loan, (pickle.PickleBuffer(bytearray(text.text.encode())),)


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = guests.Handler(lambda text: text, lambda text: text, store_text)
    monkeypatch.setitem(guests.HANDLERS, Text, handler)  # type: ignore[misc]
    monkeypatch.setitem(guests.REDUCERS, Text, reduce_text)


@pytest.mark.usefixtures("guest")
def test_a_guest_is_opened_where_it_was_stored() -> None:
    root = slab()
    got = travel({"a": Text("seven"), "b": np.arange(2), "c": "plain"}, root)
    assert got["a"].text == "seven" and inside(root, got["a"].view)
    assert got["b"].tolist() == [0, 1] and got["c"] == "plain"


@pytest.mark.usefixtures("guest")
def test_a_guest_that_has_no_spot_is_pickled() -> None:
    assert travel([Text(""), np.arange(2)], slab())[0].text == ""


@pytest.mark.usefixtures("guest")
def test_a_guest_in_an_object_goes_out_of_band() -> None:
    root = slab()
    got = travel(Box(Text("seven")), root).value
    assert got.text == "seven" and inside(root, got.view)


def test_memory_outside_of_the_slab_is_not_found_in_it() -> None:
    root = slab()
    writer = Writer(root[64:128])
    base = root.__array_interface__["data"][0]
    assert [writer.find(base + at, 16) for at in (63, 64, 112, 113, 128)] == [None, 0, 48, None, None]


# ---- what is one and the same --------------------------------------------------------------------------


def test_an_array_that_is_in_a_batch_twice_is_one_array_there() -> None:
    array = np.arange(3)
    got = travel({"a": array, "b": [array, "x"]}, slab())
    assert got["a"].tolist() == [0, 1, 2]
    assert got["a"] is got["b"][0]


def test_a_list_that_is_in_a_batch_twice_is_one_list_there() -> None:
    inner = [np.arange(3), "x"]
    got = travel((inner, inner), slab())
    assert got[0] is got[1]


def test_an_array_of_the_slab_that_is_in_a_batch_twice_is_not_copied() -> None:
    root = slab()
    writer = Writer(root)
    array = writer.empty((100,), np.dtype(np.int64))
    _, _, rest = writer.place([array, array])
    buffers: list[pickle.PickleBuffer] = []
    dumps(rest, buffers)
    assert writer.hold(buffers) == ((0, 800),)
    assert writer.used == 800


def test_a_word_that_is_in_a_batch_twice_makes_no_difference() -> None:
    _, spots, rest = Writer(slab()).place([np.arange(3), "word", "word", None, None])
    assert spots[0] is not None
    assert rest == ["word", "word", None, None]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 20)), max_size=12))
def test_buffers_have_in_common_what_they_had_in_common(spans: list[tuple[int, int]]) -> None:
    memory = np.arange(120, dtype=np.uint8)
    root = slab()
    held = Writer(root).hold([pickle.PickleBuffer(memory[start : start + size]) for start, size in spans])
    views = [root[start : start + size] for start, size in held]
    assert [view.tolist() for view in views] == [list(range(start, start + size)) for start, size in spans]
    memory[::2] = 200
    for view, (start, _) in zip(views, spans, strict=True):
        view[start % 2 :: 2] = 200
    for view, (start, size) in zip(views, spans, strict=True):
        assert view.tolist() == memory[start : start + size].tolist()


def test_pieces_of_memory_that_only_touch_are_copied_one_by_one() -> None:
    memory = np.zeros(64, np.uint8)
    held = Writer(slab()).hold([pickle.PickleBuffer(memory[:32]), pickle.PickleBuffer(memory[32:])])
    assert held == ((0, 32), (64, 32))
