"""Trees: what is opened, what is a leaf, and that nothing is lost on the way through a Spec."""

from __future__ import annotations

import copy
import functools
import pickle
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pytest

from penstock._memory import forms
from penstock._memory import tree as tree_module
from penstock._memory.tree import LEAF, MAX_DEPTH, flatten, unflatten

Point = namedtuple("Point", "x y")


class Typed(NamedTuple):
    left: Any
    right: Any = 0


class Labelled(Point):
    """A namedtuple with a constructor of its own, and room for attributes."""

    def __new__(cls, both: Any) -> Self:
        return super().__new__(cls, both, both)


@dataclass
class Plain:
    a: Any
    b: Any = 2


@dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    b: Any


@dataclass
class Late:
    """A field that `__init__` does not take, and an attribute that is no field."""

    a: Any
    total: Any = field(init=False)

    def __post_init__(self) -> None:
        self.total = 10
        self.beside = "kept"


@dataclass
class NeverSet:
    a: Any
    later: Any = field(init=False)


@dataclass
class Failure(Exception):
    code: int


class Colour(tuple, Enum):
    RED = (1, 0)


class Named(dict):  # type: ignore[type-arg]
    """A dict whose constructor takes the items, and which may carry an attribute."""


class Doubling(dict):  # type: ignore[type-arg]
    """A dict whose constructor does not give back what it is given."""

    def __init__(self, items: Any) -> None:
        super().__init__({key: [value, value] for key, value in dict(items).items()})


class Needy(list):  # type: ignore[type-arg]
    def __init__(self, items: Any, name: str) -> None:
        super().__init__(items)
        self.name = name


class Growing(list):  # type: ignore[type-arg]
    def __init__(self, items: Any) -> None:
        super().__init__([*items, "more"])


class Averaged(list):  # type: ignore[type-arg]
    """An attribute that only its own `==` could compare."""

    def __init__(self, items: Any) -> None:
        super().__init__(items)
        self.mean = np.zeros(2)


class Bag(dict):  # type: ignore[type-arg]
    """A mapping that may hold a key twice, and keeps the second where nobody sees it (in C, say)."""

    hidden: ClassVar[dict[int, int]] = {}

    def __len__(self) -> int:
        return super().__len__() + self.hidden.get(id(self), 0)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> int:
        return 0


@dataclass
class Body:
    mass: int


class Planet(Body, Enum):
    EARTH = 6


class Row(list):  # type: ignore[type-arg]
    pass


def round_trip(tree: Any) -> Any:
    leaves, spec = flatten(tree)
    return unflatten(spec, leaves)


@pytest.mark.parametrize(
    "tree",
    [
        {"a": 1, "b": [2, (3, 4)]},
        [1, [2, []]],
        (1,),
        (),
        {},
        [{}, ()],
        Point(1, [2]),
        Typed(1),
        Plain(1, {"x": 2}),
        Frozen(1, (2,)),
        Late(1),
        OrderedDict(b=1, a=[2]),
        defaultdict(list, {"a": [1]}),
        Counter("aab"),
        UserDict(x=1, y=(2,)),
        Named(x=1),
        Row([1, 2]),
    ],
    ids=repr,
)
def test_a_container_comes_back_equal_and_of_its_own_class(tree: Any) -> None:
    back = round_trip(tree)
    assert back == tree
    assert type(back) is type(tree)


def test_leaves_come_from_left_to_right() -> None:
    tree = {"z": 1, "a": [2, (3, {"k": 4})], "m": Point(5, Frozen(6, 7))}
    assert flatten(tree)[0] == [1, 2, 3, 4, 5, 6, 7]


def test_fields_of_a_dataclass_come_in_the_order_of_its_declaration() -> None:
    made = object.__new__(Plain)
    made.b, made.a = 2, 1
    assert flatten(made)[0] == [1, 2]


@pytest.mark.parametrize(
    "leaf",
    [np.zeros(3), "text", b"bytes", None, 1, 1.5, {1, 2}, frozenset({1}), range(3), object(), Point, Plain],
    ids=lambda leaf: type(leaf).__name__,
)
def test_everything_else_is_a_leaf(leaf: Any) -> None:
    leaves, spec = flatten(leaf)
    assert leaves[0] is leaf
    assert len(leaves) == 1
    assert spec is LEAF
    assert unflatten(spec, leaves) is leaf


@pytest.mark.parametrize("leaf", [Failure(3), Colour.RED, Planet.EARTH], ids=["exception", "enum", "data"])
def test_dataclasses_that_are_exceptions_and_enum_members_are_leaves(leaf: Any) -> None:
    assert flatten(leaf) == ([leaf], LEAF)


def test_the_extra_attribute_of_a_dataclass_travels_with_it() -> None:
    back = round_trip(Late(1))
    assert (back.a, back.total, back.beside) == (1, 10, "kept")


def test_a_field_that_was_never_set_stays_unset() -> None:
    back = round_trip(NeverSet(1))
    assert back.a == 1
    assert not hasattr(back, "later")


def test_a_namedtuple_with_its_own_constructor_is_made_without_it() -> None:
    back = round_trip(Labelled([1]))
    assert type(back) is Labelled
    assert back == ([1], [1])


def test_a_default_factory_is_kept() -> None:
    back = round_trip({"a": defaultdict(list, {"b": 1})})
    assert back["a"]["new"] == []


def test_the_order_of_keys_is_kept() -> None:
    assert list(round_trip({"b": 1, "a": 2})) == ["b", "a"]


@pytest.mark.parametrize(
    "make",
    [Doubling, functools.partial(Needy, name="n"), Growing, Averaged],
    ids=["changes", "needs more", "grows", "has an array"],
)
def test_a_class_that_cannot_be_made_again_from_its_items_is_a_leaf(make: Any) -> None:
    container = make([("a", 1)])
    assert flatten([container])[0][0] is container


def test_an_attribute_that_the_constructor_would_lose_makes_the_container_a_leaf() -> None:
    container = Named(x=1)
    container.source = np.zeros(2)
    assert flatten(container)[0][0] is container


def test_an_attribute_of_an_ordered_dict_makes_it_a_leaf() -> None:
    container: Any = OrderedDict(a=1)
    container.source = "here"
    assert flatten(container)[0][0] is container


def test_a_key_that_is_there_twice_makes_a_mapping_a_leaf() -> None:
    bag = Bag(a=1)
    assert flatten(bag)[0] == [1]
    Bag.hidden[id(bag)] = 1
    assert flatten(bag)[0][0] is bag


def test_a_default_factory_without_a_hash_makes_a_leaf() -> None:
    container = defaultdict(Unhashable(), a=1)
    assert flatten(container)[0][0] is container


def test_a_container_that_stays_whole_is_like_any_other_leaf() -> None:
    assert flatten([Growing([1]), 2])[1] is flatten([1, 2])[1]


def test_an_attribute_of_a_namedtuple_makes_it_a_leaf() -> None:
    point = Labelled(1)
    point.source = "here"
    assert flatten(point)[0][0] is point


def test_a_mapping_that_can_be_made_from_a_dict_is_opened() -> None:
    leaves, spec = flatten(MappingProxyType({"a": 1}))
    assert leaves == [1]
    assert type(unflatten(spec, [2])) is MappingProxyType


def test_a_mapping_that_cannot_be_read_is_a_leaf() -> None:
    class Broken(UserDict):  # type: ignore[type-arg]
        def __getitem__(self, key: Any) -> Any:
            raise OSError("gone")

    broken = Broken(a=1)
    assert flatten((broken, 1))[0][0] is broken


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1], (1,)),
        ([1], [1, 2]),
        ([1], [[1]]),
        ({"a": 1}, OrderedDict(a=1)),
        ({1: 0}, {True: 0}),
        ({1: 0}, {1.0: 0}),
        ({"a": 0}, {np.str_("a"): 0}),
        ({-1: 0}, {-2: 0}),  # their hashes are equal
        ([{-1: 0}], [{-2: 0}]),
        (Point(1, 2), Typed(1, 2)),
        (1, [1]),
        (defaultdict(list, a=1), defaultdict(dict, a=1)),
    ],
    ids=repr,
)
def test_different_structures_have_different_specs(one: Any, other: Any) -> None:
    assert flatten(one)[1] != flatten(other)[1]


@pytest.mark.parametrize("first", [{1: "a"}, {True: "a"}, {1.0: "a"}], ids=repr)
def test_keys_that_are_equal_but_of_other_classes_stay_apart(first: Any) -> None:
    for tree in ({1: "a"}, {True: "a"}, first):
        assert repr(round_trip(tree)) == repr(tree)


def test_the_same_structure_has_one_spec_whatever_its_leaves() -> None:
    assert flatten({"a": 1, "b": (2, 3)})[1] is flatten({"a": None, "b": ("x", np.zeros(2))})[1]


@pytest.mark.parametrize("tree", [1, {"a": [1, Frozen(1, 2)]}, Point(1, OrderedDict(x=2))], ids=repr)
def test_a_spec_survives_pickling_as_itself(tree: Any) -> None:
    spec = flatten(tree)[1]
    assert pickle.loads(pickle.dumps(spec)) is spec


def test_specs_are_equal_after_the_table_was_emptied() -> None:
    tree = {"a": [1, {"b": 2}], "c": Point(1, 2)}
    before = flatten(tree)[1]
    tree_module._SPECS.clear()
    after = flatten(tree)[1]
    assert before is not after
    assert before == after
    assert hash(before) == hash(after)


def test_ever_new_structures_do_not_fill_the_memory() -> None:
    for number in range(forms.TABLE_LIMIT + 10):
        flatten({number: 1})
    assert len(tree_module._SPECS) <= forms.TABLE_LIMIT


def test_ever_new_classes_do_not_fill_the_memory() -> None:
    for number in range(forms.TABLE_LIMIT + 10):
        flatten(type(f"Leaf{number}", (), {})())
    assert len(forms.LEAVES) <= forms.TABLE_LIMIT
    assert np.ndarray in forms.LEAVES


def test_a_spec_does_not_hold_the_leaves() -> None:
    class Leaf:
        alive = 0

        def __init__(self) -> None:
            Leaf.alive += 1

        def __del__(self) -> None:
            Leaf.alive -= 1

    spec = flatten({"a": Leaf(), "b": [Leaf()], "c": UserDict(d=Leaf()), "e": Plain(Leaf())})[1]
    assert spec.count == 5
    assert Leaf.alive == 0


def test_a_spec_counts_its_leaves() -> None:
    assert flatten({"a": [1, 2, []], "b": (3,)})[1].count == 3


@pytest.mark.parametrize("leaves", [[], [1], [1, 2, 3]], ids=len)
def test_a_wrong_number_of_leaves_is_refused(leaves: list[Any]) -> None:
    spec = flatten((1, 2))[1]
    with pytest.raises(ValueError, match=f"has 2 leaves, but {len(leaves)} were given"):
        unflatten(spec, leaves)


def test_a_list_that_contains_itself_is_named() -> None:
    around: list[Any] = [1]
    around.append({"back": around})
    with pytest.raises(ValueError, match=r"contains itself \((list in dict in list|dict in list in dict)\)"):
        flatten(around)


def test_nesting_up_to_the_limit_is_fine() -> None:
    tree: Any = [1]
    for _ in range(MAX_DEPTH):
        tree = [tree]
    assert round_trip(tree) == tree


def test_nesting_beyond_the_limit_is_refused_with_the_limit() -> None:
    tree: Any = [1]
    for _ in range(MAX_DEPTH + 1):
        tree = [tree]
    with pytest.raises(ValueError, match=f"deeper than {MAX_DEPTH} levels"):
        flatten(tree)


def test_unflatten_takes_any_sequence_of_leaves() -> None:
    spec = flatten({"a": 1, "b": [2]})[1]
    assert unflatten(spec, ("x", "y")) == {"a": "x", "b": ["y"]}


def test_containers_of_the_tree_are_not_shared_with_what_is_made() -> None:
    tree = {"a": [1], "b": {"c": 2}}
    before = copy.deepcopy(tree)
    back = round_trip(tree)
    back["a"].append(9)
    back["b"]["d"] = 9
    assert tree == before


def test_a_spec_shows_its_structure() -> None:
    spec = flatten({"a": [1, 2], "b": defaultdict(list, c=3)})[1]
    assert repr(spec) == "dict('a': list(*, *), 'b': defaultdict('c': *))"
