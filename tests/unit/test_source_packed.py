"""PackedList: a list in two arrays."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.source._packed import PackedList

law = settings(deadline=None)

TEXT = st.text(st.characters(exclude_categories=[]), max_size=8)  # lone surrogates included
ITEMS = st.one_of(
    st.lists(TEXT),
    st.lists(st.binary(max_size=8)),
    st.lists(st.one_of(TEXT, st.binary(max_size=8), st.integers(), st.tuples(st.none(), st.booleans()))),
)


@law
@given(items=ITEMS)
def test_it_equals_the_list_it_was_made_of(items: list[Any]) -> None:
    packed = PackedList(items)
    assert len(packed) == len(items)
    assert list(packed) == items
    assert [packed[at] for at in range(len(items))] == items
    assert [packed[at] for at in range(-len(items), 0)] == items
    assert list(map(type, packed)) == list(map(type, items))
    assert packed == items


@law
@given(items=ITEMS, cut=st.slices(12))
def test_a_slice_equals_the_slice_of_the_list(items: list[Any], cut: slice) -> None:
    packed = PackedList(items)[cut]
    assert isinstance(packed, PackedList)
    assert list(packed) == items[cut]
    assert pickle.loads(pickle.dumps(packed)) == items[cut]
    assert packed[1:] == items[cut][1:]


@pytest.mark.parametrize(
    ("items", "kind"),
    [
        (["a", "b"], "str"),
        ([b"a", b"b"], "bytes"),
        (["a", b"b"], "pickle"),
        ([b"a", "b"], "pickle"),
        (["a", 1], "pickle"),
        ([1, "a"], "pickle"),
        ([{"a": 1}], "pickle"),
        (np.array(["a", "b"]), "str"),
        (np.array([b"a", b"b"]), "bytes"),
        ([], "str"),
    ],
)
def test_text_and_bytes_are_stored_as_they_are_the_rest_is_pickled(items: Any, kind: str) -> None:
    packed = PackedList(items)
    assert packed.kind == kind
    assert list(packed) == list(items)


def test_file_names_that_are_not_utf8_survive() -> None:
    path = os.fsdecode(b"photo-\xff\xfe.jpg")
    assert os.fsencode(PackedList([path])[0]) == b"photo-\xff\xfe.jpg"


def test_iteration_crosses_blocks() -> None:
    items = [str(n) for n in range(5000)]
    assert list(PackedList(items)) == items
    assert list(PackedList(items)[1000:3100]) == items[1000:3100]


@pytest.mark.parametrize("index", [3, -4, 10**20])
def test_an_index_outside_is_an_error_that_names_it(index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index} is outside a PackedList of 3"):
        PackedList("abc")[index]


@pytest.mark.parametrize("index", ["0", 1.0, None])
def test_an_index_must_be_an_integer(index: Any) -> None:
    with pytest.raises(TypeError):
        PackedList("abc")[index]


def test_numpy_integers_are_indices() -> None:
    assert PackedList("abc")[np.int64(-1)] == "c"


def test_it_is_a_sequence() -> None:
    packed = PackedList("abca")
    assert isinstance(packed, Sequence)
    assert "b" in packed
    assert packed.index("c") == 2
    assert packed.count("a") == 2
    assert list(reversed(packed)) == ["a", "c", "b", "a"]


def test_it_equals_sequences_of_equal_items_only() -> None:
    packed = PackedList("abc")
    assert packed == ["a", "b", "c"] == packed
    assert packed == ("a", "b", "c")
    assert packed == PackedList("abc")
    assert packed != ["a", "b"]
    assert packed != ["a", "b", "d"]
    assert packed != "abc"
    with pytest.raises(TypeError):
        hash(packed)


def test_it_cannot_be_changed() -> None:
    packed = PackedList("abc")
    with pytest.raises(TypeError):
        packed[0] = "z"  # type: ignore[index]
    with pytest.raises(ValueError, match="read-only"):
        packed.data[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        packed.offsets[0] = 1


def test_an_item_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(TypeError, match="item 2 of a PackedList, a function, cannot be pickled"):
        PackedList([1, 2, lambda: 3])
    with pytest.raises(TypeError, match="item 1 of a PackedList, a generator"):
        PackedList(["a", iter(n for n in "b")])


def test_it_is_pickled_as_two_buffers() -> None:
    packed = PackedList(f"path/{n}" for n in range(10_000))
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 1000
    assert sum(len(buffer.raw()) for buffer in buffers) == packed.data.nbytes + packed.offsets.nbytes
    copy = pickle.loads(data, buffers=buffers)
    assert np.shares_memory(copy.data, packed.data)
    assert copy == packed


def test_a_slice_shares_memory_and_is_pickled_without_the_rest() -> None:
    packed = PackedList(f"path/{n:05}" for n in range(10_000))
    part = packed[5000:5010]
    assert np.shares_memory(part.data, packed.data)
    data = pickle.dumps(part)
    assert len(data) < 1000
    assert pickle.loads(data) == [f"path/{n:05}" for n in range(5000, 5010)]


def test_a_generator_is_packed_without_being_listed() -> None:
    count, width = 50_000, 40
    tracemalloc.start()
    try:
        packed = PackedList(f"{n:0{width}}" for n in range(count))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    stored = count * (width + 8)
    assert packed.data.nbytes + packed.offsets.nbytes == stored + 8
    # growing by an eighth, and for a moment beside its copy; a list of str takes 97 bytes an item
    assert peak < 1.6 * stored


def test_its_text_is_short() -> None:
    assert repr(PackedList("ab")) == "PackedList(2 str, 26.0 B)"
    assert repr(PackedList([1] * 1000)) == "PackedList(1000 pickled, 13.0 kB)"
