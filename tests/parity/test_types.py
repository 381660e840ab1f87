"""Every kind of sample, three ways: through torch's collate, as it is, and through a collate_fn of one's own."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import os
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence, pad_sequence

from parity import sources
from parity.compare import difference
from parity.pair import Ours, Tape, Theirs, both, epoch, run, take

DTYPES = [
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 bfloat16",
    "complex32 complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu",
]
# Tried before the others: where torch has not the dtype, there is nothing to compare.
KNOWN = [name for name in " ".join(DTYPES).split() if hasattr(torch, name)]


def of_dtype(name: str) -> Callable[[int], torch.Tensor]:
    return lambda key: torch.tensor([[0, 1, 2], [key, 1, key]]).to(getattr(torch, name))


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Record:
    x: Any
    name: str


class Thing:
    """Neither container nor tensor; has something of both."""

    def __init__(self, key: int) -> None:
        self.tensor = torch.full((2,), key)
        self.array = np.full(3, key)
        self.inner = {"more": [torch.tensor(key), "text"]}


class Words(collections.UserDict[str, Any]):
    pass


class Row(list[Any]):
    """A list with something of its own."""

    def __init__(self, items: Any = (), name: str = "row") -> None:
        super().__init__(items)
        self.name = name


class Colour(enum.Enum):
    red = 1
    blue = 2


class TensorChild(torch.Tensor):
    pass


def ones(*shape: int, key: int = 1) -> torch.Tensor:
    return torch.full(shape, float(key))


TENSORS: dict[str, Callable[[int], Any]] = {
    "0-d": lambda key: torch.tensor(key * 1.5),
    "empty": lambda key: torch.empty(0, 3, dtype=torch.int16),
    "nothing": lambda key: torch.empty(0),
    "transposed": lambda key: (torch.arange(12).reshape(3, 4) + key).t()[::2],
    "expanded": lambda key: torch.tensor([float(key)]).expand(4),
    "a view in the middle": lambda key: (torch.arange(20) + key)[7:12],
    "channels last": lambda key: ones(1, 2, 3, 4, key=key).to(memory_format=torch.channels_last)[0],
    "a clip, channels last": lambda key: ones(2, 3, 4, 5, key=key).to(memory_format=torch.channels_last),
    "a large one": lambda key: ones(2, 3, 16, 16, key=key).to(memory_format=torch.channels_last),
    "nan and minus zero": lambda key: torch.tensor([float("nan"), -0.0, float("inf"), key]),
    "with a gradient": lambda key: torch.ones(2, requires_grad=True),
    "a parameter": lambda key: torch.nn.Parameter(ones(2, key=key)),
    "a child of Tensor": lambda key: ones(3, key=key).as_subclass(TensorChild),
    "sparse": lambda key: (torch.eye(3) * (key + 1)).to_sparse(),
    "sparse rows": lambda key: (torch.eye(3) * (key + 1)).to_sparse_csr(),
    "large": lambda key: torch.arange(300_000) + key,
    "ragged": lambda key: torch.ones(key + 1),
}
ARRAYS: dict[str, Callable[[int], Any]] = {
    "float32": lambda key: np.full((2, 3), key, np.float32),
    "uint16": lambda key: np.full(3, key, np.uint16),
    "bool": lambda key: np.array([True, key > 0]),
    "complex": lambda key: np.array([1j * key]),
    "0-d": lambda key: np.array(key),
    "empty": lambda key: np.empty((0, 4), np.int8),
    "fortran": lambda key: np.asfortranarray(np.arange(6).reshape(2, 3) + key),
    "reversed": lambda key: np.arange(4)[::-1],
    "broadcast": lambda key: np.broadcast_to(np.array(key), (2, 2)),
    "text": lambda key: np.array(["a", f"b{key}"]),
    "bytes": lambda key: np.array([b"a", b"bc"]),
    "objects": lambda key: np.array([None, key, "three"], dtype=object),
    "fields": lambda key: np.array([(key, 0.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "dates": lambda key: np.array(["2024-02-29"], dtype="datetime64[D]"),
    "masked": lambda key: np.ma.masked_array([1, key], [0, 1]),
    "long double": lambda key: np.zeros(2, np.longdouble),
    "a scalar": lambda key: np.float32(key),
    "a bool scalar": lambda key: np.bool_(key),
    "a date": lambda key: np.datetime64("2024-02-29"),
}
OBJECTS: dict[str, Callable[[int], Any]] = {
    "int": lambda key: -key,
    "bool": lambda key: key > 0,
    "float": lambda key: key / 3,
    "nan": lambda key: float("nan"),
    "int then float": lambda key: [1, 2.5][key % 2],
    "huge int": lambda key: 10**30 + key,
    "complex": lambda key: complex(key, 1),
    "str": lambda key: f"text {key} ü",
    "bytes": lambda key: b"\0bytes",
    "bytearray": lambda key: bytearray(b"ab"),
    "None": lambda key: None,
    "Ellipsis": lambda key: ...,
    "decimal": lambda key: decimal.Decimal(key),
    "fraction": lambda key: fractions.Fraction(key, 3),
    "date": lambda key: datetime.date(2024, 2, key % 28 + 1),
    "enum": lambda key: Colour.red,
    "set": lambda key: {1, key},
    "range": lambda key: range(3),
    "namespace": lambda key: types.SimpleNamespace(a=key),
    "thing": lambda key: Thing(key),
    "class": lambda key: Thing,
    "torch.dtype": lambda key: torch.float16,
    "torch.device": lambda key: torch.device("cpu"),
    "torch.Size": lambda key: torch.Size([1, 2]),
    "an exception": lambda key: ValueError("only a value here"),
}
CONTAINERS: dict[str, Callable[[int], Any]] = {
    "tuple": lambda key: (key, ones(2, key=key)),
    "list": lambda key: [key, ones(2, key=key)],
    "namedtuple": lambda key: Pair(key, ones(2, key=key)),
    "dict": lambda key: {"x": ones(2, key=key), 3: "int keys", ("a", 1): key},
    "nested": lambda key: {"a": [Pair((key, {"b": ones(1, key=key)}), "s")], "c": ([], (), {})},
    "OrderedDict": lambda key: collections.OrderedDict(b=key, a=ones(2)),
    "defaultdict": lambda key: collections.defaultdict(list, a=ones(2, key=key)),
    "UserDict": lambda key: Words(a=key, b=ones(2)),
    "deque": lambda key: collections.deque([key, ones(1)]),
    "a child of list": lambda key: Row([key, ones(2)]),
    "empty": lambda key: {"d": {}, "l": [], "t": ()},
    "dataclass": lambda key: Record(ones(2, key=key), f"r{key}"),
    "unequal lists": lambda key: list(range(key + 1)),
    "a missing key": lambda key: {"a": 1} if key % 2 else {"a": 1, "b": 2},
    "another key": lambda key: {"a": key, "b": 2} if key % 2 else {"a": key},
    "keys in another order": lambda key: {"a": 1, "b": key} if key % 2 else {"b": key, "a": 1},
    "packed": lambda key: pack_sequence([ones(3, key=key), ones(2, key=key)]),
}
SAMPLES = {
    **{f"tensor {name}": of_dtype(name) for name in KNOWN},
    **{f"tensor {name}": make for name, make in TENSORS.items()},
    **{f"array {name}": make for name, make in ARRAYS.items()},
    **{f"object {name}": make for name, make in OBJECTS.items()},
    **{f"container {name}": make for name, make in CONTAINERS.items()},
}


WAYS: dict[str, dict[str, Any]] = {
    "collated by torch": {"batch_sampler": [[(name, n), (name, n + 1)] for name in SAMPLES for n in (0, 2)]},
    "as it is": {"sampler": [(name, n) for name in SAMPLES for n in (0, 1)], "batch_size": None},
    "collated by one's own": {
        "batch_sampler": [[(name, n), (name, n + 1)] for name in SAMPLES for n in (0, 2)],
        "collate_fn": sources.identity,
    },
}


def stream(loader_class: Any, way: str, workers: int) -> dict[str, Tape]:
    """For each kind of sample what came of it, twice."""
    data = sources.Made(0, lambda key: SAMPLES[key[0]](key[1]))

    def program(loader_class: Any, tape: Tape) -> None:
        take(iter(loader_class(data, num_workers=workers, **WAYS[way])), tape)

    outcomes = [event for event in run(program, loader_class) if event[0] in ("batch", "raised")]
    assert len(outcomes) == 2 * len(SAMPLES)
    return {name: outcomes[2 * i : 2 * i + 2] for i, name in enumerate(SAMPLES)}


@pytest.fixture(scope="module")
def streams() -> list[tuple[str, dict[str, Tape], dict[str, Tape]]]:
    """Made once for all kinds: starting workers for each would take a minute."""
    return [
        (f"{way}, {workers} workers", stream(Ours, way, workers), stream(Theirs, way, workers))
        for way in WAYS
        for workers in (0, 1)
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_of_this_kind_comes_as_from_torch(streams: Any, name: str) -> None:
    for how, found, expected in streams:
        assert (problem := difference(found[name], expected[name], f"{name}, {how}")) is None, problem


def build(template: Any, key: int) -> Any:
    """A sample of this structure, with samples of the kinds above as its leaves."""
    if isinstance(template, str):
        return SAMPLES[template](key)
    if isinstance(template, dict):
        return {name: build(part, key) for name, part in template.items()}
    parts = [build(part, key) for part in template]
    return Pair(*parts) if isinstance(template, Pair) else type(template)(parts)


def nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=3)
    return lists | lists.map(tuple) | st.builds(Pair, inner, inner) | st.dictionaries(st.sampled_from("abc"), inner)


TEMPLATES = st.recursive(st.sampled_from(sorted(SAMPLES)), nest, max_leaves=6)


@given(st.lists(TEMPLATES, min_size=1, max_size=6), st.sampled_from([None, sources.identity]), st.booleans())
@settings(max_examples=30 if "PENSTOCK_WIDE" in os.environ else 10, deadline=None)
def test_samples_of_any_structure_come_as_from_torch(templates: Any, collate: Any, batched: bool) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        data = sources.Made(0, lambda key: build(templates[key[0]], key[1]))
        keys = [(i, n) for i in range(len(templates)) for n in (0, 1, 2)]
        # Batches of one structure each, and one where two meet.
        batches = [keys[i : i + 2] for i in range(0, len(keys), 3)] + [keys[2:4]]
        order: Any = {"batch_sampler": batches} if batched else {"sampler": keys, "batch_size": None}
        epoch(loader_class(data, num_workers=1, collate_fn=collate, **order), tape)

    both(program)


COLLATES: dict[str, Callable[[Any], Any]] = {
    "packed": lambda samples: pack_sequence([s["noise"] for s in samples], enforce_sorted=False),
    "padded": lambda samples: pad_sequence([torch.ones(s["key"] + 1) for s in samples], batch_first=True),
    "arrays": lambda samples: np.stack([s["noise"].numpy() for s in samples]),
    "tensors and the rest": lambda samples: (
        {"x": samples[0]["noise"], "y": b"z"},
        [np.arange(3)],
        None,
        "text",
    ),
    "a number": len,
    "text": str,
    "nothing": lambda samples: None,
    "a tuple of lists": lambda samples: tuple([s["key"]] for s in samples),
    "a generator's list": lambda samples: [s["noise"] for s in samples][::-1],
    "sparse": lambda samples: torch.eye(3).to_sparse(),
    "things": lambda samples: [Thing(s["key"]) for s in samples],
    "sixty tensors": lambda samples: {i: torch.full((i,), i) for i in range(60)},
    "much text": lambda samples: "x" * 3_000_000,
}


@pytest.mark.parametrize("name", COLLATES)
def test_what_a_collate_fn_returns_comes_as_from_torch(name: str) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(sources.Noisy(5), 2, num_workers=2, collate_fn=COLLATES[name]), tape)

    both(program)


def test_batches_of_changing_shape_and_kind_come_as_from_torch() -> None:
    """A loader may not count on a batch being like the one before."""

    def make(key: int) -> Any:
        kinds = [torch.ones(key), {"a": key}, np.ones((key, 2)), "text", torch.ones(2, 2).to_sparse(), key]
        return kinds[key % 6]

    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(sources.Made(24, make), None, num_workers=2), tape)

    both(program)


class Pinned:
    """A custom type with its own pin_memory(), as torch's documentation has it."""

    def __init__(self, samples: list[Any]) -> None:
        self.x = torch.stack([s["noise"] for s in samples])
        self.pinned = False

    def pin_memory(self) -> Pinned:
        self.pinned = True
        return self


@pytest.mark.skipif(torch.accelerator.is_available(), reason="says what happens where nothing can be pinned")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [None, Pinned])
def test_without_an_accelerator_pin_memory_warns_and_pins_nothing(collate: Any, workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(sources.Noisy(5), 2, num_workers=workers, collate_fn=collate, pin_memory=True)
        epoch(loader, tape)
        epoch(loader, tape)

    assert sum(event[0] == "warned" for event in both(program)) == 2
