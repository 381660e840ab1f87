"""Libraries make loaders again from the attributes of ours: penstock's arguments are kept, or an error is raised.

Each way to make one is that of a library, with the library's own choice of attributes.
"""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, IterableDataset, RandomSampler

from penstock.torch import DataLoader, enable
from penstock.torch import _private as private

Theirs = torch.utils.data.DataLoader


class Noisy(Dataset[Any]):
    """Sample 5 is bad."""

    def __len__(self) -> int:
        return 13

    def __getitem__(self, key: int) -> Any:
        if key == 5:
            raise ValueError("bad")
        return {"key": key, "noise": torch.rand(2)}


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return ({"key": key, "noise": torch.rand(2)} for key in range(13))


class Part(BatchSampler):
    """Every other batch of another batch sampler, as accelerate has it for two ranks."""

    def __init__(self, batch_sampler: Any, rank: int) -> None:
        self.batch_sampler, self.process_index, self.num_processes = batch_sampler, rank, 2

    def __iter__(self) -> Iterator[Any]:
        return (batch for at, batch in enumerate(self.batch_sampler) if at % 2 == self.process_index)

    def __len__(self) -> int:
        return len(self.batch_sampler) // 2


OTHERS = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
OTHERS += ("generator", "prefetch_factor", "persistent_workers", "in_order")


def as_accelerate(loader: Any) -> Any:
    """With the batch sampler of the loader, or without one if it has none."""
    rest = {name: getattr(loader, name) for name in OTHERS}
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return Theirs(loader.dataset, batch_size=loader.batch_size, drop_last=loader.drop_last, **rest)
    return Theirs(loader.dataset, batch_sampler=loader.batch_sampler, **rest)


def as_opacus(loader: Any) -> Any:
    """With a function around collate_fn, and without any sampler of the loader."""
    rest = {name: getattr(loader, name) for name in OTHERS}
    rest["collate_fn"] = functools.partial(collated, loader.collate_fn)
    return Theirs(loader.dataset, batch_sampler=[[0, 1], [2, 3]], **rest)


def collated(collate_fn: Any, samples: Any) -> Any:
    return collate_fn(samples)


def as_ray_train(loader: Any) -> Any:
    sampler = DistributedSampler(loader.dataset, num_replicas=2, rank=0, shuffle=True)
    rest = {name: getattr(loader, name) for name in OTHERS}
    return Theirs(loader.dataset, batch_size=loader.batch_size, sampler=sampler, **rest)


def as_lightning(loader: Any) -> Any:
    """Of the same class, with what differs from the defaults of its signature."""
    attributes = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    attributes["multiprocessing_context"] = loader.multiprocessing_context
    named = inspect.signature(type(loader).__init__).parameters
    given = {name: one for name, one in attributes.items() if name in named and named[name].default is not one}
    return type(loader)(**{**given, "sampler": loader.sampler, "shuffle": False, "batch_sampler": None})


def as_torchs_arguments(loader: Any) -> Any:
    """Of the same class, with torch's arguments only."""
    rest = {name: getattr(loader, name) for name in OTHERS}
    return type(loader)(loader.dataset, batch_sampler=loader.batch_sampler, **rest)


WAYS: dict[str, Callable[[Any], Any]] = {
    "accelerate": as_accelerate,
    "Lightning": as_lightning,
    "torch's arguments": as_torchs_arguments,
    "copied": lambda loader: as_accelerate(copy.copy(loader)),
    "pickled": lambda loader: as_accelerate(pickle.loads(pickle.dumps(loader))),
    "twice": lambda loader: as_accelerate(as_accelerate(loader)),
}


def made(**settings: Any) -> Any:
    given = {"batch_size": 3, "shuffle": True, "seed": 4, "on_error": "skip", "dtype": {"noise": "float16"}}
    return DataLoader(Noisy(), **{**given, **settings})


def read(loader: Any, epochs: int = 2) -> list[Any]:
    return [
        [({"key": batch["key"].tolist()}, batch["noise"].tolist(), batch["noise"].dtype) for batch in loader]
        for _ in range(epochs)
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_loader_that_is_made_again_gives_the_same_batches(way: str) -> None:
    torch.manual_seed(1)
    expected = read(made())
    again = WAYS[way](made())
    torch.manual_seed(2)
    assert read(again) == expected


def test_so_it_does_with_workers_that_persist() -> None:
    again = as_accelerate(made(num_workers=1, persistent_workers=True))
    assert read(again) == read(made())
    again._iterator._shutdown_workers()


def test_single_samples_and_streams_keep_the_arguments_too() -> None:
    def noises(loader: Any) -> list[Any]:
        return [(sample["noise"].tolist(), sample["noise"].dtype) for sample in loader]

    alone = {"batch_size": None, "seed": 4, "dtype": {"noise": "float16"}, "on_error": "skip"}
    assert noises(as_accelerate(DataLoader(Noisy(), **alone))) == noises(DataLoader(Noisy(), **alone))
    for size in (None, 3):
        stream = {**alone, "batch_size": size, "on_error": "raise"}
        assert noises(as_accelerate(DataLoader(Numbers(), **stream))) == noises(DataLoader(Numbers(), **stream))


def test_numbers_are_converted_without_a_seed_too() -> None:
    for workers in (0, 1):
        again = as_accelerate(DataLoader([1, 2, 3], 2, dtype="float16", num_workers=workers))
        assert [(batch.tolist(), batch.dtype) for batch in again] == [
            ([1, 2], torch.float16),
            ([3], torch.float16),
        ]


@pytest.mark.parametrize("way", [as_opacus, as_ray_train])
def test_another_order_keeps_the_other_arguments(way: Any) -> None:
    [batches] = read(way(made()), epochs=1)
    assert [dtype for _, _, dtype in batches] == [torch.float16] * len(batches)
    assert [batches] == read(way(made()), epochs=1)
    assert batches != read(way(made(seed=5)), epochs=1)[0]


def test_the_ranks_of_a_library_share_the_order_of_the_seed() -> None:
    """Whatever generator the library gives the sampler, and although no rank seeds torch's generator."""

    def keys(rank: int) -> list[list[int]]:
        loader = made(dtype=None)
        loader.sampler.generator = torch.Generator().manual_seed(17 + rank)
        rest = {name: getattr(loader, name) for name in OTHERS}
        again = Theirs(loader.dataset, batch_sampler=Part(loader.batch_sampler, rank), **rest)
        return [batch["key"].tolist() for batch in again]

    both = [keys(0), keys(1)]
    assert sorted(key for keys in both for batch in keys for key in batch) == [key for key in range(13) if key != 5]
    assert [keys(0), keys(1)] == both


def test_a_generator_of_the_users_stays() -> None:
    generator = torch.Generator().manual_seed(3)
    sampler = RandomSampler(Noisy(), generator=generator)
    again = as_accelerate(made(shuffle=None, sampler=sampler))
    list(again)
    assert sampler.generator is generator


@pytest.mark.parametrize("shard", [(0, 2), (1, 2)])
def test_two_that_would_split_are_an_error(shard: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"made from a loader with shard=\(., 2\).*Leave shard= out"):
        iter(as_accelerate(made(shard=shard)))
    assert read(as_accelerate(made(shard=(0, 1)))) == read(made())


def test_a_sampler_that_splits_beside_shard_is_an_error() -> None:
    sampler = DistributedSampler(Noisy(), num_replicas=2, rank=1)
    for last_batch in (None, "keep"):
        with pytest.raises(ValueError, match=r"shard=\(1, 2\) and DistributedSampler .*both split"):
            made(shuffle=None, sampler=sampler, shard=(1, 2), last_batch=last_batch)


@pytest.mark.parametrize("last_batch", ["drop", "rollover"])
def test_a_length_that_torchs_class_would_not_know_is_an_error(last_batch: str) -> None:
    with pytest.raises(ValueError, match=r"its length would be wrong\. Use drop_last=True"):
        iter(as_accelerate(made(last_batch=last_batch)))


class Own(private.InlineIterator):  # type: ignore[misc]
    pass


class OwnLoader(torch.utils.data.DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return Own(self)


def test_an_iterator_that_cannot_keep_them_is_an_error() -> None:
    loader = made()
    with pytest.raises(TypeError, match=r"OwnLoader was made from .* with seed=4, .*on_error='skip'.*cannot keep"):
        iter(OwnLoader(Noisy(), timeout=loader.timeout))


class Blocked(Noisy):
    blocks = (0, 4, 8, 13)


def test_an_order_by_blocks_is_kept_or_refused() -> None:
    def by_blocks() -> Any:
        return DataLoader(Blocked(), 3, "blocks", seed=4, window=1, on_error="skip")

    def keys(loader: Any) -> list[list[int]]:
        return [batch["key"].tolist() for batch in loader]

    assert keys(as_accelerate(by_blocks())) == keys(by_blocks())
    loader = by_blocks()
    rest = {name: getattr(loader, name) for name in OTHERS}
    with pytest.raises(ValueError, match='from one with shuffle="blocks", with a sampler'):
        DataLoader(loader.dataset, sampler=DistributedSampler(loader.dataset, 2, 0), **rest)
    with pytest.raises(ValueError, match="mutually exclusive"):
        iter(Theirs(loader.dataset, batch_sampler=Part(loader.batch_sampler, 0), **rest))
    in_sequence = torch.utils.data.SequentialSampler(loader.dataset)
    predicting = DataLoader(loader.dataset, 3, sampler=in_sequence, **rest)  # as Lightning predicts
    assert keys(predicting)[0] == [0, 1, 2]


def test_what_is_tuned_is_tuned_again() -> None:
    again = as_lightning(DataLoader(Noisy(), num_workers="auto", max_workers=2, seed=4))
    assert again._auto == {"num_workers": "auto"}
    assert again._ours["max_workers"] == 2
    again.num_workers = 1
    assert as_lightning(again)._auto == {}


def test_a_timeout_is_an_ordinary_number() -> None:
    plain = DataLoader([1])
    assert type(plain.timeout) is int
    loader = DataLoader([1], seed=1, num_workers=1, timeout=2.5)
    assert (loader.timeout, repr(loader.timeout), isinstance(loader.timeout, float)) == (2.5, "2.5", True)
    loader.timeout = 3
    assert repr(loader.timeout) == "3"
    assert as_accelerate(loader).timeout == 3
    assert list(as_accelerate(loader)) == [torch.tensor([1])]


def test_loaders_that_were_not_made_from_ours_stay_torchs() -> None:
    made()
    iterator = iter(Theirs([1]))
    assert type(iterator) is private.InlineIterator
    with enable():
        again = as_accelerate(DataLoader([1, 2]))
    assert [int(one) for one in again] == [1, 2]
