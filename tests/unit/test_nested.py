"""Subsets and concatenations of datasets with blocks: a loader shuffles them by blocks, and fetches ahead."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import penstock
from penstock import ConcatDataset, DataLoader, Dataset, Subset, random_split
from penstock._cache.keeper import Keeper
from penstock._cache.lru import LruCache
from penstock._cache.shared import Shared
from penstock.formats import Parquet
from penstock.plan import BlockOrder, OrderPlan
from penstock.plan._forecast import Forecast
from penstock.source._nested import blocks_of
from penstock.testing import assert_resumes_everywhere, assert_same_everywhere
from tests.stores import Store, threads, until


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    until(lambda: not threads())


def store(folder: Path, blocks: int = 20) -> Store:
    folder.mkdir(exist_ok=True)
    return Store(folder, blocks, 1 << 20)


@pytest.mark.parametrize("shuffle", [False, True, "blocks"])
def test_only_pieces_of_the_subset_are_fetched_and_ahead_of_time(tmp_path: Path, shuffle: Any) -> None:
    inner = store(tmp_path)
    indices = np.random.default_rng(0).permutation(np.r_[30:60, 95:105])
    with DataLoader(Subset(inner, indices), batch_size=10, shuffle=shuffle, seed=1) as loader:
        batches = iter(loader)
        until(lambda: len(inner.fetched()) == 5)
        assert sorted(np.concatenate(list(batches)).tolist()) == sorted(indices.tolist())
    assert sorted(inner.fetched()) == [(block, "scout") for block in (3, 4, 5, 9, 10)]


@pytest.mark.parametrize("shuffle", [False, True, "blocks"])
def test_all_parts_of_a_concatenation_are_fetched_ahead(tmp_path: Path, shuffle: Any) -> None:
    first, second = store(tmp_path / "a"), store(tmp_path / "b")
    middle: list[int] = [*range(7)]
    parts = [first, second] if shuffle == "blocks" else [first, middle, second]
    with DataLoader(ConcatDataset(parts), batch_size=10, shuffle=shuffle, seed=1) as loader:
        batches = iter(loader)
        until(lambda: len(first.fetched()) == len(second.fetched()) == 20)
        assert sum(len(batch) for batch in batches) == sum(map(len, parts))
    assert {by for part in (first, second) for _, by in part.fetched()} == {"scout"}


def test_parts_with_one_folder_have_one_scout(tmp_path: Path) -> None:
    part = store(tmp_path)
    with DataLoader(ConcatDataset([part, Subset(part, range(50)), part]), batch_size=10) as loader:
        batches = iter(loader)
        assert threads().count("penstock-scout") == 1
        until(lambda: len(part.fetched()) == 20)
        assert len(list(batches)) == 45


def test_a_random_split_is_shuffled_by_blocks_of_the_dataset(tmp_path: Path) -> None:
    parts = random_split(store(tmp_path), [0.75, 0.25], np.random.default_rng(0))
    for part in parts:
        loader = DataLoader(part, batch_size=10, shuffle="blocks", window=4, seed=1)
        keys = np.concatenate(list(loader))
        loader.close()
        assert sorted(keys) == sorted(part.indices)
        spans = [np.flatnonzero(keys // 10 == block)[[0, -1]] for block in np.unique(keys // 10)]
        held = [sum(first <= at <= last for first, last in spans) for at in range(len(keys))]
        assert max(held) <= 4
    assert len(blocks_of(parts[0])) == 20


def test_a_scattered_subset_is_the_same_everywhere_and_resumes_everywhere(tmp_path: Path) -> None:
    part = random_split(store(tmp_path), [0.5, 0.5], np.random.default_rng(0))[0]

    def make(**settings: Any) -> DataLoader[Any]:
        return DataLoader(part, batch_size=8, shuffle="blocks", window=4, seed=1, **settings)

    settings = [{"num_workers": 0}, {"num_workers": 2, "backend": "thread"}, {"num_workers": 1}]
    assert_same_everywhere(make, settings, epochs=2)
    assert_resumes_everywhere(make, settings[:2])
    state = make()
    next(iter(state))
    with pytest.raises(penstock.StateError, match=r"was '100 keys in 20 blocks, window 4, .* and is '100 keys in 20"):
        DataLoader(part, batch_size=8, shuffle="blocks", window=5, seed=1).load_state_dict(state.state_dict())
    state.close()


def test_indices_that_are_replaced_or_of_another_dataset_are_noticed(tmp_path: Path) -> None:
    subset = Subset(store(tmp_path), [15, 3, 14])
    assert blocks_of(subset).edges.tolist() == [0, 1, 3]
    subset.indices = [1, 2, 3]
    assert blocks_of(subset).edges.tolist() == [0, 3]
    subset.dataset = Subset(store(tmp_path), range(8, 20))
    assert blocks_of(subset).edges.tolist() == [0, 1, 3]


def test_what_has_no_blocks_says_so(tmp_path: Path) -> None:
    some = store(tmp_path)
    for wrong, why in (
        (Subset([1, 2], [0]), "Subset has none: the dataset of the Subset has none: 'list' object"),
        (Subset(some, ["a"]), "the indices of the Subset are not integers"),
        (Subset(ConcatDataset([some, [1]]), [0]), "none: part 1 of the ConcatDataset, a list, has no `blocks`"),
    ):
        assert not hasattr(wrong, "blocks")
        with pytest.raises(TypeError, match=why):
            DataLoader(wrong, shuffle="blocks")


class Upper(Dataset[Any]):
    """A wrapper as in docs/cache.md."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, key: int) -> Any:
        return self.inner[key]

    @property
    def blocks(self) -> Any:
        return self.inner.blocks

    def __foresee__(self, forecast: Any) -> Any:
        return self.inner.__foresee__(forecast)


def test_a_wrapper_of_a_sorted_subset_passes_both_on(tmp_path: Path) -> None:
    inner = store(tmp_path)
    with DataLoader(Upper(Subset(Upper(inner), range(0, 200, 2))), 10, shuffle="blocks", seed=1) as loader:
        batches = iter(loader)
        until(lambda: len(inner.fetched()) == 20)
        assert len(list(batches)) == 10
    with pytest.raises(TypeError, match="keys are not sorted by block"):
        DataLoader(Upper(Subset(inner, [15, 3, 14])), shuffle="blocks")


def test_a_subclass_that_has_its_own_blocks_keeps_them(tmp_path: Path) -> None:
    class Own(Subset[Any]):
        blocks = np.array([0, 2, 3])

    assert blocks_of(Own(store(tmp_path), [15, 3, 14])).edges.tolist() == [0, 2, 3]


def test_parts_of_a_split_of_a_parquet_file_are_decoded_once(tmp_path: Path) -> None:
    rows, group = 4000, 100
    pa.parquet.write_table(pa.table({"x": np.arange(rows)}), tmp_path / "a.parquet", row_group_size=group)
    pa.parquet.write_table(pa.table({"x": np.arange(rows, 2 * rows)}), tmp_path / "b.parquet", row_group_size=group)
    whole = Parquet(tmp_path / "a.parquet", keep=0) + Parquet(tmp_path / "b.parquet", keep=0)
    train = random_split(whole, [0.75, 0.25], np.random.default_rng(0))[0]
    given: dict[str, Any] = {"batch_size": 20, "seed": 1, "shuffle": "blocks", "window": 8}
    with DataLoader(train, num_workers=2, **given) as loader:
        found = np.concatenate([batch["x"] for batch in loader])
        counted = loader.stats().life.cache
    assert sorted(found) == sorted(train.indices)
    blocks = 2 * rows // group
    assert counted is not None and blocks <= counted.decoded <= blocks + 8  # the next epoch may have begun


def test_two_loaders_of_one_table_do_not_drop_blocks_of_each_other() -> None:
    """As of two parts of a split: a loader that waits keeps its blocks, and so does the other."""
    edges, steps = np.arange(21) * 10, [0, 150]
    table = f"test-{os.getpid()}"
    orders = [BlockOrder(edges, 2, seed) for seed in (1, 2)]
    forecasts = [Forecast(OrderPlan(order), 0, partial(steps.__getitem__, at)) for at, order in enumerate(orders)]
    now = [
        {block for block, first, stop in zip(range(20), *order.spans(0), strict=True) if first <= at < stop}
        for at, order in zip(steps, orders, strict=True)
    ]
    assert now[0] - now[1] and now[1] - now[0]
    first, second = (Keeper(forecast, table, edges, LruCache(0), 0) for forecast in forecasts)
    with closing(first), closing(second), closing(Shared(table, 0)) as shared:
        first.look()
        second.look()
        for block in range(20):
            shared.get(block, lambda: [b"some"])
        for keeper in (second, first):
            keeper.look()
            assert now[0] | now[1] <= first._inventory.blocks() < {*range(20)}
