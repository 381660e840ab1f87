"""Orders: functions from (epoch, position) to a key."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from penstock.plan.order import Order, Sequential, Shuffled

ORDERS = [Sequential(20), Shuffled(20, seed=3)]


def keys(order: Order, epoch: int) -> list[int]:
    return [int(key) for key in order.at(epoch, np.arange(order.size(epoch)))]


def test_sequential_is_the_same_in_every_epoch() -> None:
    assert keys(Sequential(5), 0) == keys(Sequential(5), 7) == [0, 1, 2, 3, 4]


def test_shuffled_has_another_order_in_each_epoch() -> None:
    orders = {tuple(keys(Shuffled(20, seed=3), epoch)) for epoch in range(50)}
    assert len(orders) == 50


def test_shuffled_has_another_order_for_each_seed() -> None:
    orders = {tuple(keys(Shuffled(20, seed=seed), 0)) for seed in range(50)}
    assert len(orders) == 50


def test_a_later_epoch_is_not_the_first_epoch_of_the_next_seed() -> None:
    # torch's DistributedSampler adds seed and epoch, and so repeats itself over runs.
    assert keys(Shuffled(20, seed=0), 1) != keys(Shuffled(20, seed=1), 0)


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_is_a_plain_value(order: Order) -> None:
    copy = pickle.loads(pickle.dumps(order))
    assert copy == order
    assert keys(copy, 4) == keys(order, 4)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("position", [-1, 20])
def test_a_position_outside_is_an_error(order: Order, position: int) -> None:
    with pytest.raises(IndexError, match=f"{position}"):
        order.at(0, np.array([0, position]))


@pytest.mark.parametrize("order", [Sequential(0), Shuffled(0, seed=1)])
def test_an_empty_order_has_no_keys(order: Order) -> None:
    assert order.size(0) == 0
    assert keys(order, 0) == []
    with pytest.raises(IndexError):
        order.at(0, np.array([0]))


@pytest.mark.parametrize("order", ORDERS)
def test_keys_are_fresh_int64(order: Order) -> None:
    positions = np.arange(3)
    answer = order.at(0, positions)
    assert answer.dtype == np.int64
    assert not np.shares_memory(answer, positions)


@pytest.mark.parametrize("make", [Sequential, lambda n: Shuffled(n, 0)])
def test_negative_sizes_are_refused(make: type[Sequential]) -> None:
    with pytest.raises(ValueError, match="n is -1"):
        make(-1)
