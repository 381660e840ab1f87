"""Classes of batches as users and libraries define them, and a description of a value that shows any difference.

Importable by workers of every start method. A recipe is plain data; `build` makes its value, in any process.
"""

from __future__ import annotations

import collections
import copyreg
import datetime
import enum
import pathlib
import types
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

# ---- mappings --------------------------------------------------------------------------------------


class Fields(dict[Any, Any]):
    """A dict with attributes."""


class Strict(dict[Any, Any]):
    """A dict whose constructor takes other arguments."""

    def __init__(self, items: Any, *, source: Any) -> None:
        super().__init__(items)
        self.source = source


class Logged(dict[Any, Any]):
    """A dict that remembers what was set: pickle sets each item."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.__dict__.setdefault("log", []).append(key)


class Dotted(dict[Any, Any]):
    """A dict whose items are attributes, as many libraries have it."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Ordered(collections.OrderedDict[Any, Any]):
    pass


class Default(collections.defaultdict[Any, Any]):
    pass


class User(collections.UserDict[Any, Any]):
    pass


class Encoding(collections.UserDict[Any, Any]):
    """Like transformers.BatchEncoding: its pickle has less than its attributes, and it finds items as attributes."""

    def __init__(self, data: Any = None, encodings: Any = None, n: Any = None) -> None:
        super().__init__(data)
        self.encodings, self.n = encodings, n

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getstate__(self) -> Any:
        return {"data": self.data, "encodings": self.encodings}

    def __setstate__(self, state: Any) -> None:
        self.data, self.encodings, self.arrived = state["data"], state["encodings"], True


# ---- sequences -------------------------------------------------------------------------------------


class Row(list[Any]):
    pass


class Named(list[Any]):
    def __init__(self, items: Any, name: str) -> None:
        super().__init__(items)
        self.name = name


class Items(collections.UserList[Any]):
    pass


class Path(tuple[Any, ...]):
    pass


class Window(collections.deque[Any]):
    pass


class Pair(NamedTuple):
    left: Any
    right: Any = None


Point = collections.namedtuple("Point", "x y")


class Marked(Point):
    """A namedtuple with room for attributes."""


class Sorted(Point):
    """A namedtuple whose constructor changes what it is given: pickle calls it."""

    def __new__(cls, x: Any, y: Any) -> Any:
        return super().__new__(cls, x, [y])


# ---- objects ---------------------------------------------------------------------------------------


@dataclass
class Plain:
    a: Any
    b: Any = field(default=None)


@dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    b: Any


@dataclass
class Forgetful:
    """A dataclass that does not pickle all of itself."""

    a: Any
    cache: Any = None

    def __getstate__(self) -> Any:
        return {"a": self.a, "cache": None}


@dataclass
class Reduced:
    a: Any
    made: str = "by the constructor"

    def __reduce__(self) -> Any:
        return _reduced, (self.a,)


def _reduced(a: Any) -> Reduced:
    return Reduced(a, "by pickle")


@dataclass
class Covered:
    """Its attribute is hidden by a property without a setter."""

    a: Any

    def __post_init__(self) -> None:
        vars(self)["b"] = self.a

    @property
    def b(self) -> Any:
        return "property"


class Slotted:
    __slots__ = ("a", "b", "unset")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


class Both(Slotted):
    """Slots, and attributes beside."""


class ByProtocol:
    def __init__(self, a: Any) -> None:
        self.a = a

    def __reduce_ex__(self, protocol: Any) -> Any:
        return ByProtocol, (self.a,), {"from": "reduce_ex"}


class Registered:
    def __init__(self, a: Any) -> None:
        self.a = a


@dataclass
class RegisteredData:
    a: Any
    how: str = ""


copyreg.pickle(Registered, lambda one: (Registered, ((one.a, "by copyreg"),)))
copyreg.pickle(RegisteredData, lambda one: (RegisteredData, (one.a, "by copyreg")))


class Colour(enum.Enum):
    red = 1


class Child(torch.Tensor):
    """A subclass of Tensor."""


class Units(np.ndarray[Any, Any]):
    """An array with an attribute, which its pickle does not keep, as numpy has it."""


# ---- recipes ---------------------------------------------------------------------------------------


def _with(made: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def _items(parts: list[Any]) -> dict[str, Any]:
    return {f"k{at}": part for at, part in enumerate(parts)}


def _around(made: Any, *parts: Any) -> Any:
    """A list that contains itself."""
    made += [*parts, made]
    return made


LEAVES: dict[str, Any] = {
    "int": lambda n: n,
    "float": lambda n: n / 3,
    "text": lambda n: f"text {n}",
    "None": lambda n: None,
    "bytes": lambda n: bytes([n]),
    "scalar": lambda n: np.float32(n),
    "array": lambda n: np.full((2, 3), n, np.int16),
    "large array": lambda n: np.full(5000, n, np.float32),
    "objects": lambda n: np.array([n, None, "x"], dtype=object),
    "masked": lambda n: np.ma.masked_array([1, n], [0, 1]),
    "units": lambda n: np.arange(n).view(Units),
    "tensor": lambda n: torch.full((3,), n),
    "large tensor": lambda n: torch.full((5000,), float(n)),
    "half": lambda n: torch.full((3,), n, dtype=torch.bfloat16),
    "gradient": lambda n: torch.full((3,), float(n), requires_grad=True),
    "parameter": lambda n: torch.nn.Parameter(torch.full((600,), float(n))),
    "child": lambda n: torch.full((600,), float(n)).as_subclass(Child),
    "child with attributes": lambda n: _with(torch.full((3,), n).as_subclass(Child), canvas=(n, [n])),
    "tensor with attributes": lambda n: _with(torch.full((600,), n), note={"n": n}),
    "empty child": lambda n: torch.empty(0, n).as_subclass(Child),
    "sparse": lambda n: (torch.eye(3) * (n + 1)).to_sparse(),
    "size": lambda n: torch.Size([n, 2]),
    "set": lambda n: {n, "x"},
    "frozenset": lambda n: frozenset({n}),
    "date": lambda n: datetime.date(2024, 2, n % 28 + 1),
    "path": lambda n: pathlib.PurePosixPath(f"/a/{n}"),
    "enum": lambda n: Colour.red,
    "class": lambda n: Plain,
    "range": lambda n: range(n),
    "counter": lambda n: collections.Counter({"a": n}),
}

NESTS: dict[str, Any] = {
    "dict": _items,
    "list": list,
    "tuple": tuple,
    "fields": lambda parts: _with(Fields(_items(parts)), note=parts),
    "plain fields": lambda parts: Fields(_items(parts)),
    "strict": lambda parts: Strict(_items(parts), source=parts[:1]),
    "logged": lambda parts: Logged(_items(parts)),
    "dotted": lambda parts: Dotted(_items(parts)),
    "ordered": lambda parts: collections.OrderedDict(_items(parts)),
    "ordered with attributes": lambda parts: _with(Ordered(_items(parts)), note=len(parts)),
    "default": lambda parts: collections.defaultdict(list, _items(parts)),
    "default, derived": lambda parts: _with(Default(int, _items(parts)), note=parts[:1]),
    "user": lambda parts: User(_items(parts)),
    "user with attributes": lambda parts: _with(User(_items(parts)), note=parts[-1:]),
    "encoding": lambda parts: Encoding(_items(parts), encodings=parts[:1], n=3),
    "plain encoding": lambda parts: Encoding(_items(parts)),
    "chain": lambda parts: collections.ChainMap(_items(parts), {"k": 1}),
    "row": Row,
    "row with attributes": lambda parts: _with(Row(parts), note=parts[:1]),
    "named": lambda parts: Named(parts, "name"),
    "items": Items,
    "deque": lambda parts: collections.deque(parts, maxlen=7),
    "window": lambda parts: _with(Window(parts), note=1),
    "path of parts": lambda parts: _with(Path(parts), note=2),
    "pair": lambda parts: Pair(parts, parts[0] if parts else None),
    "point": lambda parts: Point(1, parts),
    "marked": lambda parts: _with(Marked(1, parts), note=parts[:1]),
    "marked without": lambda parts: Marked(1, parts),
    "sorted": lambda parts: Sorted(parts, 2),
    "plain": lambda parts: Plain(parts, len(parts)),
    "plain with more": lambda parts: _with(Plain(parts), beside=parts[:1]),
    "frozen": lambda parts: Frozen(parts, tuple(parts)),
    "forgetful": lambda parts: Forgetful(parts, "a cache"),
    "reduced": Reduced,
    "covered": Covered,
    "slotted": lambda parts: Slotted(parts, 1),
    "both": lambda parts: _with(Both(parts, 1), note=parts[:1]),
    "by protocol": ByProtocol,
    "registered": Registered,
    "registered data": RegisteredData,
    "namespace": lambda parts: types.SimpleNamespace(a=parts),
    "the same twice": lambda parts: [parts, parts],
    "the same dict twice": lambda parts: (made := _items(parts), {"again": made}),
    "each twice": lambda parts: [*parts, *parts],
    "in a thing and beside": lambda parts: {"thing": ByProtocol(parts), "beside": parts, "one": parts[:1]},
    "around": lambda parts: _around([], *parts),
    "around a row": lambda parts: _around(Row(), *parts),
}


def build(recipe: Any) -> Any:
    """The value of a recipe: (name of a leaf, number), or (name of a nest, list of recipes)."""
    name, below = recipe
    return LEAVES[name](below) if isinstance(below, int) else NESTS[name](list(map(build, below)))


# ---- a description ---------------------------------------------------------------------------------

_ATOMS = (int, float, complex, str, bytes, type(None), type, np.generic, types.FunctionType, enum.Enum)


def described(value: Any) -> Any:
    """Nested tuples that are equal for two values if their types, attributes and contents are equal, and if the same
    parts of them are one object. Two numbers, texts or tuples of such may be one object or two."""
    seen: dict[int, int] = {}
    kept: list[Any] = []  # so that no id is used twice

    def parts(values: Any) -> Any:
        return tuple(map(describe, values))

    def describe(one: Any) -> Any:
        kind = type(one)
        if isinstance(one, _ATOMS):
            return kind, repr(one)
        if kind is tuple and all(isinstance(each, _ATOMS) for each in one):
            return kind, parts(one)
        if id(one) in seen:
            return "see", seen[id(one)]
        kept.append(one)
        seen[id(one)] = len(seen)
        if kind is tuple or kind is list:
            return kind, parts(one)
        if kind is dict:
            return kind, parts(one), parts(one.values())
        if kind in (set, frozenset):
            return kind, sorted(map(repr, one))
        if isinstance(one, torch.Tensor):
            return _tensor(one), describe(dict(one.__dict__))
        if isinstance(one, np.ma.MaskedArray):
            return kind, one.dtype, one.mask.tolist(), one.data.tolist()
        if isinstance(one, np.ndarray):
            whole = parts(one.tolist()) if one.dtype.hasobject else one.tobytes()
            return (
                kind,
                one.dtype,
                one.shape,
                one.flags.writeable,
                whole,
                describe(dict(getattr(one, "__dict__", {}))),
            )
        reduce = copyreg.dispatch_table.get(kind)
        reduced = reduce(one) if reduce else one.__reduce_ex__(4)
        make, args, state, items, pairs = (*reduced, None, None, None)[:5]
        kept.append((args, state))
        contents = parts([*map(list, pairs)] if pairs else []), parts(items or ())
        attributes = sorted(vars(one)) if hasattr(one, "__dict__") else None
        return kind, describe(make), parts(args), contents, describe(state), attributes

    def _tensor(one: Any) -> Any:
        flat = one.detach()
        flat = flat.to_dense() if flat.layout is not torch.strided else flat.as_subclass(torch.Tensor)
        bits = flat.contiguous().view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return type(one), one.dtype, tuple(one.shape), one.layout, one.requires_grad, one.is_leaf, bits

    return describe(value)
