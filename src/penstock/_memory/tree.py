"""Splits a nested structure into a list of leaves, from left to right, and a Spec of how the leaves are nested.

Containers are dict, list, tuple, and all classes that have a form (see `forms.py`). Everything else is a leaf,
including a container that cannot be rebuilt from its parts. A batch for another process is taken apart by
`flatten_exactly`, which also treats a container as a leaf if pickle would not rebuild the container from these parts.

Specs are kept in a table, so a known structure costs only one lookup, and comparing two Specs with `==` usually
compares two pointers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from operator import is_
from typing import Any

from penstock._memory.forms import EXACT_FORMS, FORMS, LEAVES, MARKED, Form, MemoTable

MAX_DEPTH = 64
"""The maximum nesting depth of containers. A cycle exceeds any depth, and so is detected."""


class Spec:
    """The structure of a tree without its leaves. Hashable and picklable."""

    __slots__ = ("_hash", "build", "children", "count", "keys", "kind")

    kind: type | None  # the class of the container; None for a leaf
    keys: Hashable  # what is needed besides the values to rebuild the container: keys, names, or their number
    children: tuple[Spec | None, ...] | None  # None for each leaf; None instead of the tuple if all are leaves
    count: int  # the number of leaves
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
        """The Spec of each value in the container, or None for a leaf."""
        return (None,) * self.count if self.children is None else self.children

    @property
    def names(self) -> tuple[Any, ...] | None:
        # The keys of a defaultdict begin with its factory, and some others with `Attributes` or `Items` (forms.py).
        return self.keys[len(self.keys) - len(self.below) :] if type(self.keys) is tuple else None

    def __repr__(self) -> str:
        if self.kind is None:
            return "*"
        values = ["*" if child is None else repr(child) for child in self.below]
        if self.names is not None:
            values = [f"{key!r}: {value}" for key, value in zip(self.names, values, strict=True)]
        return f"{self.kind.__name__}({', '.join(values)})"


def flatten(tree: object) -> tuple[list[object], Spec]:
    """Returns the leaves and the structure. Raises ValueError for a cycle, or for nesting deeper than MAX_DEPTH."""
    if type(tree) in LEAVES:
        return [tree], LEAF
    leaves: list[object] = []
    try:
        spec = _walk(tree, leaves, 0, FORMS, [])
    except _TooDeep as error:
        raise ValueError(_too_deep(error.trail)) from None
    return leaves, LEAF if spec is None else spec


def flatten_exactly(tree: object) -> tuple[list[object], Spec] | None:
    """Works like `flatten`, but takes a container apart only if pickle would rebuild it from the same parts.

    Returns None if only pickle can preserve the structure: if a container occurs twice, contains itself, or is nested
    deeper than MAX_DEPTH.
    """
    if type(tree) in LEAVES:
        return [tree], LEAF
    leaves: list[object] = []
    nodes: list[int] = []
    try:
        spec = _walk(tree, leaves, 0, EXACT_FORMS, nodes)
    except _TooDeep:
        return None
    if len(nodes) > 1 and len(set(nodes)) < len(nodes):
        return None
    return leaves, LEAF if spec is None else spec


def unflatten(spec: Spec, leaves: Sequence[object]) -> Any:
    if len(leaves) != spec.count:
        raise ValueError(f"the structure {spec!r} has {spec.count} leaves, but {len(leaves)} were given")
    return spec.build(iter(leaves))


def _too_deep(trail: Sequence[object]) -> str:
    ids = [id(node) for node in trail]  # each container is inside the next one
    for at, node in enumerate(ids):
        if node in ids[:at]:
            way = " in ".join(type(inner).__name__ for inner in trail[ids.index(node) : at + 1])
            return f"a structure contains itself ({way}); samples and batches must not contain cycles"
    return f"containers are nested deeper than {MAX_DEPTH} levels; wrap them in an object of your own class"


class _TooDeep(Exception):
    def __init__(self) -> None:
        self.trail: list[object] = []


def _walk(
    node: Any, leaves: list[object], depth: int, forms: MemoTable[type, Form | None], nodes: list[int]
) -> Spec | None:
    """Appends leaves to `leaves` and container ids to `nodes`. Returns the Spec, or None if `node` is a leaf."""
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
    if LEAVES.issuperset(map(type, values)):
        leaves += values
        # No code can tell whether a tuple of leaves occurs twice or was copied, and many constants are such tuples.
        if kind is not tuple:
            nodes.append(id(node))
    else:
        nodes.append(id(node))
        if depth == MAX_DEPTH:
            raise _TooDeep
        below: list[Spec | None] = []
        try:
            for value in values:
                if type(value) in LEAVES:
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
    """Looks up the Spec for these parts in the table, or creates the Spec if the table has none.

    Two threads may create equal Specs for the same structure, which does no harm.
    """
    key = (kind, keys, children, size)
    spec = _SPECS[key]
    if not _alike(spec.keys, keys):
        spec = _SPECS[key] = Spec(*key)
    return spec


_SPECS: MemoTable[tuple[Any, ...], Spec] = MemoTable(lambda key: Spec(*key))


def _alike(one: Any, other: Any) -> bool:
    """True if the items of two equal `Spec.keys` also have the same types. (1,) and (True,) are not alike."""
    if type(one) is not tuple:
        return True
    return all(map(is_, one, other)) or all(map(is_, map(type, one), map(type, other)))


def _builder(
    kind: type, keys: Any, children: tuple[Spec | None, ...] | None, size: int
) -> Callable[[Iterator[Any]], Any]:
    builds = [next if child is None else child.build for child in children or ()]
    if kind is dict:
        if children is None:
            # Not strict, because the iterator also has the leaves that follow.
            return lambda leaves: dict(zip(keys, leaves))  # noqa: B905
        return lambda leaves: dict(zip(keys, [build(leaves) for build in builds], strict=True))
    if kind is list or kind is tuple:
        if children is None:
            return lambda leaves: kind(islice(leaves, size))
        return lambda leaves: kind([build(leaves) for build in builds])
    marked = type(keys) is tuple and keys and type(keys[0]) is type
    form = (MARKED.get(keys[0]) if marked else None) or FORMS[kind]
    if form is None:
        raise TypeError(f"{kind.__qualname__} is a container in the sending process, but not in this one")
    close = form.close
    if children is None:
        return lambda leaves: close(kind, keys, list(islice(leaves, size)))
    return lambda leaves: close(kind, keys, [build(leaves) for build in builds])


LEAF = Spec(None, None, None, 1)
"""The structure of a tree that consists of a single leaf."""
