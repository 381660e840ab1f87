"""Laws of commit=True: what was committed never comes again, and what was not always does, in order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock
from penstock import DataLoader

EPOCHS = 3


class Counting(penstock.IterableDataset[int]):
    """A stream that knows its position and its epoch, and continues from a state. Each epoch has other items."""

    at = begin = epoch = 0

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        self.at, self.begin = self.begin, 0
        while self.at < self.n:
            self.at += 1
            yield self.epoch * self.n + self.at - 1
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> Any:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: Any) -> None:
        self.begin, self.epoch = state["at"], state["epoch"]


class Light(Counting):
    """The same, and its items are loaded by any worker."""

    def load(self, item: int) -> int:
        return -item


class Faulty(penstock.Dataset[int]):
    """Every third sample raises, so that some batches have no sample at all."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> int:
        if key % 3 == 0:
            raise ValueError(key)
        return key


def loader(kind: str, n: int, size: int, **more: Any) -> DataLoader[Any]:
    settings: dict[str, Any] = {"batch_size": size, "seed": 7, **more}
    if kind in ("a stream", "light items"):
        return DataLoader((Counting if kind == "a stream" else Light)(n), **settings)
    if kind == "skipped samples":
        return DataLoader(Faulty(n), shuffle=True, on_error="skip", **settings)
    if kind == "a sampler":
        return DataLoader(range(n), sampler=list(range(n))[::-1], **settings)
    if kind == "by length":
        lengths = [key * 7 % 5 + 1 for key in range(n)]
        return DataLoader(range(n), batch_tokens=size * 6, lengths=lengths, shuffle=True, seed=7, **more)
    if kind == "rollover":
        return DataLoader(range(n), shuffle=True, last_batch="rollover", **settings)
    return DataLoader(range(n), shuffle=kind == "shuffled", **settings)


KINDS = (
    "in sequence",
    "shuffled",
    "by length",
    "rollover",
    "a sampler",
    "a stream",
    "light items",
    "skipped samples",
)


class Seen(NamedTuple):
    epoch: int
    step: int
    data: tuple[Any, ...]


def seen(batch: Any) -> Seen:
    return Seen(batch.epoch, batch.step, tuple(batch.data.tolist()))


def read(loader: DataLoader[Any], until: int) -> Iterator[Any]:
    for _ in range(loader.epoch, until):
        yield from loader.batches()


@pytest.mark.filterwarnings("ignore:Every sample of epoch")
@settings(deadline=None, max_examples=80)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 9),
    size=st.integers(1, 3),
    # How many batches are taken before each stop, and the chance (in tenths) that an open batch is committed.
    stops=st.lists(st.tuples(st.integers(0, 14), st.integers(0, 10)), min_size=1, max_size=3),
    draw=st.randoms(use_true_random=False),
)
@example("a stream", 4, 2, [(3, 0), (2, 10)], None)
def test_what_was_committed_never_comes_again_and_what_was_not_always_does(
    kind: str, n: int, size: int, stops: list[tuple[int, int]], draw: Any
) -> None:
    """The committed batches of all runs are those of the undisturbed run, each once."""
    whole = [seen(batch) for batch in read(loader(kind, n, size, commit=True), EPOCHS)]
    committed: list[Seen] = []
    state: Any = None
    for take, chance in [*stops, (10**6, 10)]:
        one = loader(kind, n, size, commit=True)
        if state is not None:
            one.load_state_dict(state)
            assert one.state_dict() == state
        left = [each for each in whole if each not in set(committed)]
        open_batches: list[Any] = []
        for number, batch in enumerate(read(one, EPOCHS)):
            assert seen(batch) == left[number], "the rest comes in order"
            open_batches.append(batch)
            if draw is not None:
                draw.shuffle(open_batches)
            while open_batches and (chance == 10 or (draw is not None and draw.randrange(10) < chance)):
                done = open_batches.pop()
                one.commit(done)
                committed.append(seen(done))
            if number + 1 == take:
                break
        commits = one.stats().commits
        assert commits is not None and (commits.open, commits.twice) == (len(open_batches), 0)
        state = json.loads(json.dumps(one.state_dict()))
    assert Counter(committed) == Counter(whole)
    last = loader(kind, n, size, commit=True)
    last.load_state_dict(state)
    assert [*read(last, EPOCHS)] == []


@settings(deadline=None, max_examples=15)
@given(
    n=st.integers(1, 30),
    in_order=st.booleans(),
    take=st.integers(0, 20),
    backwards=st.booleans(),
)
def test_workers_and_the_order_of_delivery_change_nothing(n: int, in_order: bool, take: int, backwards: bool) -> None:
    workers: dict[str, Any] = {"num_workers": 2, "backend": "thread", "in_order": in_order}
    whole = {seen(batch) for batch in loader("shuffled", n, 2).batches()}
    with loader("shuffled", n, 2, commit=True, **workers) as first:
        taken = [batch for _, batch in zip(range(take), first.batches(), strict=False)]
        half = taken[::2][:: -1 if backwards else 1]
        for batch in half:
            first.commit(batch)
        state = json.loads(json.dumps(first.state_dict()))
    with loader("shuffled", n, 2, commit=True, **workers) as second:
        second.load_state_dict(state)
        again = [*map(seen, second.batches())] if state["epoch"] == 0 else []
    assert set(again) == whole - {*map(seen, half)}
    assert len(again) == len(set(again))
    assert not in_order or [each.step for each in again] == sorted(each.step for each in again)


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 40), count=st.integers(1, 5), world=st.integers(2, 4), other=st.integers(2, 4))
def test_ranks_that_have_committed_the_same_prefix_go_on_with_another_number_of_ranks(
    n: int, count: int, world: int, other: int
) -> None:
    def ranks(world: int) -> list[DataLoader[Any]]:
        return [loader("shuffled", n, 2, commit=True, shard=(rank, world)) for rank in range(world)]

    def real(batch: Any) -> list[int]:
        kept: list[int] = batch.index[: len(batch.index) - batch.pad].tolist()
        return kept

    used: list[int] = []
    states = []
    for one in ranks(world):
        taken = [batch for _, batch in zip(range(count + 2), one.batches(), strict=False)]
        for batch in reversed(taken[:count]):
            one.commit(batch)
            used += real(batch)
        states.append(one.state_dict())
    assert all(state == states[0] for state in states)
    if states[0]["epoch"] == 0:
        for one in ranks(other):
            one.load_state_dict(json.loads(json.dumps(states[0])))
            for batch in one.batches():
                used += real(batch)
    assert sorted(used) == list(range(n))
