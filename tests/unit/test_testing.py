"""penstock.testing: what holds passes, and what does not is named."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import namedtuple
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.testing import (
    EVERYWHERE,
    Dying,
    Raising,
    Stalling,
    assert_resumes_everywhere,
    assert_same_everywhere,
    difference,
)

Pair = namedtuple("Pair", ["x", "y"])

TWO: list[dict[str, Any]] = [{"num_workers": 0}, {"num_workers": 2}]


@dataclass
class Record:
    x: Any
    name: str


class Graph:
    """Says nothing of equality, and may hold itself."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)
        self.itself = self


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


class Asks:
    """Its equality is that of an array, which has many answers."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> Any:
        return self.x == other.x  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ({"x": np.arange(4)}, {"x": np.array([0, 1, 5, 3])}, "['x']: at [2] there is 2, not 5"),
        (
            np.zeros((2, 3)),
            np.zeros((3, 2)),
            ": it is float64 of shape (2, 3), not float64 of shape (3, 2)",
        ),
        (
            np.zeros(2, np.int8),
            np.zeros(2, np.int16),
            ": it is int8 of shape (2,), not int16 of shape (2,)",
        ),
        ([1, 2], [1, 3], "[1]: it is 2, not 3"),
        ([1, 2], [1], ": it has 2 elements, not 1"),
        ([1], (1,), ": it is of type list, not tuple"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ": its keys are ['a', 'b'], not ['b', 'a']"),
        (Pair(1, "u"), Pair(1, "v"), "[1]: it is 'u', not 'v'"),
        (Record(1, "u"), Record(1, "v"), ".name: it is 'u', not 'v'"),
        (np.float32(1), np.float32(2), ": at [] there is 1.0, not 2.0"),
        (np.array([0.0]), np.array([-0.0]), ": at [0] there is 0.0, not -0.0"),
        (np.array(["a", 1], object), np.array(["a", 2], object), "[1]: it is 1, not 2"),
        ([Graph(x=np.arange(2))], [Graph(x=np.array([0, 5]))], "[0].x: at [1] there is 1, not 5"),
        (Graph(x=1), Graph(y=1), ": its attributes are ['itself', 'x'], not ['itself', 'y']"),
        (Slotted(np.arange(2)), Slotted(np.array([0, 5])), "[1]['x']: at [1] there is 1, not 5"),
        (
            SimpleNamespace(x=np.arange(2)),
            SimpleNamespace(x=np.arange(3)),
            ".x: it is int64 of shape (2,), not",
        ),
        (Asks(np.arange(2)), Asks(np.array([0, 5])), ".x: at [1] there is 1, not 5"),
        (
            Graph(f=lambda: 1),
            Graph(f=lambda: 1),
            ".f: it cannot be compared: function has no useful __eq__, and",
        ),
    ],
)
def test_the_first_difference_is_named(one: Any, other: Any, found: str) -> None:
    differs = difference(one, other)
    assert differs is not None and differs.startswith(found)


def graphs(samples: Any) -> Any:
    return Graph(x=np.stack(samples))


def namespaces(samples: Any) -> Any:
    return SimpleNamespace(x=np.stack(samples))


def asking(samples: Any) -> Any:
    return Asks(np.stack(samples))


@pytest.mark.parametrize("collate", [graphs, namespaces, Slotted, asking])
def test_batches_of_a_class_of_the_users_own_are_compared(collate: Any) -> None:
    assert_same_everywhere(
        lambda **given: penstock.DataLoader(np.array([0.0, np.nan]), 2, collate_fn=collate, seed=1, **given),
        TWO,
    )


@pytest.mark.parametrize(
    "value",
    [np.array([np.nan, 1]), float("nan"), {"a": [Pair(np.zeros((0, 2)), None)]}, Record("x", "y"), b"raw"],
)
def test_a_value_does_not_differ_from_itself(value: Any) -> None:
    assert difference(value, value) is None


class Sums(penstock.Dataset[Any]):
    """Sample i is i, unless something is amiss."""

    def __init__(self, amiss: str = "") -> None:
        self.amiss = amiss

    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: int) -> Any:
        if self.amiss == "process":
            return {"x": np.array([key, os.getpid()])}
        if self.amiss == "global":
            return {"x": random.random()}
        if self.amiss == "rng":
            return {"x": penstock.rng().random()}
        return {"x": key}


def loaders(amiss: str = "", **given: Any) -> Any:
    def make(**settings: Any) -> Any:
        return penstock.DataLoader(Sums(amiss), batch_size=4, **{"seed": 1, "shuffle": True, **given}, **settings)

    return make


@pytest.mark.parametrize("amiss", ["", "rng"])
def test_a_sound_dataset_passes(amiss: str) -> None:
    assert_same_everywhere(loaders(amiss), epochs=2)


def test_what_depends_on_the_process_is_found() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_same_everywhere(loaders("process"), [{"num_workers": 2}])
    message = "batch 0 of epoch 0 differs from that in the plain run (num_workers=0), in ['x']: at [0, 1]"
    assert f"With num_workers=2: {message}" in str(caught.value)
    assert "penstock.rng()" in str(caught.value)


def test_the_global_generators_are_found_with_threads_only() -> None:
    assert_same_everywhere(loaders("global"), [{"num_workers": 2}])
    with pytest.raises(AssertionError, match="backend='thread': batch 0 of epoch 0"):
        assert_same_everywhere(loaders("global"), [{"num_workers": 2, "backend": "thread"}])


def test_a_seed_that_was_not_given_is_found() -> None:
    with pytest.raises(
        AssertionError,
        match=r"In a second plain run \(num_workers=0\): loader\.seed differs from that in the first: it is "
        r"(.|\n)*no seed= was given",
    ):
        assert_same_everywhere(loaders(seed=None), [{"num_workers": 0}])


def test_threads_are_left_out_where_the_loader_takes_no_backend() -> None:
    made = []

    def make(num_workers: int) -> Any:
        made.append(num_workers)
        return penstock.DataLoader(range(4), num_workers=num_workers, seed=0)

    assert_same_everywhere(make)
    assert made == [0, 0, 1, 2, 3]
    with pytest.raises(TypeError, match="'backend'"):
        assert_same_everywhere(make, EVERYWHERE)


def test_another_mistake_in_making_the_loader_is_not_hidden() -> None:
    def make(num_workers: int, backend: str = "") -> Any:
        if backend:
            raise TypeError("of another kind")
        return penstock.DataLoader(range(4), num_workers=num_workers, seed=0)

    for check in (assert_same_everywhere, assert_resumes_everywhere):
        with pytest.raises(TypeError, match="of another kind"):
            check(make)


def test_a_stream_that_is_too_long_or_too_short_is_found() -> None:
    def make(num_workers: int, **settings: Any) -> Any:
        return penstock.DataLoader(range(4 + amount * num_workers), num_workers=num_workers, seed=0)

    amount = -1
    with pytest.raises(AssertionError, match="ends before batch 3 of epoch 0"):
        assert_same_everywhere(make, [{"num_workers": 1}])
    amount = 1
    with pytest.raises(AssertionError, match="there is batch 4 of epoch 0, which does not exist in the plain run"):
        assert_same_everywhere(make, [{"num_workers": 1}])


def test_an_epoch_can_be_cut_short() -> None:
    def make(**settings: Any) -> Any:
        return penstock.DataLoader(range(1 << 40), num_workers=settings["num_workers"], seed=0)

    assert_same_everywhere(make, [{"num_workers": 1}], steps=3, epochs=2)


# Stops and goes on.


@pytest.mark.parametrize("amiss", ["rng", "global"])
def test_a_sound_dataset_resumes(amiss: str) -> None:
    assert_resumes_everywhere(loaders(amiss), TWO)


def test_an_epoch_that_is_cut_short_resumes() -> None:
    def make(**settings: Any) -> Any:
        return penstock.DataLoader(range(1 << 40), seed=0, **settings)

    assert_resumes_everywhere(make, [{"num_workers": 0}], steps=3)


class Counts(penstock.Dataset[Any]):
    """A sample tells how many came before it: from this object, if that is not part of its state."""

    calls = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: int) -> Any:
        self.calls += 1
        return self.calls


class Remembers(Counts):
    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def test_a_dataset_that_counts_its_calls_is_found() -> None:
    def make(**settings: Any) -> Any:
        return penstock.DataLoader(Counts(), batch_size=4, seed=0, **settings)

    how = r"Stopped after batch 0 with num_workers=0, resumed with num_workers=0: batch 1 of epoch 0 differs from"
    with pytest.raises(AssertionError, match=how + r".*: at \[0\] there is 13, not 5(.|\n)*load_state_dict"):
        assert_resumes_everywhere(make, [{"num_workers": 0}])


def test_a_dataset_that_keeps_its_count_in_its_state_passes_without_workers() -> None:
    assert_resumes_everywhere(
        lambda **settings: penstock.DataLoader(Remembers(), batch_size=4, seed=0, **settings),
        [{"num_workers": 0}],
    )


@pytest.mark.parametrize(
    ("skip", "found"),
    [
        (1, "Stopped after batch 0 .*: batch 1 of epoch 0 differs from that"),
        (2, "Stopped after batch 0 .*: the stream ends before batch 1 of epoch 0"),
        (
            -1,
            "Stopped before the first batch .*: there is batch 3 of epoch 0, which does not exist",
        ),
    ],
)
def test_a_loader_that_resumes_at_the_wrong_place_is_found(skip: int, found: str) -> None:
    class Loader(penstock.DataLoader[Any]):
        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict(state)
            self.late = skip if state["steps"] or skip < 0 else 0

        def __iter__(self) -> Any:
            late, self.late = self.late, 0
            yield from islice(super().__iter__(), max(0, late), None)
            if late < 0:
                yield

        late = 0

    with pytest.raises(AssertionError, match=found):
        assert_resumes_everywhere(lambda **settings: Loader(range(12), 4, seed=0, **settings), [{"num_workers": 0}])


def test_raising_raises_at_its_keys_only() -> None:
    dataset = Raising("abc", {1}, LookupError)
    assert (dataset[0], dataset[2], len(dataset)) == ("a", "c", 3)
    with pytest.raises(LookupError, match="sample 1 is bad"):
        dataset[1]


def test_stalling_takes_its_time_at_its_keys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    dataset = Stalling("abc", {1}, 7.5)
    assert (dataset[0], slept) == ("a", [])
    assert (dataset[1], slept) == ("b", [7.5])


def test_dying_does_nothing_in_the_process_that_made_it(tmp_path: Path) -> None:
    dataset = Dying("abc", {1}, tmp_path / "deaths")
    assert dataset[1] == "b" and dataset.deaths == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_dies_as_often_as_it_has_lives(tmp_path: Path, method: str) -> None:
    dataset = Dying(range(30), {3, 17}, tmp_path / "deaths", lives=2)
    settings: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method}
    assert_same_everywhere(lambda **given: penstock.DataLoader(dataset, batch_size=4, seed=0, **given), [settings])
    assert sorted(dataset.deaths) == ["17", "17", "3", "3"]


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])  # workers ignore the latter
def test_it_dies_by_the_signal_that_was_asked_for(tmp_path: Path, by: signal.Signals) -> None:
    dataset = Dying([0, 1], {1}, tmp_path / "deaths", lives=9, by=by)
    with (
        penstock.DataLoader(dataset, num_workers=1, retries=1, timeout=10, persistent_workers=False) as loader,
        pytest.raises(penstock.WorkerLost, match=by.name),
    ):
        list(loader)
    assert dataset.deaths == ["1", "1"]
