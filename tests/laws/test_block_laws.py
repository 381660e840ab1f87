"""Laws of block orders: every key once, few blocks at a time, and each block only during its span."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.plan import BlockOrder
from penstock.plan._blocks import _strides
from penstock.plan._seeds import hashes

# No deadline: another test on the same cores must not fail this one.
law = settings(deadline=None, max_examples=60)

Numbers = NDArray[np.int64]


@st.composite
def block_orders(draw: st.DrawFn) -> BlockOrder:
    """Of up to 70 blocks: equal or not, some without keys, one perhaps much larger than the others."""
    sizes = draw(st.lists(st.integers(0, 12), max_size=70) | st.integers(0, 70).map(lambda count: [5] * count))
    if sizes and draw(st.booleans()):
        sizes[draw(st.integers(0, len(sizes) - 1))] = draw(st.integers(100, 9000))
    return BlockOrder(np.cumsum([0, *sizes]), draw(st.integers(1, 80)), draw(st.integers(0, 2**64 - 1)))


def all_keys(order: BlockOrder, epoch: int) -> Numbers:
    return order.at(epoch, np.arange(order.size(epoch)))


def blocks_at(order: BlockOrder, epoch: int) -> Numbers:
    """The block of the key at each position."""
    return order.edges.searchsorted(all_keys(order, epoch), "right") - 1


@law
@given(order=block_orders(), epoch=st.integers(0, 3))
@example(BlockOrder(np.array([0]), 3, 1), 0)
def test_every_key_comes_exactly_once(order: BlockOrder, epoch: int) -> None:
    assert np.array_equal(np.sort(all_keys(order, epoch)), np.arange(order.size(epoch)))


@law
@given(order=block_orders(), epoch=st.integers(0, 3))
def test_a_block_is_needed_only_within_its_span(order: BlockOrder, epoch: int) -> None:
    first, stop = order.spans(epoch)
    blocks, positions = blocks_at(order, epoch), np.arange(order.size(epoch))
    assert len(first) == len(stop) == len(order.edges) - 1
    assert (first[blocks] <= positions).all() and (positions < stop[blocks]).all()
    assert (first <= stop).all() and (not len(stop) or (first.min() >= 0 and stop.max() <= order.size(epoch)))


@law
@given(order=block_orders(), epoch=st.integers(0, 3))
def test_at_any_position_at_most_a_window_of_blocks_is_live(order: BlockOrder, epoch: int) -> None:
    first, stop = order.spans(epoch)
    for position in np.unique(first):  # the number can grow only where a span begins
        assert np.count_nonzero((first <= position) & (position < stop)) <= order.window


@law
@given(order=block_orders(), epoch=st.integers(0, 3))
@example(BlockOrder(np.array([0, 100, 100, 100, 101]), 3, 0), 0)
def test_the_next_blocks_fit_into_the_window_too(order: BlockOrder, epoch: int) -> None:
    """A reader that fetches what the next stretch needs, while it still holds what this one needs."""
    first, stop = (each[np.diff(order.edges) > 0] for each in order.spans(epoch))  # an empty block takes no memory
    stretches = np.unique(first[first < stop])
    for one, after in pairwise(stretches):
        needed = np.count_nonzero((first <= after) & (one < stop) & (first < stop))
        assert needed <= max(order.window, 2)


@law
@given(order=block_orders(), epoch=st.integers(0, 3), data=st.data())
def test_a_position_is_answered_alone_as_in_company(order: BlockOrder, epoch: int, data: st.DataObject) -> None:
    n = order.size(epoch)
    if n:
        some = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8))
        assert [order.at(epoch, np.array([at])).item() for at in some] == all_keys(order, epoch)[some].tolist()


@law
@given(order=block_orders())
def test_a_window_of_all_blocks_shuffles_all_keys_together(order: BlockOrder) -> None:
    whole = BlockOrder(order.edges, max(1, len(order.edges) - 1), order.seed)
    first, stop = whole.spans(0)
    assert set(first.tolist()) <= {0} and set(stop.tolist()) <= {order.size(0)}


@law
@given(sizes=st.lists(st.integers(1, 50) | st.integers(1, 2**62), min_size=1, max_size=20), key=st.integers(0, 99))
def test_a_stride_is_a_permutation_and_its_products_fit(sizes: list[int], key: int) -> None:
    strides = _strides(np.array(sizes), hashes(key, np.arange(len(sizes)))).tolist()
    for size, stride in zip(sizes, strides, strict=True):
        assert math.gcd(size, stride) == 1
        assert stride >= 1 and (size - 1) * stride + size < 1 << 63


# Statistics, with a fixed seed: they cannot fail by chance.

EQUAL = BlockOrder(np.arange(0, 49, 4), window=6, seed=3)  # 12 groups of one block of 4 keys, each in 5 parts


def excess(counts: Numbers, expected: float, freedom: int) -> float:
    """How many standard deviations chi-square lies above what chance gives."""
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - freedom) / math.sqrt(2 * freedom)


def test_a_key_and_a_block_are_equally_likely_anywhere_in_an_epoch() -> None:
    epochs = 1500
    orders = np.array([all_keys(EQUAL, epoch) for epoch in range(epochs)])
    for key in (0, 21, 47):
        assert excess(np.bincount(np.nonzero(orders == key)[1], minlength=48), epochs / 48, 47) < 4
    spans = np.array([EQUAL.spans(epoch)[0] for epoch in range(epochs)])
    for block in (0, 5):  # five groups begin with the epoch, and each of the others has a stretch of its own
        counts = np.unique(spans[:, block], return_counts=True)[1]
        assert excess(counts, epochs * np.array([5, 1, 1, 1, 1, 1, 1, 1]) / 12, 7) < 4  # type: ignore[arg-type]


def test_an_epoch_tells_nothing_of_the_next() -> None:
    places = np.argsort([all_keys(EQUAL, epoch) for epoch in range(1500)], axis=1)[:, 0] // 8
    assert excess(np.bincount(places[:-1] * 6 + places[1:], minlength=36), 1499 / 36, 25) < 4


def test_every_stretch_has_an_equal_share_of_each_of_its_blocks() -> None:
    order = BlockOrder(np.arange(0, 20_001, 100), window=24, seed=3)  # groups of 3 blocks, each in 7 parts
    first, stop = order.spans(0)
    stretches = np.unique(np.concatenate([first, stop]))
    shares = []
    for block, places in enumerate(np.argsort(all_keys(order, 0)).reshape(200, 100)):
        edges = stretches[(first[block] <= stretches) & (stretches <= stop[block])]
        if len(edges) == 8:  # not one of the first or last groups, which have fewer stretches
            shares.append(np.histogram(places, edges)[0])
    assert len(shares) > 150
    assert np.abs(np.mean(shares, axis=0) - 100 / 7).max() < 1
    assert np.std(shares) < 5  # by chance it would be 3.5, and in order 35


def test_the_first_key_of_a_block_is_as_often_in_the_first_stretch_of_its_block_as_in_the_second() -> None:
    order = BlockOrder(np.arange(0, 49, 4), window=3, seed=3)  # groups of one block
    early = late = 0
    for epoch in range(400):
        first, stop = order.spans(epoch)
        place = int(np.flatnonzero(all_keys(order, epoch) == 0)[0])
        if stop[0] - first[0] == 8:  # not the first or last group, which have one stretch
            early, late = early + (place < first[0] + 4), late + (place >= first[0] + 4)
    assert early + late > 250
    assert abs(early - late) < 4 * math.sqrt(early + late)


@pytest.mark.parametrize(("window", "mixed"), [(1, 1), (3, 2), (6, 5), (15, 14), (16, 14), (40, 35), (500, 500)])
def test_neighbours_are_of_one_block_as_rarely_as_the_blocks_that_are_mixed_allow(window: int, mixed: int) -> None:
    blocks = blocks_at(BlockOrder(np.arange(0, 150_001, 300), window, seed=3), 0)
    assert (blocks[1:] == blocks[:-1]).mean() == pytest.approx(1 / mixed, rel=0.1)


def test_every_stretch_is_shuffled_in_its_own_way() -> None:
    order = BlockOrder(np.arange(0, 1001, 50), window=3, seed=1)  # each stretch has two blocks, which take turns
    (first, stop), blocks = order.spans(0), blocks_at(order, 0)
    stretches = [(a, b) for a, b in pairwise(np.unique(np.concatenate([first, stop])).tolist()) if b - a == 50]
    turns = {(blocks[a:b] == first.tolist().index(a)).tobytes() for a, b in stretches[1:]}
    assert len(turns) == len(stretches) - 1 > 10
