"""Loaders of penstock.torch with batches by the lengths of samples, and loaders that frameworks make of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from parity.pair import Ours, Theirs

LENGTHS = (np.random.default_rng(0).integers(1, 50, 120)).tolist()
SAMPLES = [torch.full((length,), key) for key, length in enumerate(LENGTHS)]
PASSED_ON = [
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
]


def budget(**more: Any) -> Any:
    settings = {"batch_tokens": 256, "lengths": LENGTHS, "collate_fn": penstock.pad(multiple=8)}
    return Ours(SAMPLES, **{**settings, "shuffle": True, "seed": 1, **more})


def test_batches_are_those_of_penstocks_loader_as_tensors() -> None:
    rows = [sample.numpy() for sample in SAMPLES]
    theirs: Any = penstock.DataLoader(
        rows, batch_tokens=256, lengths=LENGTHS, collate_fn=penstock.pad(multiple=8), shuffle=True, seed=1
    )
    loader = budget()
    for _ in range(2):
        ours = list(loader)
        assert len(ours) == len(theirs)
        assert [batch.values.tolist() for batch in ours] == [batch.values.tolist() for batch in theirs]
        assert all(type(part) is torch.Tensor for batch in ours for part in batch)


def test_it_looks_like_a_torch_loader_with_a_batch_sampler() -> None:
    loader = budget(drop_last=True)
    assert (loader.batch_size, loader.drop_last) == (None, False)
    assert len(loader) == len(loader.batch_sampler) == len(list(loader.batch_sampler))
    assert isinstance(loader, Theirs)


def test_each_pass_over_its_batch_sampler_is_another_epoch() -> None:
    batches = budget().batch_sampler
    first, second = list(batches), list(batches)
    assert first != second
    batches.set_epoch(0)
    assert list(batches) == first


def test_a_state_continues_in_a_copy_of_the_loader() -> None:
    loader = budget()
    steps = iter(loader)
    next(steps)
    copy = pickle.loads(pickle.dumps(loader))
    copy.load_state_dict(loader.state_dict())
    assert [batch.values.tolist() for batch in copy] == [batch.values.tolist() for batch in steps]


class EveryOther:
    """Gives the first of two ranks its batches, as the sampler of accelerate does."""

    def __init__(self, batches: Any) -> None:
        self.batch_sampler = batches

    def __iter__(self) -> Iterator[list[int]]:
        return (batch for number, batch in enumerate(self.batch_sampler) if number % 2 == 0)

    def __len__(self) -> int:
        return (len(self.batch_sampler) + 1) // 2


@pytest.mark.parametrize("wrap", [lambda batches: batches, EveryOther])
def test_a_loader_that_a_library_rebuilds_keeps_the_budget(wrap: Any) -> None:
    loader = budget()
    passed = {name: getattr(loader, name) for name in PASSED_ON}
    rebuilt: Any = Theirs(SAMPLES, batch_sampler=wrap(loader.batch_sampler), **passed)
    expected = [tuple(LENGTHS[key] for key in keys) for keys in wrap(budget().batch_sampler)]
    assert [tuple(batch.lengths.tolist()) for batch in rebuilt] == expected
    assert len(rebuilt) == len(expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": None}, "batch_tokens=256 needs seed=: without it the order is torch's, which knows no lengths"),
        ({"batch_size": 4}, "batch_size=4 and batch_tokens=256 both decide the batches"),
        ({"shuffle": None, "batch_sampler": [[0]]}, "batch_tokens=256 and batch_sampler= are mutually exclusive"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        budget(**settings)


def test_ranks_are_balanced_with_a_fixed_batch_size() -> None:
    costs = []
    for rank in range(4):
        loader: Any = Ours(
            SAMPLES,
            batch_size=5,
            balance="quadratic",
            lengths=LENGTHS,
            collate_fn=penstock.pad(),
            shard=(rank, 4),
            shuffle=True,
            seed=1,
        )
        costs.append([int((batch.lengths**2).sum()) for batch in loader])
        assert len(costs[-1]) == len(loader) == 6
    by_step = np.array(costs)
    assert (by_step.max(axis=0) <= 1.2 * by_step.mean(axis=0)).all()


def test_only_listed_lengths_occur_and_workers_do_not_matter() -> None:
    streams = []
    for workers in (0, 2):
        with budget(num_workers=workers, buckets=[32, 64], collate_fn=penstock.pad(), batch_tokens=128) as loader:
            streams.append([batch.values.tolist() for batch in loader])
    assert streams[0] == streams[1]
    assert {len(rows[0]) for rows in streams[0]} == {32, 64}


def test_a_loader_keeps_its_workers_between_epochs() -> None:
    with budget(num_workers=1, persistent_workers=True) as loader:
        list(loader)
        first = [worker.pid for worker in penstock.torch._core.core_of(loader).workers]
        list(loader)
        assert [worker.pid for worker in penstock.torch._core.core_of(loader).workers] == first
