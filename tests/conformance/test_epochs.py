"""Epochs follow each other, iterators are independent, and an abandoned one is not waited for."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance import sources
from penstock import DataLoader, LoaderTimeout, RandomSampler


def values(loader: Any) -> list[int]:
    return [int(value) for batch in loader for value in np.atleast_1d(batch)]


def test_each_epoch_has_its_own_order_and_every_sample(make: Any) -> None:
    loader = make(range(20), batch_size=3, shuffle=True, seed=1)
    epochs = [values(loader) for _ in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_the_order_is_a_function_of_seed_and_epoch(make: Any) -> None:
    first = make(range(20), shuffle=True, seed=1)
    epochs = [values(first) for _ in range(3)]
    second = make(range(20), shuffle=True, seed=1)
    second.set_epoch(2)
    assert values(second) == epochs[2]
    second.set_epoch(0)
    assert values(second) == epochs[0]
    assert values(second) == epochs[1]
    assert values(make(range(20), shuffle=True, seed=2)) != epochs[0]


def test_the_loader_counts_epochs(make: Any) -> None:
    loader = make(range(4))
    assert loader.epoch == 0
    for epoch in range(3):
        for _ in loader:
            assert loader.epoch == epoch
        assert loader.epoch == epoch
    loader.set_epoch(9)
    assert loader.epoch == 9
    assert [batch.epoch for batch in loader.batches()] == [9] * 4


def test_an_iterator_that_has_ended_stays_ended(make: Any) -> None:
    batches = iter(make(range(2)))
    assert len(list(batches)) == 2
    assert list(batches) == [] and next(batches, None) is None


def test_an_iterator_outlives_its_loader(make: Any) -> None:
    batches = iter(DataLoader(range(5), num_workers=make([]).num_workers, backend=_backend(make)))
    assert [batch.item() for batch in batches] == [0, 1, 2, 3, 4]


def _backend(make: Any) -> str | None:
    backend: str = make([]).backend
    return None if backend == "inline" else backend


def test_len_follows_a_growing_dataset(make: Any) -> None:
    data = [0, 1, 2]
    loader = make(data, batch_size=2)
    assert len(loader) == 2
    values(loader)
    data += [3, 4]
    assert len(loader) == len(iter(loader)) == 3


def test_a_dataset_that_grew_between_epochs_is_read_whole(make: Any) -> None:
    data = [0, 1, 2]
    loader = make(data)
    values(loader)
    data.append(3)
    assert values(loader) == [0, 1, 2, 3]


def test_threads_see_what_the_caller_changes_between_epochs() -> None:
    data = [0, 1, 2, 3]
    with DataLoader(data, num_workers=2, backend="thread") as loader:
        assert values(loader) == [0, 1, 2, 3]
        data[:] = [10, 11, 12, 13]
        assert values(loader) == [10, 11, 12, 13]


def test_a_foreign_sampler_is_asked_once_an_epoch_and_no_more_than_the_window(make: Any) -> None:
    class Sampler:
        begun = 0
        drawn = 0

        def __iter__(self) -> Any:
            self.begun += 1
            for key in range(100):
                self.drawn += 1
                yield key

    sampler = Sampler()
    loader = make(range(100), sampler=sampler)
    batches = iter(loader)
    next(batches)
    assert sampler.begun == 1
    assert sampler.drawn <= 2 + loader.num_workers * 2
    list(batches)
    values(loader)
    assert sampler.begun == 2 and sampler.drawn == 200


def test_samplers_of_the_users_choice_are_honoured(make: Any) -> None:
    sampler = RandomSampler(range(10), generator=np.random.default_rng(0))
    again = RandomSampler(range(10), generator=np.random.default_rng(0))
    loader = make(range(10), batch_size=4, sampler=sampler)
    assert [values(loader), values(loader)] == [list(again), list(again)]


def test_a_generator_seeds_the_order(make: Any) -> None:
    def order() -> list[int]:
        return values(make(range(50), shuffle=True, generator=np.random.default_rng(3)))

    assert order() == order()


def test_numpys_global_seed_seeds_the_order(make: Any) -> None:
    def order() -> list[int]:
        np.random.seed(11)
        return values(make(range(50), shuffle=True))

    state = np.random.get_state()
    try:
        assert order() == order()
    finally:
        np.random.set_state(state)


def test_the_callers_generators_are_left_alone(make: Any) -> None:
    import random

    loader = make(sources.Noisy(), seed=1)
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    if loader.backend == "thread":
        pytest.skip("threads draw from the caller's generators")
    list(loader)
    assert (random.random(), np.random.random()) == expected


def test_worker_info_says_who_and_how_many(make: Any) -> None:
    from penstock import get_worker_info

    loader = make(sources.Whereabouts(), collate_fn=lambda samples: samples[0])
    places = list(loader)
    workers = loader.num_workers
    if workers == 0:
        assert {place[0] for place in places} == {-1}
    else:
        assert {place[0] for place in places} <= set(range(workers))
        assert {place[1] for place in places} == {workers}
    assert get_worker_info() is None


def test_worker_init_fn_may_be_a_bound_method_of_the_dataset(make_processes: Any) -> None:
    dataset = sources.Marked()
    loader = make_processes(dataset, worker_init_fn=dataset.set_mark)
    marks = {batch.item() for batch in loader}
    assert marks and marks <= {100 + worker for worker in range(loader.num_workers)}
    assert dataset.mark == -1


@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_a_stream_without_duplicates_in_every_epoch(make: Any) -> None:
    loader = make(sources.Countdown(9), batch_size=2)
    for _ in range(3):
        assert values(loader) == list(range(9, 0, -1))


def test_a_slow_sample_holds_back_nobody_else(make_concurrent: Any) -> None:
    """With the first step held up, everything else in the window is still done by the other worker."""
    loader = make_concurrent(sources.Slow(40, {0: 3.0}), in_order=False, prefetch_factor=8)
    if loader.num_workers < 2:
        pytest.skip("there is nobody else")
    batches = iter(loader)
    before = [next(batches).item() for _ in range(12)]
    assert 0 not in before


def test_breaking_off_is_not_waited_for(make_concurrent: Any) -> None:
    loader = make_concurrent(sources.Slow(50, dict.fromkeys(range(1, 50), 30.0)))
    batches = iter(loader)
    next(batches)
    begun = time.monotonic()
    del batches
    loader.close()
    assert time.monotonic() - begun < 20  # 0.2 is promised, and a sample takes 30


def test_a_timeout_says_which_step_who_is_at_what_and_may_be_waited_out(make_concurrent: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bar")
    loader = make_concurrent(sources.Barred(str(tmp_path / "bar")), timeout=0.3)
    batches = iter(loader)
    assert _patiently(batches).item() == 0
    said = ""
    while "is working on it. Its stack" not in said:  # a worker that was just born may not have begun
        with pytest.raises(LoaderTimeout, match=r"timed out after 0.3 seconds\n  Step 1 of epoch 0") as caught:
            next(batches)
        said = str(caught.value)
    assert isinstance(caught.value, RuntimeError)
    assert re.search(
        r'sources.py", line \d+ in wait_at_the_bar\n    File ".*sources.py", line \d+ in __getitem__', said
    )
    assert "Samples in the step: [1]" in said
    (tmp_path / "bar").write_bytes(b"")
    assert [_patiently(batches).item() for _ in range(3)] == [1, 2, 3]


def _patiently(batches: Any) -> Any:
    """The next batch, however long it takes: workers may be slow to start."""
    while True:
        try:
            return next(batches)
        except LoaderTimeout:
            continue
