"""Laws of loaders whose steps are computed by windows: rows of documents, token budgets and dealing by cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock
from penstock.errors import StateError
from penstock.plan import Order
from penstock.plan._windows import ItemTable

law = settings(deadline=None, max_examples=60)

KINDS = st.sampled_from([False, True])


# Rows that are made of documents.


@dataclass(frozen=True)
class PairWindows:
    """Joins each two neighbours of a window of the order to one row. The parts are (document, begin, end)."""

    order: Order
    seed: int | None
    window: int

    def count(self, epoch: int) -> int:
        return -(-self.order.size(epoch) // self.window)

    def size(self, epoch: int, number: int) -> int:
        return len(self.table(epoch, number))

    def table(self, epoch: int, number: int) -> ItemTable:
        first = number * self.window
        keys = self.order.at(epoch, np.arange(first, min(first + self.window, self.order.size(epoch))))
        offsets = np.append(np.arange(0, len(keys), 2), len(keys))
        parts = np.stack([keys, np.zeros_like(keys), np.ones_like(keys)], axis=1)
        return ItemTable(offsets, parts)


class Pairs(penstock.Dataset[Any]):
    """A toy of `penstock.pack`: the sample of a key is the sum of its documents plus one, and their number."""

    def __init__(self, documents: Any, window: int = 7) -> None:
        self.documents, self.window = documents, window

    def __windows__(self, order: Order, seed: int | None) -> PairWindows:
        return PairWindows(order, seed, self.window)

    def __getitem__(self, key: tuple[int, ...]) -> NDArray[np.int64]:
        assert type(key) is tuple and len(key) in (3, 6), key
        numbers = [self.documents[document] for document in key[::3]]
        return np.array([*numbers, -1][:2])


def documents(batch: NDArray[np.int64]) -> list[int]:
    return [number for row in np.asarray(batch).tolist() for number in row if number >= 0]


def rows_of(loader: Any) -> list[list[list[int]]]:
    """Returns the batches without padding."""
    return [np.asarray(b.data)[: len(b.data) - b.pad].tolist() for b in loader.batches()]


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "batch_size": draw(st.integers(1, 5)),
        "shuffle": draw(KINDS),
        "seed": draw(st.integers(0, 5)),
        "last_batch": draw(st.sampled_from(["keep", "pad"])),
    }


@law
@given(n=st.integers(0, 60), window=st.integers(1, 20), world=st.integers(1, 5), shape=shapes())
def test_each_document_of_rows_comes_once_on_any_ranks(
    n: int, window: int, world: int, shape: dict[str, Any]
) -> None:
    data = Pairs(np.arange(n), window)
    loaders = [penstock.DataLoader(data, shard=(rank, world), **shape) for rank in range(world)]
    drawn = [rows_of(loader) for loader in loaders]
    seen = Counter(number for batches in drawn for batch in batches for number in documents(np.array(batch)))
    assert seen == Counter(range(n))
    assert [len(batches) for batches in drawn] == [len(loader) for loader in loaders]
    if shape["last_batch"] == "pad":
        assert len({len(batches) for batches in drawn}) == 1


@law
@given(n=st.integers(0, 60), window=st.integers(1, 20), world=st.integers(1, 4), shape=shapes(), data=st.data())
def test_a_state_of_rows_continues_on_any_ranks(
    n: int, window: int, world: int, shape: dict[str, Any], data: st.DataObject
) -> None:
    continues(Pairs(np.arange(n), window), world, shape, data, documents, Counter(range(n)))


def continues(
    dataset: Any,
    world: int,
    shape: dict[str, Any],
    data: st.DataObject,
    samples: Any,
    expected: Counter[int],
    refused: list[StateError] | None = None,
) -> None:
    """Reads some steps on each rank, then the rest from their states, on the same ranks and on others.

    With `refused`, another number of ranks may refuse the states. The errors are added to it.
    """

    def loaders(world: int) -> list[Any]:
        return [penstock.DataLoader(dataset, shard=(rank, world), **shape) for rank in range(world)]

    whole = [[(b.data, b.pad) for b in loader.batches()] for loader in loaders(world)]
    stop = data.draw(st.integers(0, min(map(len, whole))))
    states, first = [], loaders(world)
    for loader in first:
        steps = loader.batches()
        assert len(list(islice(steps, stop))) == stop
        states.append(json.loads(json.dumps(loader.state_dict())))
    seen = Counter(number for steps in whole for batch, pad in steps[:stop] for number in kept(samples, batch, pad))
    for rank, loader in enumerate(loaders(world)):
        loader.load_state_dict(states[rank])
        if states[rank]["epoch"] == 0:
            assert [flat(b.data) for b in loader.batches()] == [flat(batch) for batch, _ in whole[rank][stop:]]
    if states[0]["epoch"]:
        return
    others = loaders(data.draw(st.integers(1, 5)))
    for loader in others:
        try:
            loader.load_state_dict(data.draw(st.sampled_from(states)))
        except StateError as error:
            if refused is None:
                raise
            refused.append(error)
            return
        seen.update(number for b in loader.batches() for number in kept(samples, b.data, b.pad))
    assert seen == expected


def flat(batch: Any) -> Any:
    return [array.tolist() for array in batch] if isinstance(batch, tuple) else np.asarray(batch).tolist()


def kept(samples: Any, batch: Any, pad: int) -> list[int]:
    found: list[int] = samples(batch[: len(batch) - pad])
    return found


# Batches by a budget of tokens.

LENGTHS = st.one_of(
    st.lists(st.integers(0, 40), max_size=80),
    st.lists(st.sampled_from([0, 1, 2, 39, 40]), max_size=80),
    st.integers(0, 80).map(lambda n: [7] * n),
)


def samples(lengths: Sequence[int]) -> list[list[int]]:
    """Samples of these lengths. An element is the number of its sample, and tells it in a padded batch."""
    return [[number] * length for number, length in enumerate(lengths)]


@st.composite
def budgets(draw: st.DrawFn) -> dict[str, Any]:
    padding: dict[str, Any] = {"value": -1}
    width = draw(st.sampled_from(["multiple", "buckets"]))
    if width == "multiple":
        padding["multiple"] = draw(st.sampled_from([1, 4]))
    else:
        padding["buckets"] = [*sorted(draw(st.sets(st.integers(1, 39), max_size=3))), 40]
    if draw(KINDS):
        padding["max_length"] = 20
    return {
        "collate_fn": penstock.pad(**padding),
        "batch_tokens": draw(st.integers(48, 200)),
        "batch_multiple": draw(st.sampled_from([1, 1, 3])),
        "balance": draw(st.sampled_from([None, "tokens", "quadratic"])),
        "shuffle": draw(KINDS),
        "seed": draw(st.integers(0, 5)),
    }


def loader_of(lengths: Sequence[int], rank: int = 0, world: int = 1, **settings: Any) -> Any:
    return penstock.DataLoader(samples(lengths), lengths=lengths, shard=(rank, world), **settings)


@law
@given(lengths=LENGTHS, world=st.integers(1, 5), settings=budgets())
def test_each_sample_comes_once_within_the_budget_and_in_equal_steps(
    lengths: list[int], world: int, settings: dict[str, Any]
) -> None:
    seen, steps = Counter[int](), set()
    for rank in range(world):
        loader = loader_of(lengths, rank, world, **settings)
        batches = list(loader.batches())
        steps |= {len(batches), len(loader)}
        for batch in batches:
            values, its, _ = batch.data
            assert batch.index is not None
            keys = batch.index.tolist()
            pad = settings["collate_fn"]
            longest = max(min(lengths[key], pad.max_length or 40) for key in keys)
            buckets = [bucket for bucket in pad.buckets if bucket >= longest]
            assert values.shape == (len(keys), buckets[0] if buckets else -(-longest // pad.multiple) * pad.multiple)
            assert values.size > 0 or not longest
            assert values.size <= settings["batch_tokens"]
            assert its.tolist() == [min(lengths[key], pad.max_length or 40) for key in keys]
            seen.update(keys[: len(keys) - batch.pad])
    assert len(steps) == 1
    assert seen == Counter(range(len(lengths)))


@law
@given(lengths=LENGTHS, world=st.integers(1, 4), settings=budgets(), data=st.data())
def test_a_state_of_a_budget_continues_on_any_ranks(
    lengths: list[int], world: int, settings: dict[str, Any], data: st.DataObject
) -> None:
    settings |= {"collate_fn": keyed, "lengths": lengths}
    continues(Numbered(len(lengths)), world, settings, data, list, Counter(range(len(lengths))))


class Numbered(penstock.Dataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> int:
        return key


def keyed(keys: list[int]) -> list[int]:
    return keys


# A fixed batch size, dealt by cost.


@st.composite
def balances(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "batch_size": draw(st.integers(1, 4)),
        "last_batch": draw(st.sampled_from(["keep", "pad"])),
        "balance": draw(st.sampled_from(["tokens", "quadratic"])),
        "accumulate": draw(st.sampled_from([1, 1, 3])),
        "shuffle": draw(KINDS),
        "seed": draw(st.integers(0, 5)),
        "collate_fn": keyed,
    }


@law
@given(lengths=LENGTHS, world=st.integers(1, 4), settings=balances(), data=st.data())
def test_a_state_of_dealt_steps_continues_on_any_ranks(
    lengths: list[int], world: int, settings: dict[str, Any], data: st.DataObject
) -> None:
    settings |= {"lengths": lengths}
    together = settings["accumulate"]
    refused: list[StateError] = []
    continues(Numbered(len(lengths)), world, settings, data, list, Counter(range(len(lengths))), refused)
    assert together > 1 or not refused
    assert all("dealt together" in str(error) for error in refused)


def test_a_state_inside_the_first_steps_dealt_together_is_refused_on_other_ranks() -> None:
    settings: dict[str, Any] = {
        "batch_size": 1,
        "balance": "tokens",
        "accumulate": 3,
        "lengths": [1, 2, 3],
        "seed": 0,
    }
    loader: Any = penstock.DataLoader(Numbered(3), **settings)
    next(iter(loader))
    other: Any = penstock.DataLoader(Numbered(3), shard=(0, 2), **settings)
    with pytest.raises(StateError, match="after 1 of 3 steps whose samples were dealt together"):
        other.load_state_dict(loader.state_dict())


@law
@given(lengths=LENGTHS, world=st.integers(1, 4), settings=balances())
def test_dealing_by_cost_keeps_the_samples_of_each_group_of_steps(
    lengths: list[int], world: int, settings: dict[str, Any]
) -> None:
    groups: list[Counter[tuple[int, int]]] = []
    together = settings["accumulate"]
    for more in ({}, {"balance": None, "accumulate": 1}):
        seen: Counter[tuple[int, int]] = Counter()
        for rank in range(world):
            measured = {} if more else {"lengths": lengths}
            loader = penstock.DataLoader(
                Numbered(len(lengths)), shard=(rank, world), **{**settings, **measured, **more}
            )
            for step, keys in enumerate(loader):
                seen.update((step // together, key) for key in keys)
        groups.append(seen)
    assert groups[0] == groups[1]


# Workers, and damaged states.

DATA_OF_ALL_KINDS: list[tuple[Any, dict[str, Any]]] = [
    (Pairs(np.arange(40)), {"batch_size": 3}),
    (Numbered(60), {"batch_tokens": 40, "lengths": np.arange(60) % 11, "collate_fn": keyed}),
    (
        Numbered(60),
        {"batch_size": 4, "balance": "tokens", "accumulate": 2, "lengths": np.arange(60) % 11, "collate_fn": keyed},
    ),
]


@pytest.mark.parametrize("number", range(3))
def test_workers_give_the_same_stream_in_every_epoch(number: int) -> None:
    dataset, settings = DATA_OF_ALL_KINDS[number]
    streams = []
    for workers in (0, 2):
        with penstock.DataLoader(dataset, shuffle=True, seed=3, num_workers=workers, **settings) as loader:
            streams.append([[np.asarray(batch).tolist() for batch in loader] for _ in range(3)])
    assert streams[0] == streams[1]
    assert streams[0][0] != streams[0][1]


@law
@given(number=st.integers(0, 2), data=st.data())
def test_damaged_numbers_in_a_state_are_refused_and_never_raise_anything_else(
    number: int, data: st.DataObject
) -> None:
    dataset, settings = DATA_OF_ALL_KINDS[number]

    def loader(world: int) -> Any:
        return penstock.DataLoader(dataset, shuffle=True, seed=3, shard=(0, world), **settings)

    first = loader(2)
    steps = iter(first)
    for _ in range(data.draw(st.integers(0, 3))):
        next(steps)
    state = first.state_dict()
    wrong = st.one_of(
        st.integers(0, 9), st.integers(0, 1 << 64), st.sampled_from([1 << 32, 1 << 48, (2 << 48) + 1, None])
    )
    state |= {
        name: data.draw(wrong) for name in data.draw(st.sets(st.sampled_from(["consumed", "steps"]), min_size=1))
    }
    other = loader(data.draw(st.integers(1, 3)))
    try:
        other.load_state_dict(state)
    except StateError:
        assert isinstance(len(other), int)  # unchanged
    else:
        assert isinstance(len(other), int)
        list(other)


@law
@given(lengths=LENGTHS, world=st.integers(1, 5), settings=budgets(), rows=KINDS)
def test_dropping_leaves_equal_steps_and_no_sample_twice(
    lengths: list[int], world: int, settings: dict[str, Any], rows: bool
) -> None:
    settings |= {"collate_fn": keyed, "lengths": lengths, "last_batch": "drop"}
    dataset: Any = Numbered(len(lengths))
    if rows:
        dataset, settings = Pairs(np.arange(len(lengths))), {"batch_size": 3, "last_batch": "drop", "seed": 1}
    drawn = []
    for rank in range(world):
        loader = penstock.DataLoader(dataset, shard=(rank, world), **settings)
        drawn.append([documents(np.asarray(batch)) if rows else batch for batch in loader])
        assert len(loader) == len(drawn[0])
    assert len({len(batches) for batches in drawn}) == 1
    seen = Counter(key for batches in drawn for batch in batches for key in batch)
    assert set(seen) <= set(range(len(lengths)))
    assert max(seen.values(), default=1) == 1
