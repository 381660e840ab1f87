"""What torch's loader does and no test asked of ours until bugs were planted (see tests/planted)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import Sampler, WeightedRandomSampler

from parity import sources
from parity.pair import Ours, Tape, both, epoch


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("batch_size", [3, 4])
def test_each_worker_drops_the_incomplete_last_batch_of_its_stream(workers: int, batch_size: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(sources.NoisyStream(10), batch_size, drop_last=True, num_workers=workers)
        for _ in range(2):
            epoch(loader, tape)

    both(program)


class Marking(Sampler[int]):
    """Changes the dataset while it is asked."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        for key in range(6):
            self.dataset.tag = key
            yield key


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_have_the_dataset_as_it_was_before_the_sampler_was_asked(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        data = sources.Noisy(6)
        epoch(loader_class(data, 2, sampler=Marking(data), num_workers=workers), tape)

    both(program)


def leave(key: int) -> int:
    if key == 1:
        sys.exit(7)
    return key


def test_a_worker_whose_dataset_calls_sys_exit_is_an_error_that_names_it() -> None:
    batches = iter(Ours(sources.Made(4, leave), None, num_workers=1))
    pid = batches._workers[0].pid
    with pytest.raises(RuntimeError, match=rf"pid\(?s?\)? {pid}\b(?s:.*)\b7\b"):
        list(batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_with_a_seed_a_weighted_sampler_without_replacement_repeats_nothing(workers: int) -> None:
    weights = [1000.0] * 10 + [1.0] * 10
    sampler = WeightedRandomSampler(weights, 20, replacement=False)
    loader = Ours(list(range(20)), 4, sampler=sampler, seed=5, num_workers=workers)
    assert sorted(key for batch in loader for key in batch.tolist()) == list(range(20))
