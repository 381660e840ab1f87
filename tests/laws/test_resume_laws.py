"""Laws of resuming: an epoch that is stopped and goes on with other ranks, again and again, is that epoch."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import (
    DataLoader,
    Dataset,
    RandomSampler,
    StateError,
    SubsetRandomSampler,
    WeightedRandomSampler,
    rng,
)
from penstock._resume.state import Progress, State
from penstock.plan import OrderPlan, Sequential, Shuffled

# No deadline: another test on the same cores must not fail this one.
law = settings(deadline=None, max_examples=60)

ENDS: dict[str, dict[str, bool]] = {"keep": {}, "drop": {"drop_last": True}, "pad": {"padded": True}}


@law
@given(
    n=st.one_of(st.integers(0, 1 << 16), st.integers(1 << 22, 1 << 34)),
    shapes=st.lists(st.tuples(st.integers(1, 4096), st.integers(1, 300), st.integers(0, 40)), min_size=1, max_size=6),
    end=st.sampled_from(sorted(ENDS)),
    data=st.data(),
)
def test_up_to_4096_ranks_go_on_with_one_order(
    n: int, shapes: list[tuple[int, int, int]], end: str, data: st.DataObject
) -> None:
    """By simulation: some ranks of each world are asked for what they have, and which state they would give."""
    begin = State(0, 0)
    for world, size, count in shapes:
        start = begin.consumed or 0
        some = {0, world - 1, *data.draw(st.lists(st.integers(0, world - 1), max_size=6))}
        states: list[State] = []
        for rank in some:
            plan = OrderPlan(Sequential(n), size, **ENDS[end], rank=rank, world=world, start=start)
            first = plan.first_step
            progress = Progress(State(0, first, consumed=start), plan)
            for step in range(first, min(first + count, plan.steps(0))):
                keys = plan.keys(0, step)
                assert isinstance(keys, np.ndarray)
                at = start + ((step - first) * world + rank) * size
                real = range(min(at, n), min(at + size, n))
                pad = plan.pad(0, step)
                assert keys[: len(keys) - pad].tolist() == list(real)
                assert pad == (size - len(real) if end == "pad" else 0)
                progress.passed(step, None)
            if progress.steps == first + count:  # "keep": others may have had one step more
                states.append(State.parse(progress.as_dict()))
        assert states == states[:1] * len(states), "any rank's state does"
        if not states:
            return
        begin = states[0]
        if count:
            assert begin.consumed == min(start + count * world * size, n)


class Drawing(Dataset[Any]):
    """A sample is its key and a number of its own."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        return key, rng().random()

    @property
    def blocks(self) -> Any:
        return np.append(np.arange(0, self.n, 7), self.n)


ORDERS: dict[str, Any] = {
    "in sequence": lambda n: {},
    "shuffled": lambda n: {"shuffle": True},
    "shuffled by blocks": lambda n: {"shuffle": "blocks", "window": 3},
    "more than there are": lambda n: {"sampler": RandomSampler(range(n), num_samples=2 * n + 1)},
    "with replacement": lambda n: {"sampler": RandomSampler(range(n), replacement=True)},
    "a subset": lambda n: {"sampler": SubsetRandomSampler(list(range(0, n, 2)))},
    "weighted": lambda n: {"sampler": WeightedRandomSampler(np.arange(1, n + 1), n)},
}


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(1, 60),
    order=st.sampled_from(sorted(ORDERS)),
    shapes=st.lists(
        st.tuples(st.integers(2, 5), st.integers(1, 4), st.integers(0, 4)),
        max_size=4,
        unique_by=lambda shape: shape[0],
    ),
    last=st.tuples(st.integers(6, 7), st.integers(1, 4), st.sampled_from(["keep", "pad"])),
    epoch=st.integers(0, 2),
)
@example(10, "in sequence", [(5, 1, 1), (2, 2, 2)], (6, 1, "pad"), 0)  # in the last turn, of another shape
def test_loaders_go_on_with_the_ranks_of_another_world(
    n: int,
    order: str,
    shapes: list[tuple[int, int, int]],
    last: tuple[int, int, str],
    epoch: int,
) -> None:
    """Every sample once, with its random numbers, whatever the worlds; and the next epoch is a whole one."""

    def loaders(world: int, size: int, last_batch: str) -> list[DataLoader[Any]]:
        settings: dict[str, Any] = {"seed": 5, "last_batch": last_batch, **ORDERS[order](n)}
        return [DataLoader(Drawing(n), size, shard=(rank, world), **settings) for rank in range(world)]

    def real(batch: Any) -> list[tuple[int, float]]:
        keys, numbers = batch.data
        return list(zip(keys.tolist(), numbers.tolist(), strict=True))[: len(keys) - batch.pad]

    (alone,) = loaders(1, 1, "pad")
    alone.set_epoch(epoch)
    whole = [[row for batch in alone.batches() for row in real(batch)] for _ in range(2)]

    seen: list[tuple[int, float]] = []
    state = alone.state_dict() | {"epoch": epoch, "steps": 0}
    for world, size, count in shapes:
        ranks = loaders(world, size, "pad")
        for rank in ranks:
            rank.load_state_dict(state)
        readers = [rank.batches() for rank in ranks]
        for _ in range(count):
            seen += [row for reader in readers for batch in [next(reader, None)] if batch for row in real(batch)]
        states = {json.dumps(rank.state_dict()) for rank in ranks}
        assert len(states) == 1, "any rank's state does"
        state = json.loads(states.pop())
        for rank in loaders(world, size, "pad"):
            rank.load_state_dict(state)  # also where it was taken in the last turn
            assert rank.state_dict()["consumed"] == state["consumed"]
        if state["epoch"] != epoch:  # the loops have ended
            assert seen == whole[0]
            return
        assert seen == whole[0][: state["consumed"]]

    ranks = loaders(*last)
    for rank in ranks:
        rank.load_state_dict(state)
    lengths = [len(rank) for rank in ranks]
    readers = [rank.batches() for rank in ranks]
    assert [len(reader) for reader in readers] == lengths  # type: ignore[arg-type]
    turns = [list(reader) for reader in readers]
    for length, batches in zip(lengths, turns, strict=True):
        first = -(-state["consumed"] // (last[0] * last[1]))
        assert [batch.step for batch in batches] == list(range(first, length))
    for at in range(max(map(len, turns))):
        seen += [row for batches in turns if at < len(batches) for row in real(batches[at])]
    assert seen == whole[0]

    turns = [list(rank.batches()) for rank in ranks]
    again = []
    for at in range(max(map(len, turns))):
        again += [row for batches in turns if at < len(batches) for row in real(batches[at])]
    assert again == whole[1]


def test_a_state_of_the_last_turn_in_another_world_goes_on_to_the_next_epoch() -> None:
    """Five of ten are left: the last two of four steps of two ranks, of which a whole epoch has three."""
    alone = DataLoader(range(10), 5, seed=1)
    batches = iter(alone)
    next(batches)
    loader = DataLoader(range(10), 2, seed=1, shard=(0, 2), last_batch="keep")
    loader.load_state_dict(alone.state_dict())
    states = [loader.state_dict() for _ in loader]
    assert [(state["steps"], state["consumed"]) for state in states] == [(3, 9), (4, 10)]
    loader.load_state_dict(states[-1])
    assert list(loader) == []
    assert [batch.tolist() for batch in loader] == [[0, 1], [4, 5], [8, 9]]


def test_where_the_order_is_no_function_the_error_says_why() -> None:
    loader = DataLoader(range(20), 2, seed=0, sampler=list(range(20)), shard=(0, 2), last_batch="keep")
    batches = iter(loader)
    other = DataLoader(range(20), 2, seed=0, sampler=list(range(20)), shard=(0, 3), last_batch="keep")
    other.load_state_dict(loader.state_dict())  # before the first step it is nobody's
    next(batches)
    with pytest.raises(
        StateError, match=r"world=2, and here it is 3\. Only list knows the next samples, which were dealt to 2 "
    ):
        other.load_state_dict(loader.state_dict())


def test_out_of_order_the_error_says_why() -> None:
    state = DataLoader(range(20), 2, seed=0, shard=(0, 2)).state_dict()
    state |= {"steps": 1, "consumed": 4, "beyond": [[2, 3]]}
    DataLoader(range(20), 2, seed=0, shard=(1, 2)).load_state_dict(state)
    with pytest.raises(StateError, match=r"world=2, and here it is 1\. Its steps were not handed out in order"):
        DataLoader(range(20), 2, seed=0).load_state_dict(state)


def test_another_batch_size_goes_with_another_world_only() -> None:
    state = DataLoader(range(24), 2, seed=0, shard=(0, 2)).state_dict() | {"steps": 2, "consumed": 8}
    loader = DataLoader(range(24), 4, seed=0)
    loader.load_state_dict(state)
    assert next(iter(loader)).tolist() == [8, 9, 10, 11]
    with pytest.raises(StateError, match=r"batch_size was 2 .* and is 4"):
        DataLoader(range(24), 4, seed=0, shard=(0, 2)).load_state_dict(state)


def test_a_drawn_order_at_4096_ranks_is_found_at_once() -> None:
    """Ten billion samples, a third of them consumed by 4,096 ranks, go on with 1,000."""
    old = OrderPlan(Shuffled(10**10, 3), 64, padded=True, rank=7, world=4096)
    start = old.consumed(2, 12_000)
    new = OrderPlan(Shuffled(10**10, 3), 64, padded=True, rank=0, world=1000, start=start)
    assert new.keys(2, new.first_step).tolist() == Shuffled(10**10, 3).at(2, np.arange(start, start + 64)).tolist()  # type: ignore[union-attr]
