"""Orders: functions from (epoch, position) to a key."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.plan._blocks import BlockOrder
from penstock.plan._order import Drawn, Order, Selected, Sequential, Shuffled, Weighted

# All of 20 positions.
ORDERS: list[Order] = [
    Sequential(20),
    Shuffled(20, seed=3),
    Shuffled(50, seed=3, count=20),
    Shuffled(7, seed=3, count=20),
    Drawn(9, 20, seed=3),
    Weighted.by([1, 0, 2.5], 20, seed=3),
    Selected(Sequential(20), np.arange(100, 120)),
    Selected(Shuffled(20, seed=3), np.arange(100, 120)),
    BlockOrder(np.array([0, 3, 3, 8, 12, 16, 20]), window=3, seed=3),
]
OF_CHANCE = [order for order in ORDERS if "Sequential" not in repr(order)]


def keys(order: Order, epoch: int) -> list[int]:
    return [int(key) for key in order.at(epoch, np.arange(order.size(epoch)))]


def test_sequential_is_the_same_in_every_epoch() -> None:
    assert keys(Sequential(5), 0) == keys(Sequential(5), 7) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("order", OF_CHANCE)
def test_each_epoch_has_another_order(order: Order) -> None:
    assert len({tuple(keys(order, epoch)) for epoch in range(50)}) == 50


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: Shuffled(20, seed),
        lambda seed: Shuffled(7, seed, 20),
        lambda seed: Drawn(9, 20, seed),
        lambda seed: Weighted.by([1, 0, 2.5], 20, seed),
        lambda seed: BlockOrder(np.arange(0, 21, 4), 2, seed),
    ],
)
def test_each_seed_has_another_order(make: Any) -> None:
    assert len({tuple(keys(make(seed), 0)) for seed in range(50)}) == 50


def test_orders_never_change() -> None:
    # A saved run resumes only with the same order: a change here must be a decision.
    assert keys(Shuffled(3, 1, count=7), 2) == [2, 0, 1, 2, 1, 0, 1]
    assert keys(Drawn(10**12, 3, seed=1), 2) == [413685830182, 801010498469, 839980386233]
    assert keys(Weighted.by([1, 2, 3, 0], 8, seed=1), 2) == [1, 2, 2, 2, 2, 2, 2, 2]
    assert keys(BlockOrder(np.array([0, 3, 5, 8, 10]), window=3, seed=1), 2) == [8, 6, 7, 5, 0, 1, 9, 3, 2, 4]


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


@pytest.mark.parametrize("order", [Sequential(0), Shuffled(0, seed=1), BlockOrder(np.array([0]), 3, seed=1)])
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


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_answers_a_position_alone_as_in_company(order: Order) -> None:
    assert [int(order.at(4, np.array([at]))[0]) for at in range(20)] == keys(order, 4)


@pytest.mark.parametrize("make", [lambda: Shuffled(0, 1, 3), lambda: Drawn(0, 3, 1)])
def test_nothing_can_be_drawn_from_none(make: Any) -> None:
    with pytest.raises(ValueError, match="cannot draw 3 keys from an empty range"):
        make()


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1e308, 1e308]])
def test_weights_without_a_sum_are_refused(weights: list[float]) -> None:
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="finite number above zero"):
        Weighted.by(weights, 3, 1)


def test_orders_with_arrays_are_equal_by_value() -> None:
    assert Weighted.by([1, 2], 3, 1) == Weighted.by(np.array([1.0, 2.0]), 3, 1)
    assert Weighted.by([1, 2], 3, 1) != Weighted.by([1, 3], 3, 1)
    assert Weighted.by([1, 2], 3, 1) != Weighted.by([1, 2], 4, 1)
    assert Weighted.by([1, 2], 3, 1) != Weighted.by([1, 2], 3, 2)
    assert Selected(Sequential(2), np.array([1, 2])) == Selected(Sequential(2), np.array([1, 2]))
    assert Selected(Sequential(2), np.array([1, 2])) != Selected(Sequential(2), np.array([2, 1]))
    assert Selected(Sequential(2), np.array([1, 2])) != Selected(Shuffled(2, 0), np.array([1, 2]))
    assert Selected(Sequential(1), np.array([1])) != Weighted.by([1, 2], 3, 1)
    by_blocks = BlockOrder(np.array([0, 5, 9]), 3, 1)
    assert by_blocks == BlockOrder(np.array([0, 5, 9]), 3, 1)
    assert hash(by_blocks) == hash(BlockOrder(np.array([0, 5, 9]), 3, 1))
    assert by_blocks != BlockOrder(np.array([0, 4, 9]), 3, 1)
    assert by_blocks != BlockOrder(np.array([0, 5, 9]), 2, 1)
    assert by_blocks != BlockOrder(np.array([0, 5, 9]), 3, 2)
    assert by_blocks != Shuffled(9, 1)


def test_shuffled_in_turns_repeats_no_key_before_all_have_come() -> None:
    order = keys(Shuffled(7, 3, count=20), 0)
    turns = [order[:7], order[7:14], order[14:]]
    assert sorted(turns[0]) == sorted(turns[1]) == list(range(7))
    assert len(set(turns[2])) == 6
    assert turns[0] != turns[1]


def test_a_shorter_shuffle_is_the_beginning_of_the_whole() -> None:
    assert keys(Shuffled(50, 3, count=20), 1) == keys(Shuffled(50, 3), 1)[:20]


def test_the_edges_of_blocks_are_a_copy_that_cannot_change() -> None:
    edges = np.array([0, 5, 9])
    order = BlockOrder(edges, 3, 1)
    edges[1] = 7
    assert order.edges.tolist() == [0, 5, 9]
    with pytest.raises(ValueError, match="read-only"):
        order.edges[1] = 7


@pytest.mark.parametrize(
    ("edges", "window", "message"),
    [
        ([0, 5, 3, 9], 3, r"never decrease .*, but blocks\[2\] is 3 after 5"),
        ([1, 9], 3, r"begin with 0 .*, but blocks\[0\] is 1"),
        ([-1, 9], 3, r"blocks\[0\] is -1"),
        ([], 3, "shape"),
        (7, 3, "shape"),
        ([[0, 1]], 3, "shape"),
        ([0.0, 4.0], 3, "dtype float64"),
        ([0, 9], 0, "window must be a number of blocks of at least 1, got 0"),
        ([0, 9], True, "window must be a number of blocks of at least 1, got True"),
        ([0, (1 << 62) + 1], 3, "an order has 0 to"),
    ],
)
def test_wrong_blocks_are_refused(edges: Any, window: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        BlockOrder(edges, window, 1)


def test_selected_has_the_keys_in_the_order_of_their_numbers() -> None:
    chosen = np.array([30, 10, 30, 20])
    assert keys(Selected(Sequential(4), chosen), 0) == [30, 10, 30, 20]
    assert sorted(keys(Selected(Shuffled(4, 1), chosen), 0)) == [10, 20, 30, 30]


# Far positions and far epochs cost nothing, in time or memory.
@pytest.mark.parametrize(
    "order",
    [
        Shuffled(10**10, 1),
        Shuffled(10**10, 1, count=10**12),
        Drawn(10**10, 10**12, 1),
        Weighted.by([1, 2], 10**12, 1),
        BlockOrder(np.arange(0, 10**12 + 1, 10**9), 16, 1),
    ],
)
def test_an_order_costs_no_more_than_what_is_asked_of_it(order: Order) -> None:
    tracemalloc.start()
    try:
        assert order.at(10**6, np.arange(10**10 - 64, 10**10)).size == 64
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def excess(counts: NDArray[Any], expected: Any, freedom: int) -> float:
    """How many standard deviations chi-square lies above what chance gives."""
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - freedom) / math.sqrt(2 * freedom)


class TestDraws:
    @pytest.mark.parametrize("n", [2, 3, 7, 97, 1000])
    def test_every_key_is_equally_likely(self, n: int) -> None:
        drawn = np.concatenate([Drawn(n, 1000 * n, seed=5).at(epoch, np.arange(1000 * n)) for epoch in (0, 1)])
        assert excess(np.bincount(drawn, minlength=n), 2000, n - 1) < 4

    @pytest.mark.parametrize("n", [3, 10**10 + 19, 2**32 + 1, 2**53 + 5, 2**62])
    def test_every_part_of_many_keys_is_equally_likely(self, n: int) -> None:
        drawn = Drawn(n, 50_000, seed=5).at(0, np.arange(50_000))
        assert drawn.min() >= 0 and drawn.max() < n
        parts = min(n, 50)
        expected = 50_000 / parts
        assert excess(np.bincount((drawn / n * parts).astype(int), minlength=parts), expected, parts - 1) < 4

    @pytest.mark.parametrize("n", [2**53 + 5, 2**62])
    def test_keys_past_what_a_float_can_tell_are_drawn_too(self, n: int) -> None:
        assert 0.4 < (Drawn(n, 5000, seed=5).at(0, np.arange(5000)) % 2).mean() < 0.6

    def test_a_draw_tells_nothing_of_the_next(self) -> None:
        drawn = Drawn(11, 50_000, seed=5).at(0, np.arange(50_000))
        pairs = np.bincount(drawn[:-1] * 11 + drawn[1:], minlength=121)
        assert excess(pairs, 49_999 / 121, 100) < 4

    def test_a_position_tells_nothing_of_itself_in_the_next_epoch(self) -> None:
        one, next_one = (Drawn(11, 50_000, seed=5).at(epoch, np.arange(50_000)) for epoch in (0, 1))
        assert excess(np.bincount(one * 11 + next_one, minlength=121), 50_000 / 121, 100) < 4


class TestWeights:
    def test_keys_come_by_their_weights(self) -> None:
        weights = np.array([1, 0, 5, 2, 0.5, 1e-9])
        drawn = Weighted.by(weights, 100_000, seed=2).at(0, np.arange(100_000))
        counts = np.bincount(drawn, minlength=6)
        assert counts[1] == counts[5] == 0
        expected = weights[[0, 2, 3, 4]] / weights.sum() * 100_000
        assert excess(counts[[0, 2, 3, 4]], expected, 3) < 4

    @pytest.mark.parametrize("scale", [5e-324, 1e-300, 1.0, 1e300])
    def test_weights_of_any_size_draw_only_keys_that_have_one(self, scale: float) -> None:
        weights = np.array([0, 1, 1, 0, 1, 0]) * scale
        drawn = Weighted.by(weights, 10_000, seed=2).at(0, np.arange(10_000))
        assert set(drawn.tolist()) == {1, 2, 4}


# Primes, which have no divisors to hide behind, and the numbers beside them.
@pytest.mark.deep
@pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 11, 12, 13])
class TestSmallShuffles:
    def test_every_two_positions_have_any_two_keys(self, n: int) -> None:
        epochs = 300 * n
        orders = np.array([keys(Shuffled(n, 9), epoch) for epoch in range(epochs)])
        for one, other in [(0, 1), (0, n - 1), (n // 2, n - 1)]:
            if one != other:
                seen = Counter(zip(orders[:, one].tolist(), orders[:, other].tolist(), strict=True))
                counts = np.array([seen[pair] for pair in permutations(range(n), 2)])
                assert excess(counts, epochs / counts.size, max(1, counts.size - 1)) < 4.5

    def test_an_epoch_tells_nothing_of_the_next(self, n: int) -> None:
        epochs = 300 * n
        orders = np.array([keys(Shuffled(n, 9), epoch) for epoch in range(epochs + 1)])
        places = np.argsort(orders, axis=1)
        for key in (0, n - 1):
            moves = np.bincount(places[:-1, key] * n + places[1:, key], minlength=n * n)
            assert excess(moves, epochs / n**2, (n - 1) ** 2) < 4.5

    def test_every_two_keys_share_a_batch_as_often(self, n: int) -> None:
        epochs = 300 * n
        orders = np.array([keys(Shuffled(n, 9), epoch)[:2] for epoch in range(epochs)])
        seen = Counter(frozenset(pair) for pair in orders.tolist())
        counts = np.array(list(seen.values()))
        assert counts.size == n * (n - 1) // 2
        assert excess(counts, epochs / counts.size, max(1, counts.size - 1)) < 4


@pytest.mark.parametrize("n", [1009, 8191, 8209, 10_007, 65_537, 99_991])
def test_a_shuffle_has_no_rhythm(n: int) -> None:
    """The spectrum of keys over positions has no peak: its values are exponential, the largest near ln(n / 2)."""
    for epoch in range(4):
        order = Shuffled(n, 9).at(epoch, np.arange(n)).astype(np.float64)
        power = np.abs(np.fft.rfft((order - order.mean()) / order.std())[1:]) ** 2 / n
        assert power.max() < math.log(n / 2) + 10
        assert abs(power.mean() - 1) < 0.1
