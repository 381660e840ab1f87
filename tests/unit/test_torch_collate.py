"""Our collate beside torch's default_collate: the same classes, dtypes, bits, strides and errors."""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict, UserDict, UserList, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from math import prod
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._memory.layout import Writer

torch = pytest.importorskip("torch")
ours = pytest.importorskip("penstock.torch._collate")

from torch.utils.data import default_collate  # noqa: E402

Pair = namedtuple("Pair", "left right")


class Marked(torch.Tensor):  # type: ignore[misc, name-defined]
    pass


class Loud(torch.Tensor):  # type: ignore[misc, name-defined]
    """A subclass that decides for itself what stacking is."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.stack:
            return kwargs and kwargs.get("out")
        return super().__torch_function__(function, types, args, kwargs)


class Level(IntEnum):
    LOW = 1


# ---- what is compared ---------------------------------------------------------------------------------


def facts(value: Any, *, strides: bool = True) -> Any:
    """All that two batches must have in common, as a value that `==` compares."""
    if isinstance(value, torch.Tensor) and value.is_meta:
        return type(value), value.dtype, value.shape, value.device
    if isinstance(value, torch.Tensor):
        plain = value.detach().resolve_conj().resolve_neg()
        data = plain.to_dense() if plain.layout is not torch.strided else plain
        size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
        raw = data.view(size[data.itemsize]).reshape(-1).numpy().tobytes()
        steps = value.stride() if strides and value.numel() else ()
        return type(value), value.dtype, value.shape, value.requires_grad, value.device, steps, raw
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return type(value), [(key, facts(value[key], strides=strides)) for key in value]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return type(value), [facts(each, strides=strides) for each in value]
    return type(value), value


def outcome(function: Callable[..., Any], *args: Any, strides: bool = True) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once of arrays that it may not write to, and of prototypes
        try:
            made = function(*args)
        except Exception as error:
            return type(error), str(error)
        return facts(made, strides=strides)


def check(samples: Any, *, strides: bool = True) -> None:
    writer = Writer(np.zeros(1 << 16, np.uint8))
    expected = outcome(default_collate, samples, strides=strides)
    assert outcome(ours.collate, samples, writer.empty, strides=strides) == expected
    with mock.patch.object(ours, "SMALL", 0):
        assert outcome(ours.collate, samples, writer.empty, strides=strides) == expected


@contextmanager
def in_a_worker() -> Iterator[None]:
    """torch's collate writes to shared memory there, which not all kinds of samples survive."""
    with mock.patch("torch.utils.data._utils.worker._worker_info", object()):
        yield


# ---- samples ------------------------------------------------------------------------------------------

DTYPES = [
    *(
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
    ),
    *(
        torch.float64,
        torch.bfloat16,
        torch.complex64,
        torch.complex128,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    ),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]
SHAPES = [(), (0,), (3,), (2, 3), (2, 0), (1, 2, 2), (2, 3, 2, 2)]
LOOKS: list[Callable[[Any], Any]] = [
    lambda t: t,
    lambda t: t,
    lambda t: t.transpose(0, -1).contiguous().transpose(0, -1) if t.ndim else t,
    lambda t: t.repeat_interleave(2, -1)[..., ::2] if t.ndim and t.itemsize > 1 else t,
    lambda t: t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 and t.itemsize > 1 else t,
]
NUMPY = ["?", "u1", "i2", "i4", "i8", "u2", "u8", "f2", "f4", "f8", "c8", ">i4", "U2", "O", "M8[s]", "g"]
ARRAY_LOOKS: list[Callable[[Any], Any]] = [
    lambda a: a,
    lambda a: a,
    lambda a: np.asfortranarray(a),
    lambda a: a[..., ::-1] if a.ndim else a,
    lambda a: np.repeat(a, 2, -1)[..., ::2] if a.ndim else a,
    lambda a: np.broadcast_to(a, a.shape),
]
SCALARS: list[Any] = [
    *(np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
    *(np.float16, np.float32, np.float64, np.complex64, np.longdouble, np.str_),
]
PLAIN: list[Any] = [
    0,
    -1,
    2**40,
    2**63,
    1.5,
    float("nan"),
    True,
    False,
    "a",
    "",
    b"a",
    None,
    1j,
    Level.LOW,
    {1},
]

kinds = st.one_of(
    st.tuples(st.just("tensor"), st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.integers(0, len(LOOKS) - 1)),
    st.tuples(
        st.just("array"),
        st.sampled_from(NUMPY),
        st.sampled_from(SHAPES),
        st.integers(0, len(ARRAY_LOOKS) - 1),
    ),
    st.tuples(st.just("scalar"), st.sampled_from(SCALARS)),
    st.tuples(st.just("plain"), st.sampled_from(range(len(PLAIN)))),
)
templates = st.recursive(
    kinds,
    lambda below: st.tuples(
        st.sampled_from(["dict", "tuple", "list", "Pair", "OrderedDict", "UserDict", "UserList"]),
        st.lists(below, min_size=2, max_size=2) | st.lists(below, max_size=3),
    ),
    max_leaves=5,
)


def make(template: Any, rng: np.random.Generator) -> Any:
    name, what, *rest = template
    if name == "tensor":
        shape, look = rest
        data = rng.integers(0, 2 if what is torch.bool else 256, (prod(shape) + 1) * what.itemsize, np.uint8)
        return LOOKS[look](torch.from_numpy(data).view(what)[: prod(shape)].reshape(shape))
    if name == "array":
        shape, look = rest
        return ARRAY_LOOKS[look](rng.integers(0, 9, shape).astype(what))
    if name == "scalar":
        return what(rng.integers(0, 2))
    if name == "plain":
        return PLAIN[what]
    parts = [make(each, rng) for each in what]
    if name == "Pair":
        return Pair(*parts) if len(parts) == 2 else tuple(parts)
    if name in ("dict", "OrderedDict", "UserDict"):
        kind = {"dict": dict, "OrderedDict": OrderedDict, "UserDict": UserDict}[name]
        return kind(zip("abc", parts, strict=False))
    return {"tuple": tuple, "list": list, "UserList": UserList}[name](parts)


@st.composite
def batches(draw: Any) -> list[Any]:
    """Mostly samples of one template, and sometimes an odd one among them."""
    template = draw(templates)
    rows = [template] * draw(st.integers(1, 4))
    if draw(st.integers(0, 3)) == 0:
        rows.insert(draw(st.integers(0, len(rows))), draw(templates))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return [make(row, rng) for row in rows]


# ---- laws ---------------------------------------------------------------------------------------------


@settings(max_examples=250, deadline=None)
@given(batches())
def test_collate_does_what_torch_does(samples: list[Any]) -> None:
    check(samples)


@settings(max_examples=100, deadline=None)
@given(batches())
def test_in_a_worker_collate_does_what_torch_does_in_a_worker(samples: list[Any]) -> None:
    # torch's workers lose channels_last, which its inline loader keeps; we keep it in both, unless told so.
    with in_a_worker():
        check(samples, strides=False)


# ---- the dtypes, one by one, so that none is left to chance --------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype(dtype: Any) -> None:
    check([make(("tensor", dtype, (2, 3), 0), np.random.default_rng(row)) for row in range(3)])


@pytest.mark.parametrize("dtype", NUMPY)
def test_arrays_of_every_dtype(dtype: str) -> None:
    check([np.arange(3).astype(dtype) for _ in range(3)])


@pytest.mark.parametrize("kind", SCALARS)
def test_scalars_of_every_class(kind: Any) -> None:
    check([kind(1), kind(0)])


@pytest.mark.parametrize(
    "samples",
    [
        [],
        (),
        [[], []],
        [{}, {}],
        [{"a": 1}, {}],
        [{}, {"a": 1}],
        [{"a": 1}, {"b": 1}],
        [{"a": None}, {"b": 1}],
        [{"a": [1]}, {"a": [1, 2]}],
        [(1, 2), (1,)],
        [(1, 2), 3],
        [Pair(1, 2), (1, 2, 3)],
        [1, 2**63],
        [1, 1.5],
        [1.5, 1],
        [True, 1],
        [1, True],
        [1, "a"],
        ["a", 1],
        [torch.zeros(3), torch.zeros(4)],
        [torch.zeros(2, 3), torch.zeros(3, 2)],
        [torch.zeros(3), torch.zeros(3, dtype=torch.float64)],
        [torch.zeros(3, dtype=torch.float64), torch.zeros(3)],
        [torch.zeros(3), torch.zeros(3, dtype=torch.int64)],
        [torch.zeros(3, dtype=torch.int64), torch.zeros(3)],
        [torch.zeros(3), 1.5],
        [torch.zeros(3), np.zeros(3)],
        [torch.zeros(3), torch.zeros(3, device="meta")],
        [torch.zeros(3, device="meta"), torch.zeros(3)],
        [torch.zeros(3, requires_grad=True), torch.zeros(3)],
        [torch.zeros(3), torch.zeros(3, requires_grad=True)],
        [torch.nn.Parameter(torch.zeros(3))] * 2,
        [torch.zeros(3).as_subclass(Marked)] * 2,
        [torch.zeros(3), torch.zeros(3).as_subclass(Marked)],
        [torch.eye(3).to_sparse()] * 2,
        [torch.eye(3), torch.eye(3).to_sparse()],
        [np.zeros(3, "f4"), np.zeros(3, "f8")],
        [np.zeros(3, "f8"), np.zeros(3, "f4")],
        [np.zeros(4), np.zeros(3), np.zeros(5)],
        [np.zeros((2, 3)), np.zeros(6)],
        [np.zeros(()), np.zeros(())],
        [np.zeros(3), 1.5],
        [np.zeros(3), torch.zeros(3)],
        [np.zeros(6).view("f4")[1:-1].view("f8")[::-1]] * 2,
        [np.zeros(2, "i2,i8")["f1"]] * 2,
        [np.ma.masked_array([1, 2], [True, False])] * 2,
        [np.int32(1), np.int64(2)],
        [np.float64(1), 2.5],
        [np.float32(1), 2],
        [Level.LOW, Level.LOW],
        [range(3), range(3)],
        [Counter(a=1), Counter(a=2)],
        "abc",
        np.arange(6).reshape(2, 3),
        np.arange(6.0).reshape(2, 3)[:, ::-1],
        np.arange(3),
        np.array(["a", "b"]),
        torch.zeros(2, 3),
        {0: torch.zeros(3)},
        {0: 1, 1: 1},
        [torch.zeros(3, device="meta")] * 2,
        [torch.zeros(3), torch.zeros(3).as_subclass(Loud)],
        [torch.nn.Parameter(torch.zeros(3), requires_grad=False)] * 2,
        UserList([1, 2]),
        UserList([torch.zeros(3), torch.zeros(3)]),
        UserList([{"a": np.zeros(3)}, {"a": np.ones(3)}]),
        (torch.zeros(3), torch.ones(3)),
        None,
    ],
    ids=repr,
)
def test_unusual_samples(samples: Any) -> None:
    check(samples)
    with in_a_worker():
        check(samples, strides=False)


@pytest.mark.parametrize(
    "sample",
    [torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag],
    ids=["conjugated", "negated"],
)
def test_tensors_that_torchs_workers_cannot_collate_are_collated_as_torch_does_it_inline(sample: Any) -> None:
    check([sample] * 2)
    expected = default_collate([sample] * 2)
    with in_a_worker():
        assert outcome(default_collate, [sample] * 2)[0] is RuntimeError
        assert torch.equal(ours.collate([sample] * 2, np.empty), expected)


def test_nested_tensors_are_refused_in_torchs_words() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "the PyTorch API of nested tensors is in prototype stage"
        nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(RuntimeError, match="nested tensors"):
        ours.collate([nested, nested], np.empty)


def test_quantised_tensors_stay_quantised() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "are deprecated and will be removed"
        one = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 1, torch.qint8)
        made = ours.collate([one, one], np.empty)
        assert made.dtype is torch.qint8
        assert torch.equal(made.int_repr(), default_collate([one, one]).int_repr())


def test_a_structure_that_contains_itself_is_the_same_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for function in (default_collate, lambda samples: ours.collate(samples, np.empty)):
        with pytest.raises(RecursionError):
            function([endless])


def test_the_default_device_is_where_numbers_go() -> None:
    with torch.device("meta"):
        assert [each.device.type for each in ours.collate([(1, np.ones(2)), (2, np.ones(2))], np.empty)] == [
            "meta"
        ] * 2


# ---- the table of rules --------------------------------------------------------------------------------


class Point:
    def __init__(self, x: float) -> None:
        self.x = x


def test_rules_that_a_user_adds_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def points(batch: Any, *, collate_fn_map: Any) -> Any:
        return "points", torch.tensor([each.x for each in batch])

    monkeypatch.setitem(ours.theirs.default_collate_fn_map, Point, points)
    check([{"p": Point(1.0), "n": 1}, {"p": Point(2.0), "n": 2}])
    check([UserDict(p=Point(1.0)), UserDict(p=Point(2.0))])


@pytest.mark.parametrize("key", [torch.Tensor, np.ndarray, int, float, str, dict, (list, tuple), Mapping])
def test_rules_that_a_user_replaces_are_used(key: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        ours.theirs.default_collate_fn_map,
        key,
        lambda batch, *, collate_fn_map: ["mine", type(batch), len(batch)],
    )
    check([{"t": torch.ones(2), "a": np.ones(2), "i": 1, "f": 1.5, "s": "x", "l": [1, (2,)]}] * 2)
    check([UserDict(t=torch.ones(2), a=np.ones(2), i=1)] * 2)


def test_a_rule_gets_the_table_that_torch_would_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ours.theirs.default_collate_fn_map
    monkeypatch.setitem(table, Point, lambda batch, *, collate_fn_map: collate_fn_map is table)
    assert ours.collate([[Point(1.0)]], np.empty) == [True]
    assert ours.collate([UserList([Point(1.0)])], np.empty) == UserList([True])


def test_a_rule_of_torchs_for_another_class_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ours.theirs.default_collate_fn_map, float, ours.theirs.collate_int_fn)
    check([1.5, 2.5])


def test_a_rule_need_not_be_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rule:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, batch: Any, *, collate_fn_map: Any) -> Any:
            return len(batch)

    monkeypatch.setitem(ours.theirs.default_collate_fn_map, Point, Rule())
    assert ours.collate([Point(1.0)], np.empty) == 1


@pytest.mark.parametrize("key", [torch.Tensor, int])
def test_a_table_put_in_place_of_torchs_is_used(key: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours.theirs, "default_collate_fn_map", {key: lambda batch, *, collate_fn_map: len(batch)})
    check([{"t": torch.ones(2), "i": 1}] * 2)


def test_torch_has_what_is_used_of_its_private_module() -> None:
    table = ours.theirs.default_collate_fn_map
    assert table[torch.Tensor] is ours.theirs.collate_tensor_fn
    assert table[np.ndarray] is ours.theirs.collate_numpy_array_fn
    assert table[np.bool_, np.number, np.object_] is ours.theirs.collate_numpy_scalar_fn
    assert table[float] is ours.theirs.collate_float_fn
    assert table[int] is ours.theirs.collate_int_fn
    assert ours.theirs.collate([1, 2], collate_fn_map=table).tolist() == [1, 2]


# ---- where the memory is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "samples",
    [
        [torch.zeros(3, 64, 64)] * 8,
        [torch.zeros(64, 64, dtype=torch.bfloat16)] * 8,
        [np.zeros(3)] * 8,
        [1, 2],
        [1.5, 2.5],
        [True, False],
        [np.float32(1), np.float32(2)],
        np.zeros((3, 4)),
    ],
    ids=["tensors", "bfloat16", "arrays", "ints", "floats", "bools", "scalars", "an array"],
)
def test_the_batch_is_written_into_the_memory_given(samples: Any) -> None:
    writer = Writer(np.zeros(1 << 20, np.uint8))
    made = ours.collate(samples, writer.empty)
    assert writer.find(made.data_ptr(), made.nbytes) is not None
