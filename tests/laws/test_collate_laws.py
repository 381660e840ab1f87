"""Laws of trees and of collate, over generated structures; and torch's collate beside ours."""

from __future__ import annotations

import math
import pickle
from collections import Counter, OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._fill.collate import collate
from penstock._memory.tree import flatten, unflatten
from penstock.collate import default_collate
from penstock.errors import CollateError

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True, slots=True)
class Frozen:
    left: Any
    right: Any


@dataclass
class Loose:
    left: Any
    right: Any


# ---- what samples are made of. A template is a structure without values; hypothesis draws the
# template, and the values come from a seed: that is 50 times faster than to draw every number.

NUMBERS: dict[type, str] = {bool: "?", int: "i8", float: "f8", complex: "c16"}
NUMERIC = ["?", "u1", "<i2", ">i4", "<i8", "<u8", "<f2", ">f4", "<f8", "<c8"]
NATIVE = ["?", "u1", "i2", "i4", "i8", "f2", "f4", "f8", "c8"]
DTYPES = [*NUMERIC, "M8[s]", "m8[D]", "<U3", "S2", "<i4,>f8"]
EDGES: dict[type, list[Any]] = {
    bool: [True, False],
    int: [0, 1, -1, 2**63 - 1, -(2**63)],
    float: [0.0, -0.0, 1.5, math.inf, math.nan],
    complex: [0j, complex(1, -0.0), complex(math.inf, math.nan)],
    str: ["", "a", "\u20ac"],
    bytes: [b"", b"a\0"],
}
KINDS = ["tuple", "list", "dict", "OrderedDict", "UserDict", "Pair", "Frozen", "Loose"]
KEYS = ["a", "", 0, 1]
LOOKS: list[Callable[[Any], Any]] = [
    lambda array: array,
    lambda array: array.copy("F"),
    lambda array: np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array,
    lambda array: array[..., ::-1].copy()[..., ::-1] if array.ndim else array,
    lambda array: read_only(array.copy()),
]
Template = tuple[str, Any, Any]


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def random_array(dtype: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    dtype = np.dtype(dtype)
    if dtype.kind in "Ub":
        array = rng.integers(0, 2, shape).astype(dtype)
    elif dtype.kind in "fc":  # random bytes would hold signalling NaNs, which warn when they are cast
        array = rng.choice([0.0, -0.0, 1.5, -2.25, math.inf, math.nan], shape).astype(dtype)
    else:
        array = np.frombuffer(rng.bytes(dtype.itemsize * math.prod(shape)), dtype).reshape(shape)
    return LOOKS[rng.integers(len(LOOKS))](array.copy())


def sample_of(template: Template, rng: np.random.Generator) -> Any:
    kind, what, more = template
    if kind == "array":
        return random_array(what, more, rng)
    if kind == "scalar":
        return random_array(what, (1,), rng)[0]
    if kind == "value":
        edges = EDGES[what]
        return edges[rng.integers(len(edges))]
    values = [sample_of(inner, rng) for inner in what]
    if kind in ("Pair", "Frozen", "Loose"):
        left, right = (*values, 1, 2)[:2]
        return {"Pair": Pair, "Frozen": Frozen, "Loose": Loose}[kind](left, right)
    if kind in ("tuple", "list"):
        return tuple(values) if kind == "tuple" else values
    items = dict(zip(KEYS, values, strict=False))
    if kind == "dict":
        return {key: items[key] for key in sorted(items, key=repr, reverse=bool(more and rng.integers(2)))}
    return OrderedDict(items) if kind == "OrderedDict" else UserDict(items)


def samples_of(template: Template, rows: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [sample_of(template, rng) for _ in range(rows)]


def templates(dtypes: list[str], types: list[type], kinds: list[str], shuffled: bool = True) -> Any:
    leaf = st.one_of(
        st.tuples(st.just("array"), st.sampled_from(dtypes), shapes),
        st.tuples(st.just("scalar"), st.sampled_from(NATIVE), st.none()),
        st.tuples(st.just("value"), st.sampled_from(types), st.none()),
    )
    return st.recursive(
        leaf,
        lambda inner: st.tuples(st.sampled_from(kinds), st.lists(inner, max_size=4), st.just(shuffled)),
        max_leaves=8,
    )


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
seeds = st.integers(0, 2**32 - 1)
batches = st.builds(samples_of, templates(DTYPES, list(EDGES), KINDS), st.integers(1, 4), seeds)
trees = batches.map(lambda samples: samples[0])


# ---- saying what is right, without the code under test


def parts(tree: Any) -> dict[Any, Any] | None:
    """The values of a container by key, field or position; None for a leaf."""
    if isinstance(tree, Mapping):
        return dict(tree)
    if is_dataclass(tree):
        return {field.name: getattr(tree, field.name) for field in fields(tree)}
    if isinstance(tree, (list, tuple)):
        return dict(enumerate(tree))
    return None


def same(one: Any, other: Any) -> bool:
    """Equal in structure, classes, dtypes and bytes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    inner, others = parts(one), parts(other)
    if inner is None or others is None:
        return repr(one) == repr(other)  # as == is not for a number that is not one
    return list(inner) == list(others) and all(same(inner[key], others[key]) for key in inner)


def check_rows(batch: Any, samples: list[Any]) -> None:
    """Each row of the batch is its sample."""
    first = samples[0]
    if type(first) in (str, bytes):
        assert batch == samples
        assert type(batch) is list
    elif isinstance(first, np.ndarray):
        assert type(batch) is np.ndarray
        assert batch.shape == (len(samples), *first.shape)
        assert batch.dtype == first.dtype
        assert batch.tobytes() == b"".join(sample.tobytes() for sample in samples)
    elif isinstance(first, np.generic) or type(first) in NUMBERS:
        assert type(batch) is np.ndarray
        dtype = np.dtype(NUMBERS[type(first)]) if type(first) in NUMBERS else first.dtype
        assert batch.dtype == dtype
        assert batch.shape == (len(samples),)
        assert batch.tobytes() == b"".join(np.array(sample, dtype).tobytes() for sample in samples)
    else:
        assert type(batch) is type(first)
        inner, columns = parts(batch), [parts(sample) for sample in samples]
        assert inner is not None
        assert list(inner) == list(columns[0] or {})
        for key, column in inner.items():
            check_rows(column, [fields[key] for fields in columns if fields is not None])


def arrays_in(tree: Any) -> list[Any]:
    inner = parts(tree)
    if inner is None:
        return [tree] if isinstance(tree, np.ndarray) else []
    return [array for value in inner.values() for array in arrays_in(value)]


class Slab:
    """One buffer, handed out piece by piece; every piece begins dirty."""

    def __init__(self) -> None:
        self.root = np.full(1 << 16, 0xAB, np.uint8)
        self.used = 0
        self.handed: list[Any] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        array: Any = np.ndarray(shape, dtype, self.root, self.used)
        self.used += -(-array.nbytes // 64) * 64
        self.handed.append(array)
        return array


# ---- trees


@given(trees)
def test_unflatten_is_the_inverse_of_flatten(tree: Any) -> None:
    leaves, spec = flatten(tree)
    assert same(unflatten(spec, leaves), tree)


@given(trees)
def test_leaves_are_the_objects_themselves(tree: Any) -> None:
    leaves, spec = flatten(tree)
    assert spec.count == len(leaves)
    assert list(map(id, flatten(unflatten(spec, leaves))[0])) == list(map(id, leaves))


@given(st.builds(samples_of, templates(DTYPES, list(EDGES), KINDS), st.just(2), seeds))
def test_trees_of_one_structure_have_equal_specs(samples: list[Any]) -> None:
    one, other = (flatten(sample)[1] for sample in samples)
    alike = repr(one) == repr(other)  # keys may come in another order
    assert (one == other) == alike
    assert not alike or hash(one) == hash(other)


@given(trees)
def test_a_spec_travels_without_change(tree: Any) -> None:
    leaves, spec = flatten(tree)
    arrived = pickle.loads(pickle.dumps(spec))
    assert arrived == spec
    assert same(unflatten(arrived, leaves), tree)


# ---- collate


@given(batches)
def test_each_row_of_a_batch_is_its_sample(samples: list[Any]) -> None:
    check_rows(default_collate(samples), samples)


@given(batches)
def test_every_array_of_a_batch_is_one_that_the_allocator_handed_out(samples: list[Any]) -> None:
    slab = Slab()
    batch = collate(samples, slab.empty)
    assert list(map(id, arrays_in(batch))) == list(map(id, slab.handed))


@given(batches)
def test_a_batch_in_a_slab_is_the_batch_in_ordinary_memory(samples: list[Any]) -> None:
    assert same(collate(samples, Slab().empty), collate(samples, np.empty))


@given(batches)
def test_a_batch_through_a_spec_is_the_same_batch(samples: list[Any]) -> None:
    batch = default_collate(samples)
    leaves, spec = flatten(batch)
    assert same(unflatten(pickle.loads(pickle.dumps(spec)), leaves), batch)


@given(st.lists(st.sampled_from(NUMERIC), min_size=1, max_size=4), shapes, seeds)
def test_different_numeric_dtypes_are_promoted_as_numpy_does(
    dtypes: list[str], shape: tuple[int, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    samples = [random_array(dtype, shape, rng) for dtype in dtypes]
    slab = Slab()
    batch = collate(samples, slab.empty)
    expected = np.dtype(dtypes[0]) if len(set(dtypes)) == 1 else np.result_type(*dtypes)
    assert batch.dtype == expected
    assert len(slab.handed) == 1
    assert batch.tobytes() == b"".join(sample.astype(expected).tobytes() for sample in samples)


@given(st.lists(shapes, min_size=1, max_size=6))
def test_arrays_are_stacked_exactly_when_their_shapes_agree(shapes: list[tuple[int, ...]]) -> None:
    samples = [np.zeros(shape) for shape in shapes]
    if len(set(shapes)) == 1:
        assert default_collate(samples).shape == (len(shapes), *shapes[0])
        return
    with pytest.raises(CollateError) as caught:
        default_collate(samples)
    (usual, _), *_ = Counter(shapes).most_common(1)
    assert caught.value.rows == tuple(row for row, shape in enumerate(shapes) if shape != usual)
    assert all(str(shape) in str(caught.value) for shape in sorted(set(shapes), key=shapes.index)[:4])


@given(st.lists(st.integers(0, 3), min_size=2, max_size=4), st.integers(1, 4))
def test_ragged_vectors_never_pass_for_an_even_batch(lengths: list[int], width: int) -> None:
    """What one vector has too much, another lacks: the total is that of an even batch."""
    lengths = [min(length, width) for length in lengths]
    ragged = [width, *[width + length for length in lengths], *[width - length for length in lengths]]
    if len(set(ragged)) > 1:
        with pytest.raises(CollateError):
            default_collate([np.zeros(length) for length in ragged])


@given(st.lists(st.frozensets(st.sampled_from("abc")), min_size=1, max_size=5))
def test_dicts_are_collated_exactly_when_their_keys_agree(keys: list[frozenset[str]]) -> None:
    samples = [dict.fromkeys(sorted(each), row) for row, each in enumerate(keys)]
    if len(set(keys)) == 1:
        assert default_collate(samples).keys() == keys[0]
        return
    with pytest.raises(CollateError) as caught:
        default_collate(samples)
    (usual, _), *_ = Counter(keys).most_common(1)
    assert caught.value.rows == tuple(row for row, each in enumerate(keys) if each != usual)


@given(st.sampled_from(NUMERIC), st.integers(1, 4), shapes, seeds)
def test_an_array_of_rows_is_the_batch_of_its_rows(dtype: str, size: int, shape: tuple[int, ...], seed: int) -> None:
    rows = random_array(dtype, (size, *shape), np.random.default_rng(seed))
    batch = default_collate(rows)
    one_by_one = default_collate(list(rows))
    assert batch.dtype.newbyteorder("=") == one_by_one.dtype.newbyteorder("=")
    assert batch.astype(one_by_one.dtype).tobytes() == one_by_one.tobytes()


@given(st.lists(st.integers(-(2**65), 2**65), min_size=1, max_size=4))
def test_integers_are_kept_exactly_or_refused(values: list[int]) -> None:
    least, most = min(values), max(values)
    if least >= -(2**63) and most < 2**64 and not (least < 0 and most >= 2**63):
        batch = default_collate(values)
        assert batch.dtype == ("i8" if most < 2**63 else "u8")
        assert batch.tolist() == values
    else:
        with pytest.raises(CollateError, match="neither int64 nor uint64"):
            default_collate(values)


# ---- torch beside it

plain_kinds = ["tuple", "list", "dict", "Pair"]
torch_templates = templates(NATIVE, [bool, int, float, str], plain_kinds, shuffled=False)


def check_like_torch(ours: Any, theirs: Any, torch: Any) -> None:
    if isinstance(theirs, torch.Tensor):
        assert type(ours) is np.ndarray
        assert same(ours, theirs.numpy())
        return
    inner, others = parts(ours), parts(theirs)
    if inner is None or others is None:
        assert ours == theirs
        return
    assert list(inner) == list(others)
    for key in inner:
        check_like_torch(inner[key], others[key], torch)


@settings(deadline=None)  # the first example imports torch
@given(st.builds(samples_of, torch_templates, st.integers(1, 3), seeds))
def test_what_torch_collates_has_the_same_values_and_dtypes_here(samples: list[Any]) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data import default_collate as torch_collate

    leaves, spec = flatten(samples)  # torch takes no reversed arrays, and warns of read-only ones
    plain = [leaf.copy() if type(leaf) is np.ndarray else leaf for leaf in leaves]
    check_like_torch(default_collate(samples), torch_collate(unflatten(spec, plain)), torch)


def test_tensors_are_stacked_as_torch_stacks_them() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.uint8, torch.int64, torch.float16, torch.float32, torch.bool):
        for shape in ((), (3,), (2, 0), (2, 3)):
            tensors = [torch.ones(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)]
            assert same(default_collate(tensors), torch.stack(tensors).numpy())


def test_a_tensor_that_needs_a_gradient_is_refused_in_torchs_words() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(CollateError, match=r"row 1: a torch\.Tensor cannot be made an array: .*grad") as caught:
        default_collate([torch.ones(2), torch.ones(2, requires_grad=True)])
    assert caught.value.rows == (1,)
