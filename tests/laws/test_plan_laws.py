"""Laws of plans: order is a function, and every key has its place."""

from __future__ import annotations

from itertools import islice
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StateError
from penstock.plan import BlockOrder
from penstock.plan import _order as permutation_module
from penstock.plan._order import Order, Permutation, Sequential, Shuffled
from penstock.plan._plan import OrderPlan, SamplerPlan
from penstock.plan._samplers import BatchSampler, DistributedSampler, RandomSampler, SubsetRandomSampler

KEYS = st.integers(-(2**70), 2**70)
SIZES = st.one_of(st.integers(0, 60), st.integers(0, 20_000))
EPOCHS = st.integers(0, 5)

# No deadline: another test on the same cores must not fail this one.
law = settings(deadline=None)


@st.composite
def orders(draw: st.DrawFn) -> Order:
    n = draw(SIZES)
    kind = draw(st.sampled_from([Sequential, Shuffled, BlockOrder]))
    if kind is BlockOrder:
        edges = np.append(np.arange(0, n, draw(st.integers(1, 500))), n)
        return BlockOrder(edges, draw(st.integers(1, 9)), draw(KEYS))
    return Sequential(n) if kind is Sequential else Shuffled(n, draw(KEYS))


@st.composite
def plans(draw: st.DrawFn, batched: bool = True) -> OrderPlan:
    order = draw(orders())
    if not batched and draw(st.booleans()):
        return OrderPlan(order, None, False)
    return OrderPlan(order, draw(st.one_of(st.integers(1, 9), st.integers(1, 9000))), draw(st.booleans()))


def lists(steps: Any) -> list[Any]:
    return [step.tolist() if isinstance(step, np.ndarray) else step for step in steps]


@law
@given(n=st.integers(1, 3000), key=KEYS)
def test_a_permutation_is_a_bijection(n: int, key: int) -> None:
    assert np.array_equal(np.sort(Permutation(n, key).at(np.arange(n))), np.arange(n))


@law
@given(n=st.one_of(st.integers(1, 3000), st.integers(8190, 12_000)), key=KEYS)
def test_a_permutation_by_rounds_is_a_bijection(n: int, key: int) -> None:
    with patch.object(permutation_module, "_TABLE", 0):
        assert np.array_equal(np.sort(Permutation(n, key).at(np.arange(n))), np.arange(n))


@law
@given(n=st.integers(1, 2**62), key=KEYS, data=st.data())
def test_a_permutation_answers_a_position_alone_as_in_company(n: int, key: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20))
    permutation = Permutation(n, key)
    together = permutation.at(np.array(positions)).tolist()
    assert together == [int(permutation.at(np.array([each]))[0]) for each in positions]
    assert all(0 <= value < n for value in together)
    assert len(set(together)) == len(set(positions))


@law
@given(plan=plans(), epoch=EPOCHS)
def test_every_key_comes_exactly_once_in_an_epoch(plan: OrderPlan, epoch: int) -> None:
    steps = list(plan.draw(epoch))
    drawn = np.concatenate([np.empty(0, dtype=np.int64), *steps])
    n, size = plan.order.size(epoch), plan.batch_size or 1
    assert len(steps) == plan.steps(epoch)
    assert all(len(step) == size for step in steps[:-1])
    assert len(np.unique(drawn)) == len(drawn) == (n // size * size if plan.drop_last else n)
    assert not len(drawn) or (drawn.min() >= 0 and drawn.max() < n)


@law
@given(plan=plans(batched=False), epoch=EPOCHS, data=st.data())
def test_a_later_start_is_the_draw_without_its_head(plan: OrderPlan, epoch: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, plan.steps(epoch) + 2))
    assert lists(plan.draw(epoch, start)) == lists(islice(plan.draw(epoch), start, None))


@law
@given(plan=plans(batched=False), epoch=EPOCHS, data=st.data())
def test_keys_of_a_step_are_those_that_draw_gives(plan: OrderPlan, epoch: int, data: st.DataObject) -> None:
    steps = lists(plan.draw(epoch))
    if steps:
        step = data.draw(st.integers(0, len(steps) - 1))
        assert lists([plan.keys(epoch, step)]) == [steps[step]]


@law
@given(order=orders(), epoch=EPOCHS, size=st.integers(1, 50))
def test_a_plan_over_keys_one_by_one_is_the_sampler_plan_of_them(order: Order, epoch: int, size: int) -> None:
    keys = order.at(epoch, np.arange(order.size(epoch))).tolist()
    for drop_last in (False, True):
        ours, foreign = OrderPlan(order, size, drop_last), SamplerPlan(keys, size, drop_last)
        assert lists(ours.draw(epoch)) == list(foreign.draw(epoch))
        assert ours.steps(epoch) == foreign.steps(epoch)
        batches = SamplerPlan(BatchSampler(keys, size, drop_last), batched=True)
        assert list(batches.draw(epoch)) == list(foreign.draw(epoch))


@law
@given(n=st.integers(0, 300), size=st.integers(1, 20), drop_last=st.booleans(), start=st.integers(0, 40))
def test_a_sampler_starts_late_by_dropping_steps(n: int, size: int, drop_last: bool, start: int) -> None:
    plan = SamplerPlan(range(n), size, drop_last)
    whole = list(plan.draw(0))
    if start <= len(whole):
        assert list(plan.draw(0, start)) == whole[start:]
        return
    with pytest.raises(StateError, match=f"after {start} batches, but now there are only {len(whole)}"):
        next(plan.draw(0, start))


@law
@given(n=st.integers(1, 200), world=st.integers(1, 9), seed=KEYS, epoch=EPOCHS, drop_last=st.booleans())
def test_ranks_share_one_order_evenly(n: int, world: int, seed: int, epoch: int, drop_last: bool) -> None:
    shares = []
    for rank in range(world):
        sampler = DistributedSampler(range(n), world, rank, seed=seed, drop_last=drop_last)
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
        assert len(shares[-1]) == len(sampler)
    assert len(set(map(len, shares))) == 1
    together = [key for keys in zip(*shares, strict=True) for key in keys]
    order = Shuffled(n, seed).at(epoch, np.arange(n)).tolist()
    if drop_last:
        assert together == order[: n // world * world]
    else:
        assert together == (order * (1 + world))[: len(together)]
        assert set(together) == set(range(n))


@law
@given(n=st.integers(1, 300), count=st.integers(1, 700), seed=st.integers(0, 2**32))
def test_a_random_sampler_repeats_no_key_before_all_have_come(n: int, count: int, seed: int) -> None:
    keys = list(RandomSampler(range(n), num_samples=count, generator=np.random.default_rng(seed)))
    assert len(keys) == count
    for start in range(0, count, n):
        turn = keys[start : start + n]
        assert len(set(turn)) == len(turn)
        assert set(turn) <= set(range(n))


@law
@given(indices=st.lists(st.integers(), max_size=200), seed=st.integers(0, 2**32))
def test_a_subset_sampler_keeps_every_index(indices: list[int], seed: int) -> None:
    drawn = list(SubsetRandomSampler(indices, generator=np.random.default_rng(seed)))
    assert sorted(drawn) == sorted(indices)
