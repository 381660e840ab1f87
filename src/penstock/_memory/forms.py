"""The forms of containers. A form says how the containers of one class are taken apart and rebuilt.

`FORMS` covers dataclasses, namedtuples, and other classes derived from Mapping, list or tuple. Instances of these
other classes are rebuilt by calling the class with the items. If this call does not make an equal object, the
instance is not taken apart. `EXACT_FORMS` covers only classes whose forms rebuild an object from the same parts as
pickle does, so that the object arrives in another process as if the object had been pickled.
"""

from __future__ import annotations

import copyreg
import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from operator import is_
from types import NoneType
from typing import Any, NamedTuple, TypeVar

import numpy as np

TABLE_LIMIT = 4096  # structures or classes

_K = TypeVar("_K")
_V = TypeVar("_V")


class MemoTable(dict[_K, _V]):
    """A dict that computes missing values. To limit its size, it is cleared when it is full."""

    def __init__(self, make: Callable[[_K], _V], most: int = TABLE_LIMIT) -> None:
        self._make = make
        self._most = most

    def __missing__(self, key: _K) -> _V:
        value = self._make(key)
        if len(self) >= self._most:
            self.clear()
        self[key] = value
        return value


def remake(kind: type, values: Mapping[Any, Any] | list[Any]) -> Any:
    """Returns `kind(values)` if the result has exactly this class and exactly these values, otherwise None."""
    constructor: Callable[[Any], Any] = kind
    with suppress(Exception):  # a user's class may raise anything for values that it does not accept
        made = constructor(values)
        same = len(made) == len(values) and type(made) is kind
        if isinstance(values, Mapping):
            same = same and list(made) == list(values) and all(made[key] is values[key] for key in values)
        else:
            same = same and all(map(is_, made, values))
        return made if same else None
    return None


class Form(NamedTuple):
    open: Callable[[Any], tuple[Hashable, Sequence[Any]] | None]
    """Returns the container's keys and values, or None if this instance cannot be rebuilt from them."""
    close: Callable[[type, Any, list[Any]], Any]


def _state(node: object) -> dict[str, Any]:
    state = object.__getstate__(node)
    if type(state) is tuple:
        return {**(state[0] or {}), **state[1]}
    return state or {}  # type: ignore[return-value]


def _same(one: Any, other: Any) -> bool:
    """True if two attributes are certainly equal. False if they differ, or if only a user-defined `==` could tell."""
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
    """Creates a namedtuple without calling `__new__`, which may expect different arguments."""
    return tuple.__new__(kind, values)


def close_dataclass(kind: type, names: Iterable[str], values: Iterable[Any]) -> Any:
    """Creates a dataclass instance without calling `__init__`. The class may be frozen or slotted."""
    made: Any = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


_MAPPING = Form(_open_mapping, lambda kind, keys, values: kind(dict(zip(keys, values, strict=True))))
_SEQUENCE = Form(_open_sequence, lambda kind, size, values: kind(values))
_NAMED = Form(lambda node: None if _state(node) else (len(node), node), close_named)
_DATACLASS = Form(_open_dataclass, close_dataclass)
_BUILT_IN: dict[type, Form] = {
    OrderedDict: Form(
        lambda node: None if _state(node) else (tuple(node), list(node.values())),
        lambda kind, keys, values: OrderedDict(zip(keys, values, strict=True)),
    ),
    defaultdict: Form(
        _open_default, lambda kind, keys, values: defaultdict(keys[0], zip(keys[1:], values, strict=True))
    ),
}

PLAIN: frozenset[type] = frozenset({bool, int, float, complex, str, bytes, NoneType})
LEAVES: set[type] = {*PLAIN, np.ndarray, np.memmap}
"""Classes that are known not to be containers. Other such classes are added when they are first seen."""


def is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_make")


def is_dataclass(kind: type) -> bool:
    """True for a dataclass whose instances can be created without calling `__init__`."""
    if not dataclasses.is_dataclass(kind) or issubclass(kind, Enum):
        return False
    try:
        object.__new__(kind)
    except TypeError:  # the class also derives from a built-in class, such as Exception
        return False
    return True


def _form(kind: type) -> Form | None:
    """Returns the form of a class, or None if its instances are leaves."""
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
    if len(LEAVES) >= TABLE_LIMIT:
        LEAVES.intersection_update({*PLAIN, np.ndarray, np.memmap})
    LEAVES.add(kind)
    return None


FORMS: MemoTable[type, Form | None] = MemoTable(_form)


# ---- the forms of containers that pickle rebuilds from the same parts -------------------------------


class Attributes:
    """Precedes the keys of an object that must be rebuilt from its attributes, as pickle would do."""


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


_ATTRIBUTES = Form(_open_attributes, _close_attributes)


class Items:
    """Precedes the keys of a dict subclass instance that must be rebuilt without calling `__init__`."""


def _close_items(kind: type, keys: tuple[Any, ...], values: list[Any]) -> Any:
    made: Any = dict.__new__(kind)
    dict.update(made, zip(keys[1:], values, strict=True))
    return made


_ITEMS = Form(lambda node: None if _state(node) else ((Items, *node), list(node.values())), _close_items)
MARKED: dict[Any, Form] = {Attributes: _ATTRIBUTES, Items: _ITEMS}


def _exact_form(kind: type) -> Form | None:
    """Returns the form that rebuilds instances of a class as pickle does, or None if there is no such form."""
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
    # Such an object is made by `object.__new__` without arguments. pickle looks for __setstate__ in the new instance.
    plain = _inherits(kind, object, "__new__", "__getattribute__") and not hasattr(kind, "__getnewargs__")
    knows = hasattr(kind, "__setstate__") or not hasattr(kind, "__getattr__")
    return _ATTRIBUTES if plain and knows else None


def _inherits(kind: type, base: type, *names: str) -> bool:
    return all(getattr(kind, name) is getattr(base, name) for name in names)


def _is_generated(kind: type) -> bool:
    """True if a namedtuple class creates and pickles its instances only with generated methods."""
    maker = next(base for base in kind.__mro__ if "_fields" in vars(base))
    written = maker.__base__ is tuple and "_field_defaults" in vars(maker)
    return written and _inherits(kind, maker, "__new__", "__getnewargs__", "__getstate__")


EXACT_FORMS: MemoTable[type, Form | None] = MemoTable(_exact_form)
