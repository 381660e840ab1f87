"""A state taken anywhere goes on from there, on another number of workers, and nothing is read twice or lost."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from same import same

from penstock import DataLoader, Dataset, IterableDataset, StateError

N = 23


class Noisy(Dataset[Any]):
    """What is in a sample depends on the generators, so a step that is not itself shows."""

    def __init__(self, n: int = N, bad: int = -1) -> None:
        self.n = n
        self.bad = bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        if key == self.bad:
            raise KeyError(key)
        return key, random.random(), np.random.random()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        yield from range(N)


class Light(Stream):
    def load(self, item: int) -> Any:
        return item, random.random()


class Backwards:
    """A sampler of the user's."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(N - 1, -1, -1))


SOURCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "shuffled": (Noisy(), {"batch_size": 4, "shuffle": True}),
    "in sequence, the rest dropped": (Noisy(), {"batch_size": 4, "drop_last": True}),
    "not batched": (Noisy(), {"batch_size": None, "shuffle": True}),
    "a sampler": (Noisy(), {"batch_size": 4, "sampler": Backwards()}),
    "a batch sampler": (Noisy(), {"batch_sampler": [[3, 1], [2], [5, 6, 7], [0]]}),
    "a stream": (Stream(), {"batch_size": 4}),
    "a stream of light items": (Light(), {"batch_size": 4}),
    "a stream, not batched": (Stream(), {"batch_size": None}),
}


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(state)
    assert len(text) < 1024
    return json.loads(text)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_from_any_step_on_the_rest_is_the_same(make: Any, name: str) -> None:
    dataset, settings = SOURCES[name]
    if make_is_threads(make):
        pytest.skip("threads draw from the caller's generators: only their keys are a function of the seed")
    whole: list[Any] = []
    states: list[dict[str, Any]] = []
    loader = make(dataset, seed=3, **settings)
    for _ in range(2):
        states.append(loader.state_dict())
        for batch in loader:
            whole.append(batch)
            states.append(loader.state_dict())
    per_epoch = len(whole) // 2
    other = make(dataset, seed=3, **settings)
    for index, state in enumerate(states):
        other.load_state_dict(through_a_file(state))
        assert other.state_dict() == state, "right after it was loaded"
        in_second = index > per_epoch  # each epoch has one state more than batches: that before its first
        assert same(list(other), whole[index - in_second : per_epoch * (1 + in_second)])
        if not in_second:
            assert same(list(other), whole[per_epoch:]), "and the next epoch"


def make_is_threads(make: Any) -> bool:
    return bool(make([0]).backend == "thread")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_state_is_loaded_by_a_loader_with_other_workers(workers: int) -> None:
    whole = list(DataLoader(Noisy(), 4, shuffle=True, seed=3))
    taken = DataLoader(Noisy(), 4, shuffle=True, seed=3, num_workers=1)
    with taken, DataLoader(Noisy(), 4, shuffle=True, seed=3, num_workers=workers) as loader:
        batches = iter(taken)
        for _ in range(3):
            next(batches)
        loader.load_state_dict(through_a_file(taken.state_dict()))
        assert same(list(loader), whole[3:])
        assert loader.epoch == 0
        assert [batch.step for batch in taken.batches()] == list(range(6))


def test_steps_keep_their_numbers() -> None:
    loader = DataLoader(Noisy(), 4, seed=3)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    loader.load_state_dict(state)
    found = list(loader.batches())
    assert [batch.step for batch in found] == [1, 2, 3, 4, 5]
    index = found[0].index
    assert index is not None and index.tolist() == [4, 5, 6, 7]


def test_without_a_seed_the_one_that_was_drawn_is_in_the_state() -> None:
    first = DataLoader(Noisy(), 4, shuffle=True)
    batches = iter(first)
    next(batches)
    state = through_a_file(first.state_dict())
    rest = list(batches)
    second = DataLoader(Noisy(), 4, shuffle=True)
    second.load_state_dict(state)
    assert same(list(second), rest)
    assert second.seed == first.seed


def test_out_of_order_each_step_comes_exactly_once(make_concurrent: Any) -> None:
    loader = make_concurrent(Noisy(), batch_size=2, seed=1, in_order=False)
    for stop in (1, 4, 7):
        loader.set_epoch(0)
        seen = []
        for batch in loader.batches():
            seen.append(batch.step)
            if len(seen) == stop:
                break
        loader.load_state_dict(through_a_file(loader.state_dict()))
        seen += [batch.step for batch in loader.batches()]
        assert sorted(seen) == list(range(12))


def test_a_step_that_failed_has_been_handed_out(make: Any) -> None:
    loader = make(Noisy(bad=5), batch_size=4, seed=1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(KeyError):
        next(batches)
    loader.load_state_dict(loader.state_dict())
    assert [batch.step for batch in loader.batches()] == [2, 3, 4, 5]


def test_in_the_last_turn_of_a_loop_nothing_is_left_of_the_epoch() -> None:
    loader = DataLoader(Noisy(), 4, seed=1)
    for _ in loader:
        last = loader.state_dict()
    after = loader.state_dict()
    assert (last["epoch"], last["steps"]) == (0, 6)
    assert (after["epoch"], after["steps"]) == (1, 0)
    loader.load_state_dict(last)
    assert list(loader) == []
    assert loader.state_dict() == after
    loader.load_state_dict(after)
    assert len(list(loader)) == 6


def test_a_new_epoch_forgets_a_state() -> None:
    loader = DataLoader(Noisy(), 4, seed=1)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    loader.set_epoch(0)
    assert len(list(loader)) == 6


GOOD = DataLoader(Noisy(), 4, shuffle=True, seed=3).state_dict()

BROKEN: dict[str, tuple[Any, str]] = {
    "no dict": ([1], "not list"),
    "a foreign one": ({"_snapshot": 1}, "no field 'penstock', but '_snapshot'"),
    "empty": ({}, "nothing"),
    "a later version": ({**GOOD, "penstock": 99}, "version 99"),
    "a truncated one": ({"penstock": 1, "epoch": 0}, "no 'steps', 'beyond'"),
    "a negative step": ({**GOOD, "steps": -1}, "'steps' is -1"),
    "a step that is none": ({**GOOD, "steps": "3"}, "'steps' is '3'"),
    "a bool": ({**GOOD, "epoch": True}, "'epoch' is True"),
    "steps beyond that are none": ({**GOOD, "beyond": 7}, "'beyond' is 7"),
    "steps beyond that overlap": ({**GOOD, "beyond": [[2, 4], [3, 5]]}, "'beyond' is"),
    "nothing about the loader": ({**GOOD, "about": None}, "'about' is None"),
    "another length": ({**GOOD, "about": {**GOOD["about"], "length": 5}}, "length was 5 .* and is 23"),
    "another order": ({**GOOD, "about": {**GOOD["about"], "order": "x"}}, "order was 'x'"),
    "another batch size": ({**GOOD, "about": {**GOOD["about"], "batch_size": 8}}, "batch_size was 8"),
    "another seed": ({**GOOD, "seed": 4}, "seed was 4 .* and is 3"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_state_that_does_not_fit_says_why_and_changes_nothing(name: str) -> None:
    state, why = BROKEN[name]
    loader = DataLoader(Noisy(), 4, shuffle=True, seed=3)
    whole = list(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    next(batches)
    before = loader.state_dict()
    with pytest.raises(StateError, match=why):
        loader.load_state_dict(state)
    assert loader.state_dict() == before
    assert same(list(batches), whole[1:])


def test_resuming_late_costs_no_more_than_beginning() -> None:
    """Positions are drawn, not the steps before them: far out in an epoch nothing is slower."""
    asked: list[int] = []

    class Counted(Noisy):
        def __getitem__(self, key: int) -> Any:
            asked.append(key)
            return key

    loader = DataLoader(Counted(10**9), 4, seed=3)
    loader.load_state_dict({**loader.state_dict(), "steps": 200_000_000, "consumed": 800_000_000})
    assert next(iter(loader)).tolist() == [800_000_000 + i for i in range(4)]
    assert len(asked) == 4
