"""Laws of datasets inside others: blocks, forecasts and downloads are those of the samples that are read."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import ConcatDataset, Dataset, Subset
from penstock._cache import cache as module
from penstock._cache.agendas import Publisher
from penstock._cache.cache import Cache
from penstock._cache.lookout import Lookout, WantedPiece
from penstock._cache.pieces import EXTRA
from penstock._cache.scout import Scout
from penstock._cache.uses import uses
from penstock._cache.watches import Watches
from penstock.plan import OrderPlan, Sequential, Shuffled
from penstock.plan._forecast import Forecast
from penstock.plan._grouping import Grouping
from penstock.source._nested import blocks_of, foresee_of
from tests.laws.test_cache_laws import NBYTES, fewest

law = settings(deadline=None)


class Leaf(Dataset[Any]):
    """Samples that say where they are from: the leaf, the block, and the key in the leaf."""

    def __init__(self, sizes: list[int]) -> None:
        self.blocks = np.cumsum([0, *sizes])
        self.cache: Cache | None = None
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return int(self.blocks[-1])

    def __getitem__(self, key: int) -> Any:
        return id(self), int(self.blocks.searchsorted(key % len(self), "right")) - 1, key % len(self)

    def __foresee__(self, forecast: Forecast) -> Any:
        self.forecast = forecast
        return None if self.cache is None else Scout(forecast, self, self.cache, ahead=1 << 30)

    def pieces_of(self, block: int) -> list[WantedPiece]:
        return [WantedPiece(f"{id(self)} {block}", NBYTES, partial(self.make, block))]

    def make(self, block: int, pause: Any = None) -> bytes:
        self.fetched.append(block)
        return bytes(NBYTES)


def subsets(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any indices, in any order, also several times, also counted from the end."""

    def of(dataset: Any) -> st.SearchStrategy[Any]:
        n = len(dataset)
        indices = st.lists(st.integers(-n, n - 1), max_size=12) if n else st.just(list[int]())
        kinds = st.sampled_from([list, partial(np.array, dtype=np.int64), sorted])
        return st.tuples(kinds, indices).map(lambda drawn: Subset(dataset, drawn[0](drawn[1])))

    return inner.flatmap(of)


LEAVES = st.lists(st.integers(0, 3), max_size=5).map(Leaf)
TREES: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: subsets(inner) | st.lists(inner, min_size=1, max_size=3).map(ConcatDataset), max_leaves=5
)


def leaves(tree: Any) -> Iterator[Leaf]:
    if isinstance(tree, Leaf):
        yield tree
    for inside in getattr(tree, "datasets", [tree.dataset] if isinstance(tree, Subset) else []):
        yield from leaves(inside)


@law
@given(TREES)
def test_samples_of_one_block_are_of_one_block_of_the_dataset_inside(tree: Any) -> None:
    blocks = blocks_of(tree)
    keys = np.arange(len(tree)) if blocks.keys is None else blocks.keys
    assert sorted(keys.tolist()) == [*range(len(tree))]
    numbers = np.repeat(np.arange(len(blocks)), np.diff(blocks.edges))
    assert blocks.of(keys).tolist() == numbers.tolist()
    for edge, stop in zip(blocks.edges.tolist(), blocks.edges[1:].tolist(), strict=False):
        assert len({tree[key][:2] for key in keys[edge:stop].tolist()}) == (edge < stop)


@law
@given(subsets(LEAVES))
def test_a_subset_has_one_block_for_each_block_of_which_it_has_samples(subset: Any) -> None:
    blocks = blocks_of(subset)
    assert len(blocks) == len({sample[:2] for sample in subset})
    assert hasattr(subset, "blocks") == (blocks.keys is None)


def order_of(tree: Any, kind: str, seed: int) -> Any:
    n = len(tree)
    return {"s": Shuffled(n, seed), "n": Sequential(n), "b": blocks_of(tree).order(2, seed)}[kind]


@law
@given(TREES, st.sampled_from("snb"), st.integers(0, 9))
def test_each_dataset_inside_is_told_its_own_keys(tree: Any, kind: str, seed: int) -> None:
    order, n = order_of(tree, kind, seed), len(tree)
    foresee = foresee_of(tree)
    assert foresee is not None
    several = list(leaves(tree))
    if len({*map(id, several)}) < len(several):
        return
    foresee(Forecast(OrderPlan(order), 0, lambda: 0))
    read = [tree[key] for epoch in range(2) for key in order.at(epoch, np.arange(n)).tolist()]
    for leaf in several:
        own = [key if of == id(leaf) else -1 for of, _, key in read]
        assert leaf.forecast.keys(0, 2 * n).tolist() == own
        assert leaf.forecast.position == 0


@law
@given(TREES, st.sampled_from("snb"), st.integers(0, 9))
def test_each_block_that_is_read_is_foreseen_then(tree: Any, kind: str, seed: int) -> None:
    order, n = order_of(tree, kind, seed), len(tree)
    foresee = foresee_of(tree)
    assert foresee is not None
    foresee(Forecast(OrderPlan(order), 0, lambda: 0))
    read = [tree[key][:2] for epoch in range(2) for key in order.at(epoch, np.arange(n)).tolist()]
    for leaf in leaves(tree):
        # In sequence they follow from the blocks alone, unless keys are in another order.
        assert leaf.forecast.knows(Grouping(leaf.blocks)) or kind != "b"
        found = uses([(leaf.forecast, leaf.blocks)])
        foreseen = {
            (block, at)
            for block, first, stop in zip(found.blocks, found.first, found.stop, strict=True)
            for at in range(first, stop)
        }
        actual = {(block, at) for at, (of, block) in enumerate(read) if of == id(leaf)}
        assert foreseen >= actual
        assert {block for block, _ in foreseen} == {block for block, _ in actual}


def downloads(tree: Any, order: Any, room: int) -> tuple[int, int]:
    """Three epochs with a scout: the pieces that were fetched and used, and the fewest that are possible."""
    several, steps, used, early = list(leaves(tree)), [0], list[Any](), set[Any]()
    forecast = Forecast(OrderPlan(order), 0, lambda: steps[-1])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_MAPPED", 0)  # otherwise evicted pieces would still be there
        cache = Cache(folder, room * (NBYTES + EXTRA))
        for leaf in several:
            leaf.cache = Cache(folder, room * (NBYTES + EXTRA))
        foresee = foresee_of(tree)
        assert foresee is not None
        watches = Watches(foresee(forecast))
        (scout,) = watches._all  # one for all, however many datasets there are
        lookout: Lookout = scout._lookout
        lookout._near = 0
        publisher, fetched = Publisher(folder), 0
        for epoch in range(3):
            steps.append(0)
            if epoch:
                assert forecast.continues(OrderPlan(order), epoch, lambda: steps[-1])
            for key in order.at(epoch, np.arange(order.size(epoch))).tolist():
                agenda = lookout.agenda()
                if agenda is not None:
                    cache.publish(publisher, agenda)
                publisher.move(lookout.position)
                for piece in lookout.look(2, {}, ()):
                    assert cache.fetch(piece.name, partial(piece.make, time.sleep))
                    early.add(piece.name)
                of, block, _ = tree[key]
                used.append(f"{of} {block}")
                (leaf,) = (one for one in several if id(one) == of)
                assert len(cache.get(used[-1], partial(leaf.make, block))) == NBYTES
                early.discard(used[-1])
                steps[-1] += 1
        publisher.close()
        fetched = sum(len(leaf.fetched) for leaf in several) - len(early)  # some are for the fourth epoch
        needed = {(id(leaf), block) for leaf in several for block in leaf.fetched}
        assert needed == {tree[key][:2] for key in range(len(tree))}  # nothing that is never read
    return fetched, fewest(used, room)


def is_good(tree: Any) -> bool:
    several = list(leaves(tree))
    return len(tree) > 0 and len({*map(id, several)}) == len(several)


@settings(max_examples=25, deadline=None)
@given(TREES.filter(is_good), st.integers(1, 6), st.integers(0, 1 << 30))
def test_downloads_of_datasets_inside_others_are_as_few_as_possible(tree: Any, room: int, seed: int) -> None:
    fetched, optimum = downloads(tree, Shuffled(len(tree), seed), room)
    assert fetched == optimum


def test_so_they_are_by_blocks_for_a_part_of_a_split_of_two_files() -> None:
    whole = Leaf([4] * 20) + Leaf([4] * 20)
    part = Subset(whole, np.random.default_rng(1).permutation(160)[:100])
    fetched, optimum = downloads(part, blocks_of(part).order(6, 7), 20)
    assert fetched == optimum < 3 * 40
