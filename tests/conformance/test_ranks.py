"""Ranks together give the stream of one process: step s of rank r is its step s * world + r, byte for byte."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from same import same

from conformance import sources
from penstock import DataLoader as Loader
from penstock import Dataset, IterableDataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from penstock._engine import pace

WORLD = 2


class Restless(IterableDataset[Any]):
    """A stream that draws its order when it is opened, and noise while it is read."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        keys = list(range(self.n))
        random.shuffle(keys)
        return (np.array([key, np.random.random(), random.random()]) for key in keys)


class Late(Restless):
    """The same, but it draws its order when it is first asked, after something else was drawn."""

    def __iter__(self) -> Iterator[Any]:
        random.random()
        return self._draw()

    def _draw(self) -> Iterator[Any]:
        yield from super().__iter__()


def share(make: Any, rank: int, dataset: Any, **kwargs: Any) -> list[Any]:
    return list(make(dataset, shard=(rank, WORLD), **{"seed": 3, **kwargs}).batches())


def data(batches: list[Any]) -> list[Any]:
    return [batch.data for batch in batches]


def one_process(dataset: Any, **kwargs: Any) -> list[Any]:
    with Loader(dataset, **{"seed": 3, **kwargs}) as loader:
        return list(loader.batches())


@pytest.mark.parametrize(
    ("dataset", "kwargs"),
    [
        (sources.Squares(11), {"batch_size": 2}),
        (sources.Squares(11), {"batch_size": None}),
        (sources.Noisy(), {"batch_size": 3, "shuffle": True}),
        (sources.Rich(), {"batch_size": 2, "shuffle": True}),
        (sources.Noisy(), {"batch_size": 2, "sampler": [7, 1, 5, 5, 0, 2, 3]}),
        (sources.Noisy(), {"batch_size": None, "sampler": [7, 1, 5]}),
        (sources.Noisy(), {"batch_sampler": [[1], [2, 3], (4, 5, 6)]}),
        (Restless(11), {"batch_size": 2}),
        (Restless(5), {"batch_size": None}),
        (Restless(0), {"batch_size": 2}),
        (sources.Shuffling(), {"batch_size": 3}),
        (sources.Light(5), {"batch_size": None}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else ",".join(map(str, value)),
)
@pytest.mark.parametrize("last_batch", ["keep", "drop"])
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_ranks_have_the_steps_of_one_process_in_turn(
    make: Any, dataset: Any, kwargs: dict[str, Any], last_batch: str
) -> None:
    noisy = isinstance(dataset, (sources.Noisy, sources.Shuffling, Restless))
    if make([]).backend == "thread" and noisy:
        pytest.skip("threads share the global generators")
    batches = kwargs.get("batch_size") is not None
    alone = one_process(dataset, drop_last=last_batch == "drop" and batches, **kwargs)
    if last_batch == "drop":
        alone = alone[: len(alone) // WORLD * WORLD]
    for rank in range(WORLD):
        mine = share(make, rank, dataset, last_batch=last_batch, **kwargs)
        assert same(data(mine), data(alone[rank::WORLD]))
        assert [batch.step for batch in mine] == list(range(len(mine)))
        for ours, theirs in zip(mine, alone[rank::WORLD], strict=True):
            assert np.array_equal(ours.index, theirs.index)


@pytest.mark.parametrize("world", [3, 5])
@pytest.mark.parametrize("last_batch", ["keep", "drop"])
@pytest.mark.parametrize("stream", [Restless(32), Late(32), sources.Shuffling(), Restless(4)])
def test_more_ranks_share_a_stream(stream: Any, last_batch: str, world: int) -> None:
    alone = data(one_process(stream, batch_size=2, drop_last=last_batch == "drop"))
    if last_batch == "drop":
        alone = alone[: len(alone) // world * world]
    for rank in range(world):
        with Loader(stream, 2, seed=3, shard=(rank, world), last_batch=last_batch) as loader:
            assert same(list(loader), alone[rank::world])


@pytest.mark.parametrize(
    ("dataset", "kwargs"),
    [
        (sources.Noisy(), {"batch_size": 1, "shuffle": True, "last_batch": "pad"}),
        (Restless(13), {"batch_size": 1, "last_batch": "drop"}),
        (Restless(13), {"batch_size": None, "last_batch": "keep"}),
        (sources.Shuffling(), {"batch_size": 1, "last_batch": "keep"}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else value["last_batch"],
)
@pytest.mark.parametrize("shard", [(0, 1), (2, 3)])
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_a_rank_that_stopped_goes_on_where_it_was(
    make: Any, dataset: Any, kwargs: dict[str, Any], shard: tuple[int, int]
) -> None:
    if make([]).backend == "thread":
        pytest.skip("threads share the global generators")
    if shard == (0, 1):
        kwargs = {**kwargs, "last_batch": "keep"}
    whole = list(Loader(dataset, seed=3, shard=shard, **kwargs).batches())
    loader = make(dataset, seed=3, shard=shard, **kwargs)
    for stop in (1, 3, len(whole)):
        loader.set_epoch(0)
        batches = iter(loader)
        for _ in range(stop):
            next(batches)
        loader.load_state_dict(loader.state_dict())
        rest = list(loader.batches())
        assert same(data(rest), data(whole[stop:]))
        assert [batch.step for batch in rest] == list(range(stop, len(whole)))


def test_each_batch_of_a_stream_is_read_with_random_numbers_of_its_own() -> None:
    items = np.concatenate(data(one_process(sources.Shuffling(), batch_size=2)))[:, 0]
    assert len(set(items - np.floor(items))) == 10


def test_padded_ranks_have_full_batches_and_say_which_rows_are_extra(make: Any) -> None:
    ranks = [share(make, rank, sources.Squares(9), batch_size=2) for rank in range(WORLD)]
    assert [[batch.index.tolist() for batch in rank] for rank in ranks] == [
        [[0, 1], [4, 5], [8, 0]],
        [[2, 3], [6, 7], [1, 2]],
    ]
    assert [[batch.pad for batch in rank] for rank in ranks] == [[0, 0, 1], [0, 0, 2]]
    for batch in ranks[0] + ranks[1]:
        assert batch.data.tolist() == (batch.index**2).tolist()


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_a_metric_over_padded_ranks_is_that_of_one_process(world: int) -> None:
    values = np.random.default_rng(0).integers(0, 1000, 37)
    for epoch in range(2):
        count = total = 0
        for rank in range(world):
            loader = Loader(values, 4, shuffle=True, seed=1, shard=(rank, world), last_batch="pad")
            loader.set_epoch(epoch)
            for batch in loader.batches():
                assert len(batch.data) == 4
                real = batch.data[: len(batch.data) - batch.pad]
                count, total = count + len(real), total + int(real.sum())
        assert (count, total) == (37, int(values.sum()))


def test_epochs_of_ranks_advance_by_themselves_and_agree(make: Any) -> None:
    loaders = [make(range(12), 2, shuffle=True, seed=8, shard=(rank, WORLD)) for rank in range(WORLD)]
    epochs = []
    for _ in range(3):
        keys = [value for loader in loaders for batch in loader for value in batch.tolist()]
        assert sorted(keys) == list(range(12))
        epochs.append(keys)
    assert epochs[0] != epochs[1] != epochs[2]


def test_ranks_draw_different_random_numbers(make_processes: Any) -> None:
    first, second = (share(make_processes, rank, sources.Noisy(), batch_size=3) for rank in range(WORLD))
    for ours, theirs in zip(first, second, strict=True):
        assert not np.isin(ours.data[:, :3], theirs.data[:, :3]).any()


def test_len_is_this_ranks_number_of_steps(make: Any) -> None:
    for last_batch, expected in {"keep": [3, 2], "drop": [2, 2], "pad": [3, 3]}.items():
        loaders = [make(range(9), 2, seed=0, shard=(rank, WORLD), last_batch=last_batch) for rank in range(WORLD)]
        assert [len(loader) for loader in loaders] == [len(list(loader)) for loader in loaders] == expected


def test_len_of_a_shared_stream_is_this_ranks_number_of_steps() -> None:
    class Sized(sources.Countdown):
        def __len__(self) -> int:
            return self.n

    for last_batch, expected in {"keep": [3, 2], "drop": [2, 2]}.items():
        loaders = [Loader(Sized(9), 2, seed=0, shard=(rank, WORLD), last_batch=last_batch) for rank in range(WORLD)]
        assert [len(loader) for loader in loaders] == [len(list(loader)) for loader in loaders] == expected


@pytest.mark.parametrize("last_batch", ["keep", "drop"])
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_a_stream_that_breaks_does_so_on_every_rank(make: Any, last_batch: str) -> None:
    for rank in range(WORLD):
        loader = make(sources.Breaking(), batch_size=1, seed=0, shard=(rank, WORLD), last_batch=last_batch)
        batches = iter(loader)
        found = []
        with pytest.raises(OSError, match="the pipe burst"):
            found += [batch.item() for batch in batches]
        assert list(batches) == []


@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_a_batch_of_a_stream_that_cannot_be_made_costs_no_other(make: Any) -> None:
    def refuse_four(samples: list[int]) -> int:
        if samples == [4]:
            raise LookupError("four")
        return samples[0]

    for rank, expected in enumerate([[8, 6, LookupError, 2], [7, 5, 3, 1]]):
        loader = make(sources.Countdown(8), collate_fn=refuse_four, seed=0, shard=(rank, WORLD), last_batch="drop")
        batches, found = iter(loader), []
        while True:
            try:
                found.append(next(batches))
            except StopIteration:
                break
            except LookupError as error:
                found.append(type(error))
        assert found == expected


class Ragged(Dataset[Any]):
    def __len__(self) -> int:
        return 301

    def __getitem__(self, key: int) -> Any:
        return {"x": np.full(key % 5, key), "r": random.random(), "n": np.random.random()}


@pytest.mark.parametrize("batch_size", [1, None])
def test_bundles_of_a_rank_are_what_the_plain_loop_gives(
    monkeypatch: pytest.MonkeyPatch, batch_size: int | None
) -> None:
    monkeypatch.setattr(pace, "_SECONDS", 10.0)
    settings: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "seed": 5, "last_batch": "pad"}
    alone = data(one_process(Ragged(), batch_size=batch_size, shuffle=True, seed=5))
    for rank in range(3):
        with Loader(Ragged(), num_workers=2, shard=(rank, 3), **settings) as loader:
            mine = list(loader.batches())
        with Loader(Ragged(), shard=(rank, 3), **settings) as loader:
            assert same(data(mine), data(list(loader.batches())))
        assert [batch.pad for batch in mine] == [0] * 100 + [int(rank > 0)]
        assert same(data(mine)[:100], alone[rank:300:3])


class Huge(Dataset[int]):
    def __len__(self) -> int:
        return 10**10

    def __getitem__(self, key: int) -> int:
        return key


def test_an_epoch_of_ten_billion_samples_on_4096_ranks_begins_at_once() -> None:
    def begin(loader: Any) -> float:
        begun = time.thread_time()
        batches = iter(loader)
        took = time.thread_time() - begun
        assert len(next(batches)) == 64
        batches.close()
        return took

    loader = Loader(Huge(), 64, shuffle=True, seed=1, shard=(4095, 4096))
    assert len(loader) == 38_147
    begin(loader)
    assert min(begin(loader) for _ in range(5)) < 0.010
    tracemalloc.start()
    try:
        begin(loader)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


# Samplers of ours that mean an order: in a loader they are drawn from its seed.

SAMPLERS = {
    "random": lambda: RandomSampler(range(20)),
    "random, some": lambda: RandomSampler(range(20), num_samples=9),
    "random, more": lambda: RandomSampler(range(20), num_samples=50),
    "with replacement": lambda: RandomSampler(range(20), replacement=True),
    "subset": lambda: SubsetRandomSampler([3, 5, 8, 13]),
    "weighted": lambda: WeightedRandomSampler(np.arange(20), 30),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_without_a_generator_belongs_to_the_loaders_seed(make: Any, name: str) -> None:
    def epochs(seed: int, how: Any) -> list[list[list[int]]]:
        loader = how(range(20), batch_size=4, sampler=SAMPLERS[name](), seed=seed)
        return [[batch.tolist() for batch in loader] for _ in range(3)]

    expected = epochs(1, Loader)
    assert epochs(1, make) == expected
    assert expected[0] != expected[1] != expected[2]
    assert epochs(2, Loader) != expected


@pytest.mark.parametrize("name", SAMPLERS)
def test_ranks_share_the_order_of_a_sampler(name: str) -> None:
    alone = one_process(range(20), batch_size=2, sampler=SAMPLERS[name]())
    keys = [value for batch in alone for value in batch.data.tolist()]
    steps = [list(Loader(range(20), 2, sampler=SAMPLERS[name](), seed=3, shard=(r, 3)).batches()) for r in range(3)]
    together = [
        value
        for each in zip(*steps, strict=True)
        for batch in each
        for value in batch.data[: len(batch.data) - batch.pad].tolist()
    ]
    assert together == keys


def test_weights_and_indices_changed_between_epochs_count(make: Any) -> None:
    weights, indices = WeightedRandomSampler([1, 0, 0], 30), [1, 2, 3]
    weighted = make(range(3), 5, sampler=weights, seed=0)
    subset = make(range(9), 5, sampler=SubsetRandomSampler(indices), seed=0)
    assert {value for batch in weighted for value in batch.tolist()} == {0}
    assert {value for batch in subset for value in batch.tolist()} == {1, 2, 3}
    weights.weights[:] = [0, 1, 0]
    indices[:] = [4, 5, 6]
    assert {value for batch in weighted for value in batch.tolist()} == {1}
    assert {value for batch in subset for value in batch.tolist()} == {4, 5, 6}
