"""What a sampler is asked, and when; what becomes of what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from parity import sources
from parity.compare import difference
from parity.pair import Ours, Tape, Theirs, begin, both, epoch, forget_frames, run, take


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 3), (2, 2)])
def test_so_many_keys_are_asked_for_at_once_and_then_one_for_each_batch(
    workers: int, prefetch: int, persistent: bool
) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        asked: Tape = []
        loader = loader_class(
            sources.Noisy(9),
            batch_size=None,
            sampler=sources.Asked(list(range(9)), asked),
            num_workers=workers,
            prefetch_factor=prefetch,
            persistent_workers=persistent,
        )
        tape.append(len(asked))
        for _ in range(2):
            asked.clear()
            batches = iter(loader)
            tape.append(len(asked))
            for _ in batches:
                tape.append(len(asked))

    tape = both(program)
    ahead = workers * prefetch
    one_epoch = [ahead, *(min(ahead + taken, 10) for taken in range(1, 10))]  # ten: the end is asked for, too
    assert tape == [0, *one_epoch, *one_epoch]


def test_without_workers_a_key_is_asked_for_when_its_batch_is() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(sources.Noisy(5), 2, sampler=sources.Asked([4, 2, 0], tape)), tape)

    both(program)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("tensors_are_sent")
def test_the_dataset_gets_the_keys_as_the_sampler_gave_them(workers: int) -> None:
    keys = ["text", (1, "two"), slice(2, 5), [3, 4], 2**70, torch.tensor(3), None, b"bytes", frozenset({1})]

    def program(loader_class: Any, tape: Tape) -> None:
        data = sources.Made(9, lambda key: (type(key).__name__, repr(key)))
        epoch(loader_class(data, None, sampler=keys, num_workers=workers), tape)
        epoch(loader_class(data, 2, sampler=keys, num_workers=workers), tape)

    both(program)


class Told(sources.Noisy):
    def __getitems__(self, keys: Any) -> Any:
        return [(type(keys).__name__, repr(keys))]


class NotMany(sources.Noisy):
    __getitems__ = None


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("source", [Told, NotMany])
@pytest.mark.usefixtures("tensors_are_sent")
def test_getitems_gets_a_whole_batch_as_it_is_and_none_means_there_is_none(source: Any, workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        batches = [[0, 1], (2, 3), torch.tensor([1, 0]), []]
        collate = sources.identity
        epoch(loader_class(source(4), batch_sampler=batches, num_workers=workers, collate_fn=collate), tape)

    both(program)


class Failing:
    """A sampler whose error has to come out of the call that asked it."""

    def __init__(self, good: int) -> None:
        self.good = good

    def __iter__(self) -> Iterator[int]:
        yield from range(self.good)
        raise ZeroDivisionError("the sampler failed")


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("good", [0, 1, 5, 8])
def test_an_error_of_the_sampler_comes_from_the_call_that_asked_it(good: int, workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(sources.Noisy(9), None, sampler=Failing(good), num_workers=workers)
        batches = begin(loader, tape)
        try:
            tape.extend([] if batches is None else batches)
        except ZeroDivisionError as error:
            tape.append(forget_frames(error))
        # What torch does after it (the batch that was about to be delivered is lost) is no model.

    both(program)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_grew_is_longer_in_the_next_epoch(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        data = list(range(5))
        loader = loader_class(data, batch_size=2, num_workers=workers)
        for _ in range(3):
            tape.append(len(loader))
            epoch(loader, tape)
            data += [100, 101]

    both(program)


def test_persistent_workers_do_not_see_what_was_added_to_the_dataset() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        data = list(range(5))
        loader = loader_class(data, batch_size=2, num_workers=2, persistent_workers=True)
        epoch(loader, tape)
        data += [100, 101]
        tape.append(len(loader))
        epoch(loader, tape)

    both(program)


def test_a_hundred_thousand_keys_in_one_batch_fill_no_pipe() -> None:
    class Many(sources.Noisy):
        def __getitems__(self, keys: list[int]) -> Any:
            return torch.tensor(keys)

    def program(loader_class: Any, tape: Tape) -> None:
        # As many at once as there may be, and nobody reads until they are all sent.
        loader = loader_class(Many(600_000), 100_000, num_workers=2, prefetch_factor=3, collate_fn=sources.identity)
        tape.extend(loader)

    assert len(both(program)) == 6


@pytest.mark.parametrize("persistent", [False, True])
def test_out_of_order_one_worker_keeps_the_order(persistent: bool) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(
            sources.Noisy(9, frozenset({4})), 2, num_workers=1, in_order=False, persistent_workers=persistent
        )
        epoch(loader, tape)
        epoch(loader, tape, 2)
        epoch(loader, tape)

    both(program)


@pytest.mark.parametrize("source", [sources.Made, sources.NoisyShards], ids=["map", "stream"])
def test_out_of_order_several_workers_give_the_same_batches_in_some_order(source: Any) -> None:
    def keys(samples: list[Any]) -> list[int]:
        return [sample["key"] if isinstance(sample, dict) else sample for sample in samples]

    def program(loader_class: Any, tape: Tape) -> None:
        data = source(11, str) if source is sources.Made else source(11)
        loader = loader_class(data, 2, num_workers=2, in_order=False, collate_fn=keys)
        for _ in range(2):
            tape.append(sorted(loader))

    both(program)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_slow_batch_is_waited_for_only_in_order(in_order: bool) -> None:
    how = {"in_order": in_order, "prefetch_factor": 2, "multiprocessing_context": "fork", "timeout": 30}

    def program(loader_class: Any, tape: Tape) -> None:
        with sources.gated(8, 0) as (dataset, let_go):
            batches = iter(loader_class(dataset, None, num_workers=2, **how))
            if in_order:
                let_go()
            before = [] if in_order else [next(batches), next(batches)]
            if not in_order:
                let_go()
            after = list(batches)
            tape.append(before)
            tape.append(after if in_order else sorted(after))

    assert both(program) == ([[], list(range(8))] if in_order else [[1, 3], [0, 2, 4, 5, 6, 7]])


def test_an_old_iterator_asks_nothing_after_its_end() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(sources.Noisy(4), sampler=sources.Asked([1, 2], tape), num_workers=1)
        batches = begin(loader, tape)
        take(batches, tape)
        take(batches, tape)
        take(batches, tape)

    both(program)


def test_the_suite_sees_a_different_order() -> None:
    """Of itself: a tape of another shuffle is not the same tape."""

    def program(seed: int) -> Any:
        def order(loader_class: Any, tape: Tape) -> None:
            torch.manual_seed(seed)
            epoch(loader_class(sources.Noisy(9), 2, True), tape)

        return order

    assert difference(run(program(1), Ours), run(program(2), Theirs)) is not None


class Counted:
    """A sampler that goes on where it was when it is begun again, and notices when it is (no generator does)."""

    def __init__(self, batched: bool) -> None:
        self.batched = batched
        self.begun = 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        keys = range(10 * self.begun, 10 * self.begun + 3)
        return iter([[key] for key in keys] if self.batched else keys)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("batched", [False, True])
def test_a_sampler_is_begun_as_often_as_torch_begins_it(workers: int, persistent: bool, batched: bool) -> None:
    """With workers and no batch_size (or a batch_sampler) torch begins it twice in an iterator's first epoch."""

    def program(loader_class: Any, tape: Tape) -> None:
        sampler = Counted(batched)
        keys: Any = {"batch_sampler": sampler} if batched else {"sampler": sampler, "batch_size": None}
        loader = loader_class(sources.Made(0, int), num_workers=workers, persistent_workers=persistent, **keys)
        for _ in range(3):
            tape.append([int(batch) for batch in loader])
        tape.append(sampler.begun)

    both(program)
