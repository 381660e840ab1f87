"""A nested structure as a list of its leaves, from left to right, and a Spec: how the leaves are nested.

Containers are dict, list, tuple, namedtuple, dataclass instances, and subclasses of Mapping, list and tuple whose
constructor, given the items, makes an equal object (this is tried for every instance). Everything else is a leaf, and
so is a container that cannot be rebuilt from its items.

A batch that goes to another process is taken apart by `flatten_exactly`: there a container is opened only if pickle
would rebuild the same object from the same parts.

Specs are kept in a table: a structure that was seen before costs one look-up, and `==` compares two pointers.
"""

from __future__ import annotations

import copyreg
import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from itertools import islice
from operator import is_
from types import NoneType
from typing import Any, NamedTuple, TypeVar

import numpy as np

MAX_DEPTH = 64
"""Levels of containers in containers. Deeper structures are assumed to contain themselves."""

_TABLE_LIMIT = 4096  # structures or classes

_K = TypeVar("_K")
_V = TypeVar("_V")


class Table(dict[_K, _V]):
    """Makes the values that are missing, and forgets all when it is full: ever new keys must not fill the memory."""

    def __init__(self, make: Callable[[_K], _V], most: int = _TABLE_LIMIT) -> None:
        self._make = make
        self._most = most

    def __missing__(self, key: _K) -> _V:
        value = self._make(key)
        if len(self) >= self._most:
            self.clear()
        self[key] = value
        return value


class Spec:
    """The structure of a tree without its leaves: hashable and picklable. Made by `flatten`."""

    __slots__ = ("_hash", "build", "children", "count", "keys", "kind")

    kind: type | None  # the class of the container; None for a leaf
    keys: Hashable  # what is needed beside the values to rebuild it: keys, names, or the number of values
    children: tuple[Spec | None, ...] | None  # None for a leaf; None instead of the tuple if all are leaves
    count: int  # leaves
    build: Callable[[Iterator[Any]], Any]  # takes the leaves from an iterator and returns the tree

    def __init__(
        self, kind: type | None, keys: Hashable, children: tuple[Spec | None, ...] | None, size: int
    ) -> None:
        self.kind = kind
        self.keys = keys
        self.children = children
        self.count = size if children is None else sum(child.count if child else 1 for child in children)
        self.build = next if kind is None else _builder(kind, keys, children, size)
        self._hash = hash((kind, keys, children))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if type(other) is not Spec:
            return NotImplemented
        return self is other or (
            self._hash == other._hash
            and self.kind is other.kind
            and self.keys == other.keys
            and _alike(self.keys, other.keys)
            and self.children == other.children
        )

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self.kind is None:
            return "LEAF"
        return _spec, (self.kind, self.keys, self.children, len(self.below))

    @property
    def below(self) -> tuple[Spec | None, ...]:
        """The Spec of each value, None for a leaf."""
        return (None,) * self.count if self.children is None else self.children

    @property
    def names(self) -> tuple[Any, ...] | None:
        """The key or name of each value, if they have one."""
        # Those of a defaultdict begin with its factory, others with a class of this module.
        return self.keys[len(self.keys) - len(self.below) :] if type(self.keys) is tuple else None

    def __repr__(self) -> str:
        if self.kind is None:
            return "*"
        values = ["*" if child is None else repr(child) for child in self.below]
        if self.names is not None:
            values = [f"{key!r}: {value}" for key, value in zip(self.names, values, strict=True)]
        return f"{self.kind.__name__}({', '.join(values)})"


def flatten(tree: object) -> tuple[list[object], Spec]:
    """The leaves of `tree` from left to right, and its structure.

    Raises ValueError for a structure that contains itself or is nested deeper than MAX_DEPTH.
    """
    if type(tree) in _LEAVES:
        return [tree], LEAF
    leaves: list[object] = []
    try:
        spec = _walk(tree, leaves, 0, _FORMS, [])
    except _TooDeep as error:
        raise ValueError(_too_deep(error.trail)) from None
    return leaves, LEAF if spec is None else spec


def flatten_exactly(tree: object) -> tuple[list[object], Spec] | None:
    """Like `flatten`, for a tree that is rebuilt in another process: the result is the same as with pickle.

    Containers that pickle rebuilds in a way of their own are leaves. None if only pickle can keep the structure: a
    container is in the tree twice, or contains itself, or is nested deeper than MAX_DEPTH.
    """
    if type(tree) in _LEAVES:
        return [tree], LEAF
    leaves: list[object] = []
    nodes: list[int] = []
    try:
        spec = _walk(tree, leaves, 0, _EXACT_FORMS, nodes)
    except _TooDeep:
        return None
    if len(nodes) > 1 and len(set(nodes)) < len(nodes):
        return None
    return leaves, LEAF if spec is None else spec


def unflatten(spec: Spec, leaves: Sequence[object]) -> Any:
    """The tree of this structure with these leaves: the inverse of `flatten`."""
    if len(leaves) != spec.count:
        raise ValueError(f"the structure {spec!r} has {spec.count} leaves, but {len(leaves)} were given")
    return spec.build(iter(leaves))


def remake(kind: type, values: Mapping[Any, Any] | list[Any]) -> Any:
    """`kind(values)` if that is of class `kind` and holds exactly these values, else None."""
    constructor: Callable[[Any], Any] = kind
    with suppress(Exception):  # a class of the user's: it may raise anything for values that it does not take
        made = constructor(values)
        same = len(made) == len(values) and type(made) is kind
        if isinstance(values, Mapping):
            same = same and list(made) == list(values) and all(made[key] is values[key] for key in values)
        else:
            same = same and all(map(is_, made, values))
        return made if same else None
    return None


def _too_deep(trail: Sequence[object]) -> str:
    """The message for containers that are nested too deep; in `trail` each container is inside the next."""
    ids = [id(node) for node in trail]
    for at, node in enumerate(ids):
        if node in ids[:at]:
            way = " in ".join(type(inner).__name__ for inner in trail[ids.index(node) : at + 1])
            return f"a structure contains itself ({way}); samples and batches must not contain cycles"
    return f"containers are nested deeper than {MAX_DEPTH} levels; wrap them in an object of your own class"


class _TooDeep(Exception):
    def __init__(self) -> None:
        self.trail: list[object] = []


def _walk(
    node: Any, leaves: list[object], depth: int, forms: Table[type, _Form | None], nodes: list[int]
) -> Spec | None:
    """Appends the leaves of `node` to `leaves`; returns its Spec, or None if `node` is itself a leaf.

    Appends the id of each container to `nodes`, except tuples of leaves: if one of these is there twice, no code can
    tell it from two, and constants in a program are often such tuples.
    """
    kind = type(node)
    keys: Hashable
    values: Any
    if kind is dict:
        keys, values = tuple(node), node.values()
    elif kind is tuple or kind is list:
        keys, values = len(node), node
    else:
        form = forms[kind]
        opened = form and form.open(node)
        if not opened:
            leaves.append(node)
            return None
        keys, values = opened
    children: tuple[Spec | None, ...] | None = None
    if _LEAVES.issuperset(map(type, values)):
        leaves += values
        if kind is not tuple:
            nodes.append(id(node))
    else:
        nodes.append(id(node))
        if depth == MAX_DEPTH:
            raise _TooDeep
        below: list[Spec | None] = []
        try:
            for value in values:
                if type(value) in _LEAVES:
                    leaves.append(value)
                    below.append(None)
                else:
                    below.append(_walk(value, leaves, depth + 1, forms, nodes))
        except _TooDeep as error:
            error.trail.append(node)
            raise
        if any(below):
            children = tuple(below)
    return _spec(kind, keys, children, len(values))


# ---- the table of structures ----------------------------------------------------------------------


def _spec(kind: type, keys: Hashable, children: tuple[Spec | None, ...] | None, size: int) -> Spec:
    """The Spec of this structure, from the table. Two threads may make two, which are equal but not identical."""
    key = (kind, keys, children, size)
    spec = _SPECS[key]
    if not _alike(spec.keys, keys):
        spec = _SPECS[key] = Spec(*key)
    return spec


_SPECS: Table[tuple[Any, ...], Spec] = Table(lambda key: Spec(*key))


def _alike(one: Any, other: Any) -> bool:
    """True if equal keys also have equal types: 1, 1.0 and True are equal, but are different keys."""
    if type(one) is not tuple:
        return True
    return all(map(is_, one, other)) or all(map(is_, map(type, one), map(type, other)))


def _builder(
    kind: type, keys: Any, children: tuple[Spec | None, ...] | None, size: int
) -> Callable[[Iterator[Any]], Any]:
    builds = [next if child is None else child.build for child in children or ()]
    if kind is dict:
        if children is None:
            # Not strict: the iterator also has the leaves that follow.
            return lambda leaves: dict(zip(keys, leaves))  # noqa: B905
        return lambda leaves: dict(zip(keys, [build(leaves) for build in builds], strict=True))
    if kind is list or kind is tuple:
        if children is None:
            return lambda leaves: kind(islice(leaves, size))
        return lambda leaves: kind([build(leaves) for build in builds])
    marked = type(keys) is tuple and keys and type(keys[0]) is type
    form = (_MARKED.get(keys[0]) if marked else None) or _FORMS[kind]
    if form is None:
        raise TypeError(f"{kind.__qualname__} is a container in the sending process, but not in this one")
    close = form.close
    if children is None:
        return lambda leaves: close(kind, keys, list(islice(leaves, size)))
    return lambda leaves: close(kind, keys, [build(leaves) for build in builds])


# ---- the forms of containers ----------------------------------------------------------------------


class _Form(NamedTuple):
    """How the containers of one class are taken apart and rebuilt."""

    open: Callable[[Any], tuple[Hashable, Sequence[Any]] | None]
    """Keys and values; None if this instance cannot be rebuilt from them."""
    close: Callable[[type, Any, list[Any]], Any]


def _state(node: object) -> dict[str, Any]:
    """The attributes of an instance, from its `__dict__` and its slots."""
    state = object.__getstate__(node)
    if type(state) is tuple:
        return {**(state[0] or {}), **state[1]}
    return state or {}  # type: ignore[return-value]


def _same(one: Any, other: Any) -> bool:
    """True if two attributes are certainly equal; False where that would take a `==` of the user's class."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict:
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if kind is list or kind is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    return kind in PLAIN and bool(one == other)


def _faithful(made: object, node: object) -> bool:
    return made is not None and _same(_state(made), _state(node))


def _open_mapping(node: Mapping[Any, Any]) -> tuple[Hashable, Sequence[Any]] | None:
    with suppress(Exception):  # a mapping with unhashable keys, or values that cannot be read, is a leaf
        items = {key: node[key] for key in node}
        if len(items) == len(node) and _faithful(remake(type(node), items), node):
            return tuple(items), list(items.values())
    return None


def _open_sequence(node: Sequence[Any]) -> tuple[Hashable, Sequence[Any]] | None:
    values = list(node)
    return (len(values), values) if _faithful(remake(type(node), values), node) else None


def _open_default(node: defaultdict[Any, Any]) -> tuple[Hashable, Sequence[Any]] | None:
    factory = node.default_factory
    return ((factory, *node), list(node.values())) if isinstance(factory, Hashable) else None


def _open_dataclass(node: Any) -> tuple[Hashable, Sequence[Any]]:
    state, fields = _state(node), type(node).__dataclass_fields__
    names = [name for name in fields if name in state]  # a field with init=False may be unset
    names += [name for name in state if name not in fields]
    return tuple(names), [state[name] for name in names]


def close_named(kind: type, keys: object, values: Iterable[Any]) -> Any:
    """A namedtuple with these values. Its `__new__` is not called: it may take other arguments."""
    return tuple.__new__(kind, values)


def close_dataclass(kind: type, names: Iterable[str], values: Iterable[Any]) -> Any:
    """A dataclass instance with these attributes, made without `__init__`; it may be frozen or slotted."""
    made: Any = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


_MAPPING = _Form(_open_mapping, lambda kind, keys, values: kind(dict(zip(keys, values, strict=True))))
_SEQUENCE = _Form(_open_sequence, lambda kind, size, values: kind(values))
_NAMED = _Form(lambda node: None if _state(node) else (len(node), node), close_named)
_DATACLASS = _Form(_open_dataclass, close_dataclass)
_BUILT_IN: dict[type, _Form] = {
    OrderedDict: _Form(
        lambda node: None if _state(node) else (tuple(node), list(node.values())),
        lambda kind, keys, values: OrderedDict(zip(keys, values, strict=True)),
    ),
    defaultdict: _Form(
        _open_default, lambda kind, keys, values: defaultdict(keys[0], zip(keys[1:], values, strict=True))
    ),
}

PLAIN: frozenset[type] = frozenset({bool, int, float, complex, str, bytes, NoneType})
_LEAVES: set[type] = {*PLAIN, np.ndarray, np.memmap}
"""Classes known not to be containers. More are added as they are met."""


def is_namedtuple(kind: type) -> bool:
    """True for a class made by `collections.namedtuple` or `typing.NamedTuple`, and for its subclasses."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_make")


def is_dataclass(kind: type) -> bool:
    """True for a dataclass whose instances can be made without `__init__`."""
    if not dataclasses.is_dataclass(kind) or issubclass(kind, Enum):
        return False
    try:
        object.__new__(kind)
    except TypeError:  # the class also derives from a built-in class, such as Exception
        return False
    return True


def _form(kind: type) -> _Form | None:
    """The form of a class that is met for the first time; None for a leaf."""
    if kind in _BUILT_IN:
        return _BUILT_IN[kind]
    if is_namedtuple(kind):
        return _NAMED
    if issubclass(kind, (list, tuple)):
        return _SEQUENCE
    if issubclass(kind, Mapping):
        return _MAPPING
    if is_dataclass(kind):
        return _DATACLASS
    if len(_LEAVES) >= _TABLE_LIMIT:
        _LEAVES.intersection_update({*PLAIN, np.ndarray, np.memmap})
    _LEAVES.add(kind)
    return None


_FORMS: Table[type, _Form | None] = Table(_form)


# ---- the forms of containers that pickle rebuilds from the same parts -------------------------------


class Attributes:
    """The first key of an object that is rebuilt from its attributes, as pickle does, and not from its items."""


def _open_attributes(node: Any) -> tuple[Hashable, Sequence[Any]] | None:
    state = node.__getstate__()
    return ((Attributes, *state), list(state.values())) if type(state) is dict else None


def _close_attributes(kind: type, keys: tuple[Any, ...], values: list[Any]) -> Any:
    made: Any = object.__new__(kind)
    state = dict(zip(keys[1:], values, strict=True))
    if hasattr(kind, "__setstate__"):
        made.__setstate__(state)
    else:
        made.__dict__.update(state)
    return made


_ATTRIBUTES = _Form(_open_attributes, _close_attributes)


class Items:
    """The first key of an instance of a subclass of dict that is rebuilt from its items, without `__init__`."""


def _close_items(kind: type, keys: tuple[Any, ...], values: list[Any]) -> Any:
    made: Any = dict.__new__(kind)  # type: ignore[call-overload]
    dict.update(made, zip(keys[1:], values, strict=True))
    return made


_ITEMS = _Form(lambda node: None if _state(node) else ((Items, *node), list(node.values())), _close_items)
_MARKED: dict[Any, _Form] = {Attributes: _ATTRIBUTES, Items: _ITEMS}


def _exact_form(kind: type) -> _Form | None:
    """The form of a class whose containers pickle rebuilds from the same parts; None for all other classes."""
    if kind in _BUILT_IN:
        return _BUILT_IN[kind]
    if kind in copyreg.dispatch_table or not _inherits(kind, object, "__reduce__", "__reduce_ex__"):
        return None
    if hasattr(kind, "__getnewargs_ex__"):
        return None
    if is_namedtuple(kind):
        return _NAMED if _is_generated(kind) else None
    if issubclass(kind, dict):
        methods = ("__new__", "__iter__", "__len__", "__getitem__", "__setitem__", "items", "values")
        plain = _inherits(kind, dict, "__getattribute__", *methods) and _inherits(kind, object, "__getstate__")
        return _ITEMS if plain else None
    if not (is_dataclass(kind) or issubclass(kind, Mapping)):
        return None
    # Made by `object.__new__` without arguments. pickle looks for __setstate__ in the new instance.
    plain = _inherits(kind, object, "__new__", "__getattribute__") and not hasattr(kind, "__getnewargs__")
    knows = hasattr(kind, "__setstate__") or not hasattr(kind, "__getattr__")
    return _ATTRIBUTES if plain and knows else None


def _inherits(kind: type, base: type, *names: str) -> bool:
    return all(getattr(kind, name) is getattr(base, name) for name in names)


def _is_generated(kind: type) -> bool:
    """True if a namedtuple is made of its values by the methods that `collections.namedtuple` has written."""
    maker = next(base for base in kind.__mro__ if "_fields" in vars(base))
    written = maker.__base__ is tuple and "_field_defaults" in vars(maker)
    return written and _inherits(kind, maker, "__new__", "__getnewargs__", "__getstate__")


_EXACT_FORMS: Table[type, _Form | None] = Table(_exact_form)

LEAF = Spec(None, None, None, 1)
"""The structure of a bare leaf."""
