"""States and the global generators: what the user's load_state_dict sets stays set, and what was not drawn yet."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    get_worker_info,
)

from penstock.torch import DataLoader

N = 12


class Drawing:
    """Draws its items from the global generators, whose states are a part of its own."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return int(torch.randint(N, ())) * 10_000 + random.randrange(100) * 100 + int(np.random.randint(100))

    def state_dict(self) -> dict[str, Any]:
        numpys = np.random.get_state(legacy=False)
        return {"at": self.at, "torch": torch.get_rng_state(), "random": random.getstate(), "numpy": numpys}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]
        torch.set_rng_state(state["torch"])
        random.setstate(state["random"])
        np.random.set_state(state["numpy"])


class OfIterators(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return Drawing()


class OwnIterator(Drawing, IterableDataset[int]):
    """The same object in each epoch: an epoch starts where `iter()` finds it."""


class Drawn(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return Drawing()


MADE: dict[str, Any] = {
    "iterator": lambda: DataLoader(OfIterators(), 2),
    "iterator of samples": lambda: DataLoader(OfIterators(), None),
    "its own iterator": lambda: DataLoader(OwnIterator(), 2),
    "sampler": lambda: DataLoader(range(10_000 * N), 2, sampler=Drawn()),
    "sampler of samples": lambda: DataLoader(range(10_000 * N), None, sampler=Drawn()),
}


def seed_all(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def items(batches: Any) -> list[Any]:
    return [torch.as_tensor(batch).tolist() for batch in batches]


# torch asks a sampler for its iterator, which has the state, together with the first keys.
@pytest.mark.parametrize(
    ("kind", "taken"), [(kind, taken) for kind in MADE for taken in (0, 1, 4) if taken or "sampler" not in kind]
)
def test_the_rest_is_drawn_from_the_generators_in_the_state(kind: str, taken: int) -> None:
    seed_all(1)
    loader = MADE[kind]()
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    state = loader.state_dict()
    expected = items(batches)
    seed_all(2)
    resumed = MADE[kind]()
    resumed.load_state_dict(state)
    assert items(resumed) == expected


class Random(Sampler[int]):
    """Draws from all global generators, when it is asked for its first key, or at once."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once

    def draw(self) -> list[int]:
        keys = torch.randperm(N).tolist()
        random.shuffle(keys)
        np.random.shuffle(keys)
        return keys

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw()) if self.at_once else (key for _ in [0] for key in self.draw())


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, key: int) -> Any:
        return torch.tensor([key, torch.rand((), dtype=torch.float64) if get_worker_info() else 0])


NEXT: dict[str, dict[str, Any]] = {
    "in sequence": {},
    "shuffled": {"shuffle": True},
    "with replacement": {"sampler": RandomSampler(range(N), replacement=True)},
    "a subset": {"sampler": SubsetRandomSampler(range(N))},
    "one's own": {"sampler": Random(at_once=False)},
    "one's own, at once": {"sampler": Random(at_once=True)},
    "batches of one's own, at once": {"batch_sampler": [[1], [2, 3]]},
}


WITH_WORKERS = [("in sequence", {"num_workers": 1}), ("one's own, at once", {"num_workers": 1})]
PERSISTENT: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}


@pytest.mark.parametrize(
    ("order", "how"), [*((order, {}) for order in NEXT), *WITH_WORKERS, ("shuffled", PERSISTENT)], ids=str
)
def test_an_epoch_that_is_to_begin_is_the_one_that_began_after_the_state_was_taken(
    order: str, how: dict[str, Any]
) -> None:
    """Before the first epoch, between two, and after `iter()`. The caller restores no generator."""

    def make() -> Any:
        return DataLoader(Noisy(), **NEXT[order], **how)

    seed_all(1)
    loader = make()
    found = []
    for _ in range(2):
        state = json.loads(json.dumps(loader.state_dict()))
        batches = iter(loader)
        begun = json.loads(json.dumps(loader.state_dict()))
        found += [(state, items(batches))]
        found += [(begun, found[-1][1])]
    if "persistent_workers" in how:
        found = found[:2]  # the generators of its workers are in the middle of their sequence afterwards
    for state, expected in found:
        seed_all(2)
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        resumed = make()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert items(resumed) == expected
        if state["torch"]["ahead"]:
            assert torch.equal(torch.get_rng_state(), before[0])
            assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]
