"""Law 1: every backend gives the batches that the plain loop gives, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from same import same

from conformance import sources
from penstock import ArrayDataset, ConcatDataset, DataLoader, Dataset, Subset

rng = np.random.default_rng(0)
ROWS = rng.integers(0, 1 << 30, (23, 5)).astype(np.int32)


def inline(dataset: Any, **kwargs: Any) -> list[Any]:
    with DataLoader(dataset, **kwargs) as loader:
        return list(loader)


@pytest.mark.parametrize(
    ("dataset", "kwargs"),
    [
        (sources.Squares(10), {}),
        (sources.Squares(10), {"batch_size": 4}),
        (sources.Squares(10), {"batch_size": 4, "drop_last": True}),
        (sources.Squares(3), {"batch_size": 7}),
        (sources.Squares(0), {"batch_size": 2}),
        (sources.Squares(10), {"batch_size": None}),
        (sources.Squares(10), {"batch_size": 3, "shuffle": True, "seed": 5}),
        (sources.Squares(10), {"batch_size": 3, "sampler": [5, 1, 1, 8]}),
        (sources.Squares(10), {"batch_sampler": [[1], [2, 3], (4, 5, 6)]}),
        (sources.Squares(10), {"batch_size": None, "sampler": [3, 1]}),
        (sources.Rich(), {"batch_size": 4}),
        (sources.Rich(), {"batch_size": None}),
        (sources.Batched(list(ROWS)), {"batch_size": 4}),
        (sources.Gathered(ROWS), {"batch_size": 4}),
        (ArrayDataset(ROWS), {"batch_size": 4, "shuffle": True, "seed": 1}),
        (ArrayDataset(x=ROWS, y=np.arange(23)), {"batch_size": 4}),
        (ConcatDataset([Subset(sources.Squares(9), [4, 2]), sources.Squares(3)]), {"batch_size": 2}),
        (["a", "bc", "def"], {"batch_size": 2}),
        ({"x": 1.5, "y": 2.5}, {"batch_size": 2, "sampler": ["y", "x", "y"]}),
        (ROWS, {"batch_size": 6}),
        (sources.Squares(10), {"batch_size": 4, "collate_fn": sources.total}),
        (sources.Countdown(10), {"batch_size": 4}),
        (sources.Countdown(10), {"batch_size": 4, "drop_last": True}),
        (sources.Countdown(5), {"batch_size": None}),
        (sources.Countdown(0), {"batch_size": 2}),
        (sources.Light(10), {"batch_size": 4}),
        (sources.Light(10), {"batch_size": 4, "drop_last": True}),
        (sources.Light(5), {"batch_size": None}),
        (sources.Shuffling(), {"batch_size": 3, "seed": 3}),
        (sources.Noisy(), {"batch_size": 3, "seed": 3, "shuffle": True}),
        (sources.Growing([1, 5, 100, 1000, 10, 3]), {}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else ",".join(map(str, value)),
)
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_a_backend_gives_what_the_plain_loop_gives(make: Any, dataset: Any, kwargs: dict[str, Any]) -> None:
    if make(dataset, **kwargs).backend == "thread" and isinstance(dataset, (sources.Noisy, sources.Shuffling)):
        pytest.skip("threads share the global generators: only penstock.rng() is theirs")
    expected = inline(dataset, **kwargs)
    loader = make(dataset, **kwargs)
    assert same(list(loader), expected)
    if kwargs.get("shuffle") is None and "seed" not in kwargs:
        assert same(list(loader), expected), "and again in the second epoch"


def test_batches_say_which_samples_they_hold(make: Any) -> None:
    loader = make(sources.Squares(10), batch_size=4, shuffle=True, seed=7)
    for epoch in range(2):
        for step, batch in enumerate(loader.batches()):
            assert (batch.epoch, batch.step, batch.pad) == (epoch, step, 0)
            assert batch.index.dtype == np.uint64
            assert (batch.index**2).tolist() == batch.data.tolist()


@pytest.mark.parametrize("stream", [sources.Countdown(5), sources.Light(5)])
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_rows_of_a_stream_are_numbered_by_position(make: Any, stream: Any) -> None:
    loader = make(stream, batch_size=2)
    assert [batch.index.tolist() for batch in loader.batches()] == [[0, 1], [2, 3], [4]]


def test_keys_that_are_not_integers_give_no_index(make: Any) -> None:
    loader = make({"x": 1, "y": 2}, sampler=["x", "y"])
    assert [batch.index for batch in loader.batches()] == [None, None]


def test_arrays_of_a_batch_can_be_written_to(make: Any) -> None:
    for batch in make(sources.Rich(), batch_size=4):
        batch["array"] += 1
        batch["pair"].image[:] = 0


def test_results_that_pickle_only_by_value_arrive(make: Any) -> None:
    class Point:
        def __init__(self, x: Any) -> None:
            self.x = x

    loader = make(sources.Squares(3), collate_fn=lambda samples: Point(np.array(samples)))
    assert [batch.x.tolist() for batch in loader] == [[0], [1], [4]]


class Wordy(Dataset[Any]):
    """Batches alike in their arrays, with ever more text beside them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, key: int) -> Any:
        fields = {f"field {field}": np.full(3, key) for field in range(8)}
        return {**fields, "text": "x" * (10 if key < 20 else 300 * key)}


def test_text_that_outgrows_a_known_layout_arrives_whole(make: Any) -> None:
    batches = list(make(Wordy()))
    assert [len(batch["text"][0]) for batch in batches] == [10 if key < 20 else 300 * key for key in range(40)]
    assert [batch["field 7"][0, 2] for batch in batches] == list(range(40))
