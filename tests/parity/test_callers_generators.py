"""The caller's own generators (torch's, numpy's, Python's) are after every call where torch's loader leaves them.

A program is a list of operations on a few iterators of one loader. It runs on torch's loader and on ours; with
`seed=` and in the core the same programs must leave all generators alone.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as theirs
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
import penstock.torch
from parity import sources
from parity.pair import Tape, both, forget_frames, randomness

WIDE = "PENSTOCK_WIDE" in os.environ
pytestmark = pytest.mark.timeout(900 if WIDE else 120)


class Drawing(theirs.Sampler[Any]):
    """Draws from all three generators: some in `iter`, some for each key."""

    def __init__(self, n: int, early: bool) -> None:
        self.n, self.early = n, early

    def __iter__(self) -> Any:
        if self.early:
            random.random(), np.random.rand(), torch.rand(1)
            return iter(range(self.n))
        return self._late()

    def _late(self) -> Any:
        for key in range(self.n):
            random.random(), np.random.rand(), torch.rand(1)
            yield key

    def __len__(self) -> int:
        return self.n


class Nested(sources.Noisy):
    """Each sample is made by another loader. In the caller's process it draws from the caller's generators."""

    inner: Any = None

    def __getitem__(self, key: int) -> Any:
        first = [batch["key"] for batch in self.inner]  # to its end
        for batch in self.inner:  # left early
            first.append(batch["noise"])
            break
        iter(self.inner)  # begun, and never used
        return first, super().__getitem__(key)


ORDERS: dict[str, Any] = {
    "in order": lambda data: {},
    "shuffled": lambda data: {"shuffle": True},
    "shuffled, batches of 2": lambda data: {"shuffle": True, "batch_size": 2},
    "shuffled, with a generator": lambda data: {
        "shuffle": True,
        "generator": torch.Generator().manual_seed(5),
    },
    "in order, with a generator": lambda data: {
        "generator": torch.Generator().manual_seed(5),
        "batch_size": 2,
    },
    "with replacement": lambda data: {"sampler": theirs.RandomSampler(data, replacement=True, num_samples=40)},
    "weighted": lambda data: {"sampler": theirs.WeightedRandomSampler([1.0] * len(data), len(data))},
    "subset": lambda data: {"sampler": theirs.SubsetRandomSampler(range(len(data)))},
    "draws late": lambda data: {"sampler": Drawing(len(data), early=False)},
    "draws early": lambda data: {"sampler": Drawing(len(data), early=True)},
    "batches drawn late": lambda data: {
        "batch_sampler": theirs.BatchSampler(Drawing(len(data), early=False), 2, False)
    },
    "not batched": lambda data: {"batch_size": None, "shuffle": True},
}
DATA: dict[str, Any] = {
    "noisy": lambda kind: sources.Noisy(6),
    "a single one": lambda kind: sources.Noisy(1),
    "with errors": lambda kind: sources.Noisy(6, frozenset({0, 3})),
    "many": lambda kind: sources.NoisyMany(6),
    "nested": lambda kind: nested(kind),
}
STREAMS: dict[str, Any] = {
    "stream": lambda kind: sources.NoisyStream(5),
    "stream with an error": lambda kind: sources.NoisyStream(5, frozenset({2})),
}


def nested(kind: Any) -> Nested:
    data = Nested(3)
    data.inner = kind(sources.Noisy(4), batch_size=2, shuffle=True)
    return data


OPERATIONS = st.lists(
    st.sampled_from(["begin", "begin", "next", "next", "next", "end", "drop", "drop first", "draw", "close"]),
    min_size=1,
    max_size=12,
)


def perform(operations: list[str], loader: Any, tape: Tape) -> None:
    """Runs the program. After each operation the tape has the state of every generator."""
    iterators: list[Any] = []
    generator = getattr(loader, "generator", None)
    generators = [generator] if isinstance(generator, torch.Generator) else []
    for what in operations:
        try:
            if what == "begin":
                iterators.append(iter(loader))
            elif what == "next" and iterators:
                next(iterators[-1], None)
            elif what == "end" and iterators:
                for _ in iterators[-1]:
                    pass
            elif what == "drop" and iterators:
                iterators.pop()
            elif what == "drop first" and iterators:
                iterators.pop(0)
            elif what == "close" and iterators and hasattr(iterators[-1], "_shutdown_workers"):
                iterators.pop()._shutdown_workers()
            elif what == "draw":
                random.random(), np.random.standard_normal(), torch.rand(2)
        except Exception as error:
            tape.append((what, type(forget_frames(error))))
        tape.append((what, randomness(*generators)))


CASES = st.one_of(
    st.tuples(st.sampled_from(sorted(DATA)), st.sampled_from(sorted(ORDERS))),
    st.tuples(st.sampled_from(sorted(STREAMS)), st.just("in order")),
)


def made(kind: Any, case: tuple[str, str], **more: Any) -> Any:
    data = {**DATA, **STREAMS}[case[0]](kind)
    order = ORDERS[case[1]](data)
    return kind(data, **{**order, **more})


@given(CASES, OPERATIONS)
@settings(max_examples=1000 if WIDE else 60, deadline=None)
def test_without_workers_they_are_where_torch_leaves_them(case: Any, operations: list[str]) -> None:
    both(lambda kind, tape: perform(operations, made(kind, case), tape))


@given(CASES, OPERATIONS, st.booleans(), st.booleans())
@settings(max_examples=100 if WIDE else 10, deadline=None)
def test_with_workers_they_are_where_torch_leaves_them(
    case: Any, operations: list[str], persistent: bool, in_order: bool
) -> None:
    if persistent:
        operations = [what for what in operations if what != "close"]  # torch's persistent iterator stays closed
    more = {"num_workers": 1, "persistent_workers": persistent, "in_order": in_order}
    both(lambda kind, tape: perform(operations, made(kind, case, **more), tape))


def untouched(operations: list[str], loader: Any) -> None:
    """Only the program's own draws move the generators."""
    expected: Tape = []
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    for what in operations:
        if what == "draw":
            random.random(), np.random.standard_normal(), torch.rand(2)
        expected.append(randomness())
    random.setstate(states[0]), np.random.set_state(states[1]), torch.set_rng_state(states[2])
    tape: Tape = []
    perform(operations, loader, tape)
    found = [{name: state[name] for name in expected[0]} for _, state in tape if isinstance(state, dict)]
    assert found == expected


@given(CASES, OPERATIONS)
@settings(max_examples=500 if WIDE else 40, deadline=None)
def test_with_a_seed_they_are_untouched_without_workers(case: Any, operations: list[str]) -> None:
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    untouched(operations, made(seeded, case))


@given(CASES, OPERATIONS)
@settings(max_examples=100 if WIDE else 6, deadline=None)
def test_with_a_seed_they_are_untouched_with_workers(case: Any, operations: list[str]) -> None:
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    untouched(operations, made(seeded, case, num_workers=1))


def seeded(data: Any, generator: Any = None, **more: Any) -> Any:
    return penstock.torch.DataLoader(data, seed=3, **more)  # which takes no generator beside it


class Draws:
    """A dataset of the core. It draws from numpy's generator and Python's."""

    bad = frozenset({3})

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: int) -> Any:
        for _ in self.inner or ():
            break
        if key in self.bad:
            raise ValueError(key)
        return key, random.random(), np.random.standard_normal()


CORE: dict[str, Any] = {
    "plain": {},
    "shuffled": {"shuffle": True},
    "skipping": {"shuffle": True, "on_error": "skip", "batch_size": 2},
    "replacing": {"on_error": "replace", "batch_size": 2},
    "weighted": {"sampler": penstock.WeightedRandomSampler([1.0] * 6, 6)},
}


@pytest.mark.parametrize("settings_of", CORE)
@given(OPERATIONS, st.booleans())
@settings(max_examples=200 if WIDE else 10, deadline=None)
def test_in_the_core_they_are_untouched(settings_of: str, operations: list[str], nested: bool) -> None:
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    inner = penstock.DataLoader(Draws(), seed=4, shuffle=True) if nested else None
    loader = penstock.DataLoader(Draws(inner), seed=3, **CORE[settings_of])
    untouched(operations, loader)
