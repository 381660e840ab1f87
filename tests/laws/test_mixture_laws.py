"""Laws of mixtures: shares are exact in every prefix, positions can be computed alone, no sample is skipped."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.plan._blocks import BlockOrder
from penstock.plan._grouping import Grouping
from penstock.plan._mixture import UNIT, MixtureOrder, Schedule, Stage, whole_weights
from penstock.plan._order import Permutations

law = settings(deadline=None, max_examples=25)
few = settings(deadline=None, max_examples=8)

WEIGHT = st.one_of(st.fractions(0, 1), st.floats(-18, 0).map(lambda power: Fraction(10**power)), st.just(Fraction(1)))


@st.composite
def weight_lists(draw: st.DrawFn, sources: int | None = None) -> tuple[int, ...]:
    size = sources or draw(st.integers(1, 9))
    found = draw(st.lists(WEIGHT, min_size=size, max_size=size))
    found[draw(st.integers(0, size - 1))] += 1
    return whole_weights(found)


def positive(weights: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(filter(None, weights))


def prefixes(schedule: Schedule, first: int, pages: int) -> NDArray[Any]:
    """Returns how many samples each source has given before each position of these pages, by counting."""
    found = [schedule.page_at(first + page).sources for page in range(pages)]
    given = np.concatenate(found)[:, None] == np.arange(len(schedule.weights))
    begin = np.array(schedule.counts(first * schedule.page), object)
    return begin + np.vstack([np.zeros(given.shape[1], int), given.cumsum(axis=0)])


def check_exact(schedule: Schedule, first: int, pages: int) -> None:
    counts = prefixes(schedule, first, pages)
    positions = first * schedule.page + np.arange(len(counts)).astype(object)
    lag = counts * UNIT - positions[:, None] * np.array(schedule.weights, object)
    assert (abs(lag) < UNIT).all()


@law
@given(weights=weight_lists(), seed=st.integers(0, 99), page=st.one_of(st.integers(0, 3), st.integers(0, 1 << 44)))
def test_each_source_is_within_one_sample_of_its_share_in_every_prefix(
    weights: tuple[int, ...], seed: int, page: int
) -> None:
    check_exact(Schedule(positive(weights), seed), page, 2)


@pytest.mark.parametrize("kind", ["equal", "harmonic", "rare"])
def test_hundreds_of_sources_are_within_one_sample_in_every_prefix(kind: str) -> None:
    weights = {
        "equal": [Fraction(1)] * 300,
        "harmonic": [Fraction(1, k) for k in range(1, 301)],
        "rare": [Fraction(1, 10**7)] * 299 + [Fraction(1)],
    }[kind]
    check_exact(Schedule(whole_weights(weights), 1), 5, 1)


def test_a_weight_of_1e_7_gives_each_of_its_samples_in_its_window() -> None:
    weights = whole_weights([Fraction(7, 10), Fraction(3, 10) - Fraction(1, 10**7), Fraction(1, 10**7)])
    schedule = Schedule(weights, 4)
    positions = range(0, 50_000_000, 1_250_000)
    counts = [schedule.counts(position)[2] for position in positions]
    assert all(abs(count - place / 10**7) < 1 for count, place in zip(counts, positions, strict=True))
    assert all(one <= other for one, other in pairwise(counts))
    assert counts[-1] in (4, 5)


@law
@given(st.lists(WEIGHT, min_size=1, max_size=30).filter(any))
def test_whole_weights_sum_to_the_unit_and_keep_what_is_above_zero(weights: list[Fraction]) -> None:
    found = whole_weights(weights)
    assert sum(found) == UNIT
    assert [bool(weight) for weight in found] == [bool(weight) for weight in weights]
    total = sum(weights)
    assert all(abs(a - w * UNIT / total) < len(weights) + 1 for a, w in zip(found, weights, strict=True))


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.7, 0.2, 0.1), (0.25, 0.75)])
def test_short_weights_are_not_periodic(weights: tuple[float, ...]) -> None:
    schedule = Schedule(whole_weights([Fraction(w) for w in weights]), 2)
    first = np.concatenate([schedule.page_at(page).sources == 0 for page in range(8)]).astype(float)
    first -= first.mean()
    own = float(first @ first)
    # Neighbours depend on each other, because the shares are exact. Positions far apart do not.
    far = [abs(float(first[lag:] @ first[:-lag])) / own for lag in range(100, 4200)]
    assert max(far) < 0.1
    assert len({schedule.page_at(page).sources.tobytes() for page in range(8)}) == 8


def test_a_rare_sample_may_be_anywhere_in_its_window() -> None:
    weights = whole_weights([Fraction(1, 2), Fraction(1, 2) - Fraction(1, 10_000), Fraction(1, 10_000)])
    found = []
    for seed in range(60):
        schedule = Schedule(weights, seed)
        sources = np.concatenate([schedule.page_at(page).sources for page in range(3)])
        found.append(int(np.flatnonzero(sources == 2)[0]))
    assert min(found) < 2_000 and max(found) > 8_000
    assert 10 < sum(position < 5_000 for position in found) < 50


# Orders.


@st.composite
def mixtures(draw: st.DrawFn, stop: str | None = None, changes: int = 2) -> MixtureOrder:
    sources = draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(1, 300), min_size=sources, max_size=sources))
    order = MixtureOrder(
        tuple(lengths),
        (Stage(0, 0, draw(weight_lists(sources))),),
        draw(st.integers(0, 99)),
        stop or draw(st.sampled_from(["never", "first", "all"])),  # type: ignore[arg-type]
        draw(st.booleans()),
        labels=tuple(range(7, 7 + sources)),
    )
    for position in sorted(draw(st.sets(st.integers(1, 700), max_size=changes))):
        order = order.reweighed(0, min(position, order.size(0)), draw(weight_lists(sources)))
    return order


MOST = 3_000


def parts(order: MixtureOrder, keys: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Returns source, pass and index of each key."""
    passes, inside = np.divmod(keys, sum(order.lengths))
    firsts = np.cumsum([0, *order.lengths])
    sources = firsts.searchsorted(inside, "right") - 1
    return sources, passes, inside - firsts[sources]


@law
@given(order=mixtures(), seed=st.integers(0, 99))
def test_any_positions_alone_have_the_keys_that_they_have_in_sequence(order: MixtureOrder, seed: int) -> None:
    size = min(order.size(0), MOST)
    keys = order.at(0, np.arange(size))
    some = np.random.default_rng(seed).permutation(size)[:40]
    again = MixtureOrder(order.lengths, order.stages, order.seed, order.stop, order.shuffle, labels=order.labels)
    assert again == order and again.identity == order.identity
    assert again.at(0, some).tolist() == keys[some].tolist()
    with pytest.raises(IndexError):
        order.at(0, np.array([order.size(0)]))


@law
@given(order=mixtures())
def test_no_sample_is_repeated_or_skipped_in_a_pass_of_its_source_whatever_the_stages(order: MixtureOrder) -> None:
    sources, passes, index = parts(order, order.at(0, np.arange(min(order.size(0), MOST))))
    for source, length in enumerate(order.lengths):
        mine = np.flatnonzero(sources == source)
        assert (passes[mine] == np.arange(len(mine)) // length).all()
        for first in range(0, len(mine), length):
            one = index[mine[first : first + length]].tolist()
            assert len(set(one)) == len(one) and (len(one) < length or sorted(one) == [*range(length)])
            assert order.shuffle or one == [*range(len(one))]


@law
@given(order=mixtures(), place=st.integers(0, MOST))
def test_counts_are_those_of_the_samples_before(order: MixtureOrder, place: int) -> None:
    place = min(place, order.size(0))
    sources, _, _ = parts(order, order.at(0, np.arange(place)))
    assert order.counts(0, place).tolist() == np.bincount(sources, minlength=len(order.lengths)).tolist()


@law
@given(order=mixtures(stop="never"))
def test_each_stage_is_within_one_sample_of_its_own_shares(order: MixtureOrder) -> None:
    sources, _ = order.given(0, np.arange(1_000))
    ends = [*(stage.position for stage in order.stages[1:]), 1_000]
    for stage, end in zip(order.stages, ends, strict=True):
        counts = Counter[int]()
        for n, source in enumerate(sources[stage.position : end].tolist(), 1):
            counts[source] += 1
            assert all(abs(counts[i] * UNIT - n * weight) < UNIT for i, weight in enumerate(stage.weights))


@law
@given(order=mixtures(stop="never"), change=st.integers(1, 900))
def test_a_change_of_weights_leaves_what_was_before(order: MixtureOrder, change: int) -> None:
    other = order.reweighed(0, change, whole_weights([Fraction(1)] * len(order.lengths)))
    before = np.arange(change)
    assert other.at(0, before).tolist() == order.at(0, before).tolist()


def enough(order: MixtureOrder, counts: Counter[int], position: int) -> bool:
    """True if an epoch ends at this position, by the weights there."""
    weights = [stage.weights for stage in order.stages if stage.position <= position][-1]
    done = [counts[source] >= order.lengths[source] for source, weight in enumerate(weights) if weight]
    return any(done) if order.stop == "first" else all(done)


@settings(law, phases=[Phase.generate])
@given(order=mixtures(stop="first") | mixtures(stop="all"))
def test_an_epoch_ends_where_counting_says(order: MixtureOrder) -> None:
    size = order.size(0)
    counts = Counter[int]()
    for position, source in enumerate(order.given(0, np.arange(min(size, MOST)))[0].tolist()):
        assert not enough(order, counts, position), "it has ended before"
        counts[source] += 1
    if size <= MOST:
        before = MixtureOrder(
            order.lengths, tuple(s for s in order.stages if s.position < max(1, size)), 0, order.stop
        )
        assert enough(order, counts, size) or enough(before, counts, size)


@few
@given(st.integers(0, 99))
def test_each_epoch_begins_with_the_first_pass_in_another_order(seed: int) -> None:
    order = MixtureOrder((50, 70), (Stage(0, 0, whole_weights([Fraction(1), Fraction(2)])),), seed, "first")
    one, other = (order.at(epoch, np.arange(order.size(epoch))) for epoch in (0, 1))
    assert one[:50].tolist() != other[:50].tolist()
    assert max(one.max(), other.max()) < 120


@few
@given(seed=st.integers(0, 99), by_block=st.booleans())
def test_each_pass_over_a_source_is_in_another_order(seed: int, by_block: bool) -> None:
    blocks = (Grouping(np.arange(0, 51, 5)), None) if by_block else ()
    stages = (Stage(0, 0, whole_weights([Fraction(1), Fraction(1)])),)
    order = MixtureOrder((50, 70), stages, seed, blocks=blocks)
    sources, passes, index = parts(order, order.at(0, np.arange(400)))
    for source in (0, 1):
        first, second = (index[(sources == source) & (passes == number)].tolist() for number in (0, 1))
        assert sorted(first) == sorted(second) and first != second


def test_the_sources_come_in_another_order_in_each_epoch() -> None:
    order = MixtureOrder((50, 70), (Stage(0, 0, whole_weights([Fraction(1), Fraction(2)])),), 1)
    one, other = (order.given(epoch, np.arange(100))[0].tolist() for epoch in (0, 1))
    assert one != other


def test_the_weights_at_the_end_of_an_epoch_are_those_of_the_next() -> None:
    first, second = (whole_weights([Fraction(a), Fraction(1)]) for a in (3, 1))
    order = MixtureOrder((50, 70), (Stage(0, 0, first),), 1).reweighed(1, 40, second)
    shares = [[order.counts(epoch, place)[0] for place in (40, 80)] for epoch in (0, 1, 2)]
    assert shares == [[30, 60], [30, 50], [20, 40]]


@few
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=40), seed=st.integers(0, 99))
def test_blocks_of_a_source_are_respected(sizes: list[int], seed: int) -> None:
    edges = np.cumsum([0, *sizes, 5])
    grouping = Grouping(edges)
    lengths = (int(edges[-1]), 30)
    stages = (Stage(0, 0, whole_weights([Fraction(1), Fraction(1)])),)
    order = MixtureOrder(lengths, stages, seed, "never", True, (grouping, None), window=3)
    sources, passes, index = parts(order, order.at(0, np.arange(4 * lengths[0])))
    first = index[(sources == 0) & (passes == 0)]
    assert sorted(first.tolist()) == [*range(lengths[0])]
    blocks = edges.searchsorted(first, "right") - 1
    places = {block: np.flatnonzero(blocks == block) for block in set(blocks.tolist())}
    open_at = [sum(at[0] <= place <= at[-1] for at in places.values()) for place in range(len(first))]
    assert max(open_at) <= BlockOrder(edges, 3, 0).window


@law
@given(sizes=st.lists(st.integers(1, 3_000), min_size=1, max_size=4), key=st.integers(0, 1 << 60))
def test_permutations_have_each_element_once(sizes: list[int], key: int) -> None:
    found = Permutations(sizes)
    for which, n in enumerate(sizes):
        same = np.full(n, which), np.full(n, key + which, np.uint64)
        assert sorted(found.at(*same, np.arange(n)).tolist()) == [*range(n)]


@pytest.mark.parametrize("n", [3, 5, 90, 20_000])
def test_each_element_of_a_permutation_is_equally_likely_at_each_position(n: int) -> None:
    tries, found = 6_000, Permutations([n])
    keys = np.random.default_rng(0).integers(0, 1 << 63, tries).astype(np.uint64)
    for position in (0, n // 2, n - 1):
        values = found.at(np.zeros(tries, np.int64), keys, np.full(tries, position)) * min(n, 10) // n
        counts = np.bincount(values, minlength=min(n, 10))
        expected = tries / len(counts)
        assert ((counts - expected) ** 2 / expected).sum() < 40  # 9 degrees of freedom: p = 1e-5
