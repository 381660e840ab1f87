"""`penstock.each`: many samples are made at once, and each is still a sample of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance.sources import Drawing, DrawingEach

from penstock import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, each, rng

KEYS = [3, 0, 3, 2, 5]


class OneByOne(Dataset[Any]):
    """Another dataset through its `__getitem__` alone."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, key: Any) -> Any:
        return self.dataset[key]

    def __len__(self) -> int:
        return len(self.dataset)


class Many(Drawing):
    """Through `__getitems__`, which looks at its samples one by one."""

    def __getitems__(self, keys: Any) -> list[Any]:
        return [self[key] for key in each(keys)]


class Crowd(Drawing):
    """A sample is made of three others, fetched at once."""

    def __getitem__(self, key: Any) -> Any:
        return np.concatenate([*Many().__getitems__([key, 0, 1]), Drawing()[key]])


class Twice(Dataset[Any]):
    """Asks another dataset for twice as many as it was asked for."""

    def __len__(self) -> int:
        return 6

    def __getitems__(self, keys: Any) -> list[Any]:
        return ConcatDataset([Many(6), Many(6)]).__getitems__([*keys, *keys])[: len(keys)]


def rows(dataset: Any, **settings: Any) -> list[Any]:
    loader = DataLoader(dataset, batch_size=len(KEYS), sampler=KEYS, seed=3, **settings)
    return [np.asarray(batch).tolist() for batch in loader]


@pytest.mark.parametrize(
    "dataset",
    [
        Many(),
        DrawingEach(),
        Subset(DrawingEach(), [4, 2, 0, 1, 3, 5]),
        Subset(Drawing(), [4, 2, 0, 1, 3, 5]),
        ConcatDataset([Drawing(1), Many(2), DrawingEach(9)]),
        Drawing(1) + Many(2) + Drawing(9),
        StackDataset(Drawing(), Many()),
        StackDataset(Crowd(), Crowd()),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_samples_made_at_once_draw_what_they_draw_alone(dataset: Any) -> None:
    def stack(samples: list[Any]) -> Any:
        return np.stack([np.concatenate(np.atleast_2d(sample)) for sample in samples])

    assert rows(dataset, collate_fn=stack) == rows(OneByOne(dataset), collate_fn=stack)


def test_a_gather_draws_what_getitem_draws() -> None:
    assert rows(DrawingEach()) == rows(OneByOne(DrawingEach())) == rows(Drawing())
    picked = [4, 2, 0, 1, 3, 5]
    assert rows(Subset(DrawingEach(), picked)) == rows(OneByOne(Subset(Drawing(), picked)))


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_bad_sample_among_many_leaves_the_numbers_of_the_others_alone(on_error: str) -> None:
    whole = rows(DrawingEach(bad=2), on_error=on_error)
    assert whole == rows(OneByOne(DrawingEach(bad=2)), on_error=on_error)
    good = rows(Drawing())[0]
    assert whole[0][:3] == good[:3] and whole[0][-1] == good[-1]


@pytest.mark.parametrize(
    "dataset",
    [ConcatDataset([Drawing(1), DrawingEach(9, bad=1)]), Subset(DrawingEach(9, bad=1), [0, 8, 1, 3, 4, 5])],
    ids=lambda dataset: type(dataset).__name__,
)
def test_an_error_names_the_key_that_the_loader_knows(dataset: Any) -> None:
    with pytest.raises(ValueError, match="bad pixels") as caught:
        rows(dataset)
    assert "In sample 2 (row 3), step 0" in caught.value.__notes__[0]


def test_after_the_loop_the_step_is_at_work_again() -> None:
    class Total(Many):
        def __getitems__(self, keys: Any) -> list[Any]:
            before = rng().random()
            samples = super().__getitems__(keys)
            after = rng().random()
            return [np.append(sample, [before, after]) for sample in samples]

    (batch,) = rows(Total())
    assert len({tuple(row[2:]) for row in batch}) == 1
    assert len({row[0] for row in batch}) == 4


def test_what_a_dataset_asks_another_for_is_not_a_sample_of_the_step() -> None:
    (batch,) = rows(Twice())
    assert batch[0] != batch[2], "one key twice, but these are the step's numbers"


def test_outside_of_a_loader_it_is_a_plain_iterator() -> None:
    assert list(each(["a", "b"])) == ["a", "b"]
    assert [type(key) for key in each(np.arange(2))] == [int, int]
