"""Seeds, and who draws what when: what `torch.manual_seed` promises a program."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from parity import sources
from parity.pair import Tape, begin, both, epoch, randomness, take


class Seeded(sources.Noisy):
    def remember_seeds(self, worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        self.tag = [worker, info.id, info.seed - torch.initial_seed(), info.dataset is self]

    def __getitem__(self, key: int) -> dict[str, Any]:
        info = get_worker_info()
        same = info is not None and info.dataset is self and info.seed == torch.initial_seed()
        return {"key": key, "tag": self.tag, "the same still": same, "seed": torch.initial_seed()}


def test_in_worker_init_fn_the_seed_is_torchs_initial_seed_and_stays_so() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        data = Seeded(6)
        loader = loader_class(
            data,
            batch_size=None,
            num_workers=2,
            worker_init_fn=data.remember_seeds,
            collate_fn=sources.identity,
        )
        tape.extend(loader)

    for sample in both(program):
        worker = sample["key"] % 2
        assert sample["tag"] == [worker, worker, 0, True] and sample["the same still"]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_sample_sees_its_worker(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        data = sources.Made(5, sources.tell_worker)
        tape.extend(loader_class(data, batch_size=2, num_workers=workers, collate_fn=sources.identity))
        tape.append(get_worker_info())

    both(program)


def test_the_worker_info_cannot_be_changed_but_its_dataset_can() -> None:
    def tell(_: Any) -> str:
        info = get_worker_info()
        assert info is not None
        info.dataset.n = 77  # type: ignore[attr-defined]
        try:
            info.id = 3
        except AttributeError as error:
            return f"{type(error).__name__} {get_worker_info().dataset.n}"  # type: ignore[union-attr]
        return "changed"

    def program(loader_class: Any, tape: Tape) -> None:
        tape.extend(loader_class(sources.Made(2, tell), num_workers=1))

    both(program)


def test_without_workers_worker_init_fn_is_not_called() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        data = sources.Noisy(3)
        epoch(loader_class(data, worker_init_fn=data.tag_myself), tape)
        assert data.tag == 0

    both(program)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("given", [False, True], ids=["global", "generator"])
def test_beginning_an_epoch_draws_the_base_seed_and_nothing_else_does(workers: int, given: bool) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        generator = torch.Generator().manual_seed(9) if given else None
        before = randomness(generator)
        loader = loader_class(range(3), num_workers=workers, generator=generator)
        assert randomness(generator) == before
        batches = begin(loader, tape)
        after = randomness(generator)
        assert {name for name in before if before[name] != after[name]} == {"generator 0" if given else "torch"}
        take(batches, tape, generator=generator)
        assert randomness(generator) == after

    both(program)


def test_persistent_workers_are_seeded_once_and_their_streams_of_numbers_run_on() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(sources.Noisy(6), batch_size=2, num_workers=2, persistent_workers=True)
        epoch(loader, tape)
        after = randomness()
        epoch(loader, tape)
        assert randomness() == after  # not shuffled: a later epoch draws nothing
        epoch(loader, tape)

    both(program)


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("source", [sources.Noisy, sources.NoisyStream])
def test_what_was_prefetched_before_a_reset_is_made_and_thrown_away(source: Any, taken: int) -> None:
    """So that a persistent worker's generators are where torch's are when the next epoch begins."""

    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(
            source(40),
            batch_size=2,
            num_workers=2,
            persistent_workers=True,
            prefetch_factor=2,
            generator=None,
        )
        for count in (taken, 2, 1000):
            epoch(loader, tape, count)

    both(program)


@pytest.mark.parametrize("workers", [0, 2])
def test_two_iterators_of_one_loader_run_side_by_side(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        generator = torch.Generator().manual_seed(1)
        loader = loader_class(sources.Noisy(7), 2, True, num_workers=workers, generator=generator)
        one, other = begin(loader, tape), begin(loader, tape)
        tape.extend(zip(one, other, strict=True))
        tape.append(randomness(generator))

    both(program)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_goes_on_where_it_was_while_another_is_begun_and_dropped(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(sources.Noisy(7), 1, True, num_workers=workers)
        batches = begin(loader, tape)
        take(batches, tape, 2)
        epoch(loader, tape, 1)
        take(batches, tape)

    both(program)


def test_a_persistent_loader_has_one_iterator_and_an_old_handle_is_reset_with_it() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(sources.Noisy(5), num_workers=1, persistent_workers=True)
        old = begin(loader, tape)
        take(old, tape, 2)
        new = begin(loader, tape)
        tape.append(old is new)
        take(old, tape, 1)
        take(new, tape)

    both(program)


class WithItsOwnGenerator(Dataset[Any]):
    def __init__(self) -> None:
        self.generator = np.random.default_rng(5)
        self.python = random.Random(5)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: int) -> Any:
        return key, self.generator.random(), self.python.random()


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_generators_that_a_dataset_holds_are_left_alone(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(WithItsOwnGenerator(), num_workers=workers)
        epoch(loader, tape)
        epoch(loader, tape)

    both(program)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_inside_a_dataset_draws_from_the_workers_generator(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        inner = loader_class(sources.Noisy(4), 2, True)

        def make(key: int) -> Any:
            return [batch["key"] for batch in inner], sources.whoami()

        epoch(loader_class(sources.Made(5, make), None, num_workers=workers), tape)

    both(program)
