"""Laws of last_batch="rollover": the epochs are one order after the other, cut into full steps."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DataLoader, IterableDataset, StateError
from penstock.plan._order import Drawn, Order, Sequential, Shuffled
from penstock.plan._plan import OrderPlan

law = settings(deadline=None, max_examples=80)
EPOCHS = 6


@st.composite
def orders(draw: st.DrawFn) -> Order:
    n, seed = draw(st.integers(1, 40)), draw(st.integers(0, 2**64 - 1))
    return draw(st.sampled_from([Sequential(n), Shuffled(n, seed), Drawn(n, draw(st.integers(0, 50)), seed)]))


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def ranks(order: Order, size: int | None, world: int) -> list[OrderPlan]:
    return [OrderPlan(order, size, rank=rank, world=world, rollover=True) for rank in range(world)]


def keys(plan: OrderPlan, epoch: int, start: int = 0) -> list[list[int]]:
    return [np.atleast_1d(step).tolist() for step in plan.draw(epoch, start)]


@law
@given(order=orders(), size=st.one_of(st.none(), st.integers(1, 60)), world=st.integers(1, 4))
def test_epochs_of_all_ranks_one_after_the_other_are_their_orders(order: Order, size: int | None, world: int) -> None:
    plans, seen = ranks(order, size, world), []
    for epoch in range(EPOCHS):
        shares = [keys(plan, epoch) for plan in plans]
        assert {len(share) for share in shares} == {plans[0].steps(epoch)}
        for step in zip(*shares, strict=True):
            assert {len(block) for block in step} == {size or 1}
            seen += [key for block in step for key in block]
        # An epoch leaves less than a step of all ranks for the next.
        assert 0 <= (epoch + 1) * order.size(0) - len(seen) < (size or 1) * world
    whole = [order.at(epoch, np.arange(order.size(epoch))).tolist() for epoch in range(EPOCHS)]
    assert seen == flat(whole)[: len(seen)]


@law
@given(
    order=orders(),
    size=st.integers(1, 60),
    world=st.integers(1, 4),
    epoch=st.integers(0, 10**12),
    data=st.data(),
)
def test_any_step_of_any_epoch_is_found_at_once(order: Order, size: int, world: int, epoch: int, data: Any) -> None:
    plan = ranks(order, size, world)[data.draw(st.integers(0, world - 1))]
    steps = keys(plan, epoch)
    assert len(steps) == plan.steps(epoch)
    for step, expected in enumerate(steps):
        assert plan.keys(epoch, step).tolist() == expected  # type: ignore[union-attr]
        assert plan.pad(epoch, step) == 0
        assert keys(plan, epoch, step) == steps[step:]


def test_ten_billion_samples_cost_nothing() -> None:
    plan = OrderPlan(Shuffled(10**10 + 7, 3), 256, rank=77, world=4096, rollover=True)
    assert plan.keys(999, 0).size == plan.keys(999, plan.steps(999) - 1).size == 256  # type: ignore[union-attr]


@pytest.mark.parametrize("other", [{"padded": True}, {"drop_last": True}, {"start": 3}])
def test_it_goes_with_no_other_end_and_from_the_beginning(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"rolled over|rollover"):
        OrderPlan(Sequential(5), 2, rollover=True, **other)


# The loader.


def batches(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("workers", [{}, {"backend": "thread"}, {"multiprocessing_context": "fork"}], ids=str)
def test_what_is_left_over_begins_the_next_epoch(workers: dict[str, Any]) -> None:
    settings = {"num_workers": 2, **workers} if workers else {}
    with DataLoader(range(10), 4, last_batch="rollover", **settings) as loader:
        lengths, epochs = [], []
        for _ in range(3):
            lengths.append(len(loader))
            stream = iter(loader)
            assert len(stream) == lengths[-1]
            epochs.append([batch.tolist() for batch in stream])
    assert epochs == [
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]],
        [[0, 1, 2, 3], [4, 5, 6, 7]],
    ]
    assert lengths == [2, 3, 2]


def test_ranks_share_the_epochs_in_a_row() -> None:
    shares = []
    for rank in range(2):
        loader = DataLoader(range(11), 2, shard=(rank, 2), seed=0, last_batch="rollover")
        shares.append([[batch.tolist() for batch in loader] for _ in range(4)])
    assert [len(epoch) for epoch in shares[0]] == [len(epoch) for epoch in shares[1]] == [2, 3, 3, 3]
    steps = zip(flat(shares[0]), flat(shares[1]), strict=True)
    assert flat(map(flat, steps)) == [*range(11)] * 4


def test_the_keys_of_an_epoch_are_those_of_its_batches() -> None:
    loader = DataLoader(range(10), 4, last_batch="rollover")
    list(loader)
    stream = loader.batches()
    index = [batch.index.tolist() for batch in stream]
    assert list(loader.sampler) == flat(index) and len(loader.sampler) == 12
    assert list(loader.batch_sampler) == index


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 30), size=st.integers(1, 9), stop=st.integers(0, 20))
def test_a_run_that_stopped_goes_on(n: int, size: int, stop: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(range(n), size, shuffle=True, seed=4, last_batch="rollover")

    whole, loader, after = make(), make(), make()
    stream, seen = iter(loader), []
    while len(seen) < stop:
        batch = next(stream, None)
        if batch is None:
            stream = iter(loader)
        else:
            seen.append(batch.tolist())
    after.load_state_dict(loader.state_dict())
    seen += batches(after) + batches(after)
    assert seen == flat(batches(whole) for _ in range(after.epoch + 1))


@pytest.mark.parametrize("taken", [0, 1])
def test_another_number_of_ranks_cannot_go_on(taken: int) -> None:
    def make(world: int, last_batch: str) -> DataLoader[Any]:
        return DataLoader(range(20), 2, shard=(0, world), seed=0, last_batch=last_batch)

    loader = make(2, "rollover")
    stream = iter(loader)
    for _ in range(taken):
        next(stream)
    for last_batch in ("rollover", "drop"):
        with pytest.raises(StateError, match="samples that earlier epochs left over"):
            make(3, last_batch).load_state_dict(loader.state_dict())


def test_torchs_face_rolls_over_too() -> None:
    pytest.importorskip("torch")
    from penstock.torch import DataLoader as TorchLoader

    loader = TorchLoader(range(10), 4, seed=0, last_batch="rollover")
    assert [(len(loader), [batch.tolist() for batch in loader]) for _ in range(2)] == [
        (2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (3, [[8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]),
    ]


@pytest.mark.parametrize(
    ("dataset", "kwargs", "message"),
    [
        (range(5), {"batch_size": None}, 'last_batch="rollover" works only if the loader makes the batches'),
        (range(5), {"batch_sampler": [[1]]}, 'last_batch="rollover" works only if the loader makes the batches'),
        (range(5), {"batch_size": 2, "sampler": [1, 2]}, "a sampler of your own"),
        (range(5), {"batch_size": 2, "drop_last": True}, 'drop_last=True means last_batch="drop"'),
    ],
)
def test_where_it_cannot_be_had_it_is_refused(dataset: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(dataset, last_batch="rollover", **kwargs)


def test_a_stream_cannot_be_rolled_over() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(ValueError, match="with a stream: the number of batches"):
        DataLoader(Stream(), 2, last_batch="rollover")
