"""Law 3: `penstock.rng()` belongs to the sample, in every backend, threads too."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from same import same

import penstock
from conformance import sources
from penstock import DataLoader


def inline(dataset: Any, **kwargs: Any) -> list[Any]:
    with DataLoader(dataset, **kwargs) as loader:
        return [list(loader), list(loader)]


@pytest.mark.parametrize(
    ("dataset", "kwargs"),
    [
        (sources.Drawing(), {"batch_size": 5, "shuffle": True}),
        (sources.Drawing(), {"batch_size": None, "shuffle": True}),
        (sources.Drawing(), {"batch_size": 5, "collate_fn": sources.noisy_total}),
        (sources.Drawing(), {"batch_size": 2, "sampler": ["a", ("b", 1), 3, np.int64(3)]}),
        (sources.Drawing(), {"batch_size": 4, "on_error": "skip"}),
        (sources.DrawingMany(), {"batch_size": 5}),
        (sources.DrawingMany(), {"batch_size": 5, "collate_fn": sources.noisy_total}),
        (sources.DrawingGather(), {"batch_size": 5}),
        (sources.DrawingEach(), {"batch_size": 5, "shuffle": True}),
        (sources.DrawingStream(), {"batch_size": 4}),
        (sources.DrawingStream(), {"batch_size": None}),
        (sources.DrawingItems(), {"batch_size": 4}),
        (sources.DrawingItems(), {"batch_size": None}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else ",".join(map(str, value)),
)
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_a_backend_draws_what_the_plain_loop_draws(make: Any, dataset: Any, kwargs: dict[str, Any]) -> None:
    expected = inline(dataset, seed=3, **kwargs)
    loader = make(dataset, seed=3, **kwargs)
    assert same([list(loader), list(loader)], expected)
    assert not same(expected[0], expected[1]), "each epoch has its own numbers"


def test_numbers_go_with_the_key_and_not_with_its_place(make: Any) -> None:
    rows = {}
    for settings in ({"shuffle": True}, {"batch_size": 5}, {"batch_size": None}):
        loader = make(sources.Drawing(), seed=3, **settings)
        for batch in loader.batches():
            data = np.atleast_2d(batch.data)
            for key, row in zip(batch.index.tolist(), data.tolist(), strict=True):
                assert rows.setdefault(key, row) == row
    assert len({tuple(row) for row in rows.values()}) == len(rows) == 12


def test_a_second_call_goes_on_drawing(make: Any) -> None:
    for batch in make(sources.Drawing(), seed=3):
        assert batch[0, 0] != batch[0, 1]


def test_one_key_twice_in_a_step_draws_the_same_twice(make: Any) -> None:
    (batch,) = make(sources.Drawing(), batch_size=3, sampler=[4, 4, 4], seed=3)
    assert batch[0].tolist() == batch[1].tolist() == batch[2].tolist()


def drawn(samples: list[Any]) -> Any:
    return penstock.rng().random()


def test_what_a_collate_function_draws_belongs_to_the_step(make: Any) -> None:
    settings = {"batch_size": 2, "collate_fn": drawn, "seed": 3}
    one = list(make(sources.Drawing(), sampler=[0, 1, 2, 3], **settings))
    other = list(make(sources.Drawing(), sampler=[7, 6, 5, 4], **settings))
    assert one == other and len(set(one)) == 2


def test_a_loader_without_a_seed_draws_from_the_one_that_it_drew(make: Any) -> None:
    loader = make(sources.Drawing(), batch_size=4)
    assert same(list(loader), inline(sources.Drawing(), batch_size=4, seed=loader.seed)[0])


class Nesting(penstock.Dataset[Any]):
    """Reads a loader of its own in the middle of each sample."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: int) -> Any:
        before = penstock.rng().random()
        within = np.concatenate(list(DataLoader(sources.Drawing(3), seed=key)))
        return {"before": before, "within": within, "after": penstock.rng().random()}


def test_a_loader_inside_a_dataset_gives_the_outer_sample_back(make: Any) -> None:
    inner = [np.concatenate(inline(sources.Drawing(3), seed=key)[0]) for key in range(3)]
    outer = np.concatenate(inline(sources.Drawing(3), seed=9)[0])
    for key, batch in enumerate(make(Nesting(), batch_size=None, seed=9)):
        assert [batch["before"], batch["after"]] == outer[key].tolist()
        assert same(batch["within"], inner[key])


def draw_at_the_start(worker: int) -> None:
    penstock.rng()


def test_a_worker_that_starts_is_at_no_sample(make_concurrent: Any) -> None:
    with pytest.raises(RuntimeError, match="no loader computes one in this thread"):
        list(make_concurrent(sources.Squares(2), worker_init_fn=draw_at_the_start))


def test_outside_of_a_loader_there_is_no_sample() -> None:
    with pytest.raises(RuntimeError, match="no loader computes one in this thread"):
        penstock.rng()
    list(DataLoader(sources.Drawing()))
    with pytest.raises(RuntimeError, match=r"numpy\.random\.default_rng"):
        penstock.rng()


class Threaded(penstock.Dataset[Any]):
    """Draws in a thread of its own."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: int) -> Any:
        caught: list[str] = []

        def draw() -> None:
            try:
                penstock.rng()
            except RuntimeError as error:
                caught.append(str(error))

        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
        return caught[0]


def test_a_thread_of_the_datasets_own_is_refused_in_every_backend(make: Any) -> None:
    ((text,),) = make(Threaded())
    assert "the order in which several threads draw" in text


class Forking(penstock.Dataset[Any]):
    """Starts workers in the middle of a sample."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: int) -> Any:
        inner = {"worker_init_fn": draw_at_the_start, "num_workers": 1, "multiprocessing_context": "fork"}
        with DataLoader(sources.Squares(1), **inner) as loader:  # type: ignore[arg-type]
            return list(loader)


def test_a_worker_that_was_forked_from_a_sample_is_not_at_it() -> None:
    with pytest.raises(RuntimeError, match="no loader computes one in this thread"):
        list(DataLoader(Forking()))


@pytest.mark.parametrize("dataset", [sources.DrawingStream(), sources.DrawingItems()])
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_ranks_of_a_stream_draw_what_one_would_draw(make: Any, dataset: Any) -> None:
    settings = {"batch_size": 2, "seed": 3, "last_batch": "keep"}
    whole = list(DataLoader(dataset, **settings))
    for rank in range(2):
        assert same(list(make(dataset, shard=(rank, 2), **settings)), whole[rank::2])


def test_what_ranks_draw_in_a_collate_function_differs(make: Any) -> None:
    settings = {"batch_size": 2, "seed": 3, "collate_fn": drawn, "last_batch": "keep"}
    one, other = (list(make(sources.Drawing(), shard=(rank, 2), **settings)) for rank in range(2))
    assert len({*one, *other}) == len(one) + len(other) == 6


@pytest.mark.parametrize("dataset", [sources.Drawing(), sources.DrawingStream(), sources.DrawingItems()])
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_a_resumed_epoch_draws_what_it_would_have_drawn(make: Any, dataset: Any) -> None:
    settings = {"batch_size": 2, "seed": 3}
    whole = list(DataLoader(dataset, **settings))
    taken = DataLoader(dataset, **settings)
    batches = iter(taken)
    next(batches), next(batches)
    loader = make(dataset, **settings)
    loader.load_state_dict(taken.state_dict())
    assert same(list(loader), whole[2:])
