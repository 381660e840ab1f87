"""The keyed permutation: a bijection that looks random, whatever its size."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.plan import _order as module
from penstock.plan._order import Permutation

SMALLEST_WITHOUT_TABLE = 8193


def whole(n: int, key: int) -> NDArray[np.int64]:
    return Permutation(n, key).at(np.arange(n))


@lru_cache(maxsize=7)
def many(n: int, keys: int) -> NDArray[np.int64]:
    return np.array([whole(n, key) for key in range(keys)])


def excess(counts: NDArray[Any], expected: Any, freedom: int) -> float:
    """How many standard deviations chi-square lies above what chance gives."""
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - freedom) / math.sqrt(2 * freedom)


def test_permutations_never_change() -> None:
    # A saved run resumes only with the same order: a change here must be a decision.
    assert whole(10, 42).tolist() == [7, 4, 2, 0, 3, 5, 8, 6, 1, 9]
    far = Permutation(10**10, 42).at(np.arange(5))
    assert far.tolist() == [3238540624, 2536905098, 542209812, 5752946637, 6013303912]


@pytest.mark.parametrize("n", [3, 4])
def test_every_order_of_a_few_elements_is_equally_likely(n: int) -> None:
    keys = 300 * math.factorial(n)
    seen = Counter(tuple(whole(n, key).tolist()) for key in range(keys))
    counts = np.array([seen[each] for each in permutations(range(n))])
    assert excess(counts, 300, counts.size - 1) < 4


def test_one_and_two_elements_are_permuted_too() -> None:
    assert whole(1, 9).tolist() == [0]
    firsts = [int(whole(2, key)[0]) for key in range(400)]
    assert 140 < sum(firsts) < 260


@pytest.mark.parametrize("n", [5, 16, 31, 64, 101])
def test_every_value_is_equally_likely_at_every_position(n: int) -> None:
    keys = 2000
    drawn = many(n, keys)
    counts = np.array([np.bincount(drawn[:, at], minlength=n) for at in range(n)])
    assert excess(counts, keys / n, (n - 1) ** 2) < 4


# Table: two primes. Rounds: a prime, a power of two and one more, a square, one with cells that walk.
@pytest.mark.deep
@pytest.mark.parametrize(
    ("n", "keys"),
    [(101, 4000), (1031, 1000), (8209, 120), (16384, 120), (16385, 120), (10000, 120), (9001, 120)],
)
class TestOrdersHaveNoStructure:
    def test_values_spread_evenly_over_positions(self, n: int, keys: int) -> None:
        bins = 40
        place = np.arange(n) * bins // n
        orders = many(n, keys)
        counts = np.zeros((bins, bins))
        np.add.at(counts, (np.broadcast_to(place, orders.shape), orders * bins // n), 1)
        sizes = np.bincount(place)
        assert excess(counts, np.outer(sizes, sizes) * keys / n, (bins - 1) ** 2) < 4

    def test_parity_is_not_kept(self, n: int, keys: int) -> None:
        evens = n - n // 2
        kept = ((many(n, keys) + np.arange(n)) % 2 == 0).mean()
        by_chance = (evens**2 + (n - evens) ** 2) / n**2
        assert abs(kept - by_chance) < 4 * 0.5 / math.sqrt(n * keys)

    def test_successors_are_as_rare_as_by_chance(self, n: int, keys: int) -> None:
        successors = (np.diff(many(n, keys), axis=1) == 1).sum(axis=1)
        assert abs(successors.mean() - (n - 1) / n) < 4 / math.sqrt(keys)

    def test_fixed_points_are_as_rare_as_by_chance(self, n: int, keys: int) -> None:
        fixed = (many(n, keys) == np.arange(n)).sum(axis=1)
        assert abs(fixed.mean() - 1) < 4 / math.sqrt(keys)

    def test_rises_and_falls_are_as_many_as_by_chance(self, n: int, keys: int) -> None:
        falls = (np.diff(many(n, keys), axis=1) < 0).sum(axis=1)
        assert abs(falls.mean() - (n - 1) / 2) < 4 * math.sqrt((n + 1) / 12 / keys)

    def test_positions_with_a_fixed_distance_differ_by_anything(self, n: int, keys: int) -> None:
        orders = many(n, keys)
        groups = min(n - 1, 200)
        bins = (np.arange(1, n) - 1) * groups // (n - 1)
        one_row = module._rectangle(n)[1]
        for distance in (1, one_row):
            difference = (orders[:, distance:] - orders[:, :-distance]) % n
            counts = np.bincount(bins, weights=np.bincount(difference.ravel(), minlength=n)[1:])
            assert excess(counts, np.bincount(bins) * difference.size / (n - 1), groups - 1) < 4

    def test_neighbouring_keys_give_unrelated_orders(self, n: int, keys: int) -> None:
        orders = many(n, keys)
        agreements = (orders[1:] == orders[:-1]).sum(axis=1)
        assert abs(agreements.mean() - 1) < 4 / math.sqrt(keys - 1)


@pytest.mark.parametrize("n", [10**6 + 3, 10**10 + 19, 2**61 - 1, 2**62])
def test_huge_permutations_keep_different_positions_apart(n: int) -> None:
    rng = np.random.default_rng(0)
    ends = np.arange(3000)
    positions = np.unique(np.concatenate([ends, n - 1 - ends, rng.integers(0, n, 3000)]))
    values = Permutation(n, 5).at(positions)
    assert len(np.unique(values)) == len(positions)
    assert values.min() >= 0
    assert values.max() < n
    assert abs(values.mean() / n - 0.5) < 0.05


def test_cells_outside_of_n_walk_back_in(monkeypatch: pytest.MonkeyPatch) -> None:
    # With 3 columns too many about every tenth cell walks, some of them twice.
    n = SMALLEST_WITHOUT_TABLE
    monkeypatch.setattr(module, "_rectangle", lambda n: (91, 100))
    assert sorted(whole(n, 4).tolist()) == list(range(n))


def test_any_subset_in_any_order_and_shape_agrees_with_the_whole() -> None:
    for n in (100, 10_007):
        all_of_it = whole(n, 8)
        positions = np.array([[3, 99], [99, 0]], dtype=np.uint8)
        assert Permutation(n, 8).at(positions).tolist() == all_of_it[positions].tolist()
        assert Permutation(n, 8).at(np.array([], dtype=np.int64)).tolist() == []


def test_the_positions_given_are_not_written_to() -> None:
    positions = np.arange(10_000)
    Permutation(10_000, 1).at(positions)
    assert positions.tolist() == list(range(10_000))


@pytest.mark.parametrize("n", [5, 10_000])
@pytest.mark.parametrize("wrong", [-1, "n", 2**62])
def test_a_position_outside_is_an_error_that_names_it(n: int, wrong: int | str) -> None:
    position = n if wrong == "n" else int(wrong)
    with pytest.raises(IndexError, match=f"position {position} is outside a permutation of {n}"):
        Permutation(n, 1).at(np.array([0, position]))


@pytest.mark.parametrize("n", [0, -1, 2**62 + 1])
def test_sizes_out_of_range_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match=str(n).replace("+", r"\+")):
        Permutation(n, 1)
