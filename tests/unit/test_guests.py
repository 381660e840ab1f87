"""Guests: a library is known to the core by one line in a table, and its module is imported when it is needed."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
from test_layout import Box, slab, travel

from penstock import prefetch
from penstock._memory import guests
from penstock._memory.guests import Handler, Shipping, guest_in
from penstock._resume.reading import has_state


class Thing:
    """A leaf of the library: one number."""

    def __init__(self, number: int) -> None:
        self.number = number


class Part(Thing):
    """A class that the user derives from the library's."""


class Model:
    def state_dict(self) -> Any:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


Thing.__module__ = Model.__module__ = Model.state_dict.__module__ = "library.inner"


def make_thing(shape: tuple[int, ...], dtype: Any, root: Any, at: int) -> Thing:
    return Thing(int(np.ndarray(shape, dtype, root, at)[()]) + 1000)


def store(thing: Thing, writer: Any) -> Any:
    start = writer.reserve(8)
    np.ndarray((), np.int64, writer.root, start)[()] = thing.number
    return make_thing, (), np.dtype(np.int64), start


def rebuild(number: int) -> Thing:
    return Thing(number + 2000)


class Library:
    def __init__(self) -> None:
        self.reducers = {Thing: lambda thing: (rebuild, (thing.number,))}
        self.asked: list[type] = []

    def handler(self, kind: type) -> Handler | None:
        self.asked.append(kind)
        copies = (lambda thing: Thing(thing.number), lambda thing: Thing(-thing.number))
        return Handler(*copies, store) if kind is Thing else Handler(*copies)

    def shipping(self) -> Any:
        sent: list[Thing] = []

        def reduce(thing: Thing) -> Any:
            sent.append(thing)
            return rebuild, (len(sent),)

        return {Thing: reduce}

    def is_parameters(self, state_dict: Any) -> bool:
        return True

    def can_pin(self) -> bool:
        return True


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """The library is imported in this process, and none of its objects was met yet."""
    module: Any = ModuleType("knows_the_library")
    module.GUEST = Library()
    monkeypatch.setitem(sys.modules, "library", ModuleType("library"))
    monkeypatch.setitem(sys.modules, "knows_the_library", module)
    monkeypatch.setattr(guests, "GUESTS", {"library": "knows_the_library"})
    monkeypatch.setattr(guests, "_met", {})
    for kind in (Thing, Part):
        monkeypatch.setitem(guests.HANDLERS, kind, None)  # type: ignore[misc]
        monkeypatch.delitem(guests.HANDLERS, kind)  # type: ignore[misc]
        monkeypatch.setitem(guests.REDUCERS, kind, None)  # type: ignore[arg-type]
        monkeypatch.delitem(guests.REDUCERS, kind)
    found: Library = module.GUEST
    return found


def test_a_guest_is_met_with_its_first_leaf_and_asked_once(library: Library) -> None:
    assert travel({"a": np.arange(3), "b": "text"}, slab())["b"] == "text"
    assert not guests._met and not guests.all_met()
    for _ in range(3):
        assert travel([Thing(7), Thing(8)], slab())[0].number == 1007
    assert guests.all_met() and library.asked == [Thing]


def test_a_leaf_of_a_derived_class_is_the_guests_too(library: Library) -> None:
    got = travel([Part(7)], slab())[0]
    assert type(got) is Part and got.number == 7
    assert library.asked == [Part]


@pytest.mark.parametrize("more", [None, lambda: 3], ids=["by name", "by value"])
def test_a_guest_is_met_in_the_pickle_that_holds_its_first_object(library: Library, more: Any) -> None:
    assert travel(Box([Thing(7), more]), slab()).value[0].number == 2007
    assert travel(Box([Thing(8), more]), slab()).value[0].number == 2008


def test_objects_that_are_no_guests_are_pickled_as_always(library: Library) -> None:
    assert travel(Box([Box(3), {4}]), slab()).value[0].value == 3
    assert not guests._met


def ship(payload: object) -> Any:
    shipping = Shipping()

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, part: Any) -> Any:
            reducer = shipping[type(part)]
            return super().reducer_override(part) if reducer is None else reducer(part)

    file = io.BytesIO()
    Pickler(file, 5).dump(payload)
    return pickle.loads(file.getvalue())


def test_each_shipment_has_reducers_of_its_own(library: Library) -> None:
    for _ in range(2):
        there = ship([Thing(7), Box(Thing(8)), Box(3)])
        assert (there[0].number, there[1].value.number, there[2].value) == (2001, 2002, 3)


def test_the_state_dict_that_a_model_inherits_is_no_position(library: Library) -> None:
    class Positioned(Model):
        def state_dict(self) -> Any:
            return {"at": 3}

    assert not has_state(Model()) and has_state(Positioned()) and not has_state(3)


def test_a_name_that_only_begins_like_a_guests_is_no_guest(library: Library) -> None:
    assert guest_in("library2") is guest_in("my.library") is guest_in(None) is None
    assert guest_in("library.inner.most") is library


# prefetch


def test_prefetch_copies_and_pins_leaves_of_a_guest(library: Library) -> None:
    given = {"a": Thing(7), "b": Part(8), "c": np.arange(2), "d": "text"}
    for pin, numbers in ((False, [1007, 8]), (True, [-7, -8])):
        with prefetch([given], pin_memory=pin) as ahead:
            (got,) = ahead
        assert [got["a"].number, got["b"].number] == numbers
        assert got["c"].tolist() == [0, 1] and got["d"] == "text"


# torch

TENSORS = """
import sys, numpy as np, torch, penstock

def collate(samples):
    return {"t": torch.tensor(samples), "a": np.array(samples), "s": Held(torch.tensor(samples))}

class Held:
    def __init__(self, value):
        self.value = value

assert "penstock.torch" not in sys.modules
loader = penstock.DataLoader(range(8), 4, num_workers=1, multiprocessing_context="fork", collate_fn=collate)
with loader:
    for batch in loader:
        base = batch["a"].__array_interface__["data"][0]
        print([abs(tensor.data_ptr() - base) < 4096 for tensor in (batch["t"], batch["s"].value)])
"""


def test_tensors_travel_in_slabs_in_a_program_that_does_not_import_penstock_torch() -> None:
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", TENSORS], capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", "[True, True]\n" * 2)


def test_tensors_that_share_memory_are_shipped_once() -> None:
    torch = pytest.importorskip("torch")
    whole = torch.arange(10_000, dtype=torch.int32).reshape(100, 100)
    payload = {"all": whole, "row": whole[3], "bytes": whole.view(torch.uint8), "small": torch.arange(3)}
    there = ship(payload)
    for name, tensor in payload.items():
        assert torch.equal(there[name], tensor) and there[name].dtype is tensor.dtype
    there["all"][3, 0] = -1
    assert there["row"][0] == -1 and there["bytes"][3, 0] == 255
    shipping = Shipping()
    assert shipping[torch.Generator] is None  # no special treatment
