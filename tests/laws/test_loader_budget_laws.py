"""Laws of loaders whose steps are computed by windows: rows of documents, token budgets and dealing by cost."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock
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
    dataset: Any, world: int, shape: dict[str, Any], data: st.DataObject, samples: Any, expected: Counter[int]
) -> None:
    """Reads some steps on each rank, then the rest from their states, on the same ranks and on others."""

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
        loader.load_state_dict(data.draw(st.sampled_from(states)))
        seen.update(number for b in loader.batches() for number in kept(samples, b.data, b.pad))
    assert seen == expected


def flat(batch: Any) -> Any:
    return [array.tolist() for array in batch] if isinstance(batch, tuple) else np.asarray(batch).tolist()


def kept(samples: Any, batch: Any, pad: int) -> list[int]:
    found: list[int] = samples(batch[: len(batch) - pad])
    return found
