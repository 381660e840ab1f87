"""A loader with shuffle="blocks": its order, its states, and the blocks of its dataset."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import BlockSampler, ConcatDataset, DataLoader, Dataset, StateError
from penstock.plan import BlockOrder
from penstock.testing import assert_resumes_everywhere, assert_same_everywhere


class Blocked(Dataset[Any]):
    """50 samples, in blocks of five unless told otherwise; those in `bad` raise."""

    def __init__(self, size: int = 5, bad: frozenset[int] = frozenset()) -> None:
        self.size, self.bad = size, bad

    def __len__(self) -> int:
        return 50

    def __getitem__(self, key: int) -> Any:
        if key in self.bad:
            raise ValueError(f"sample {key}")
        return key, penstock.rng().random()

    @property
    def blocks(self) -> Any:
        return np.append(np.arange(0, 50, self.size), 50)


def loader(dataset: Any = None, **settings: Any) -> DataLoader[Any]:
    given: dict[str, Any] = {"batch_size": 4, "shuffle": "blocks", "window": 3, "seed": 1, **settings}
    return DataLoader(Blocked() if dataset is None else dataset, **given)


def keys(of: Any) -> list[int]:
    return [key for batch in of for key in batch[0].tolist()]


def test_the_keys_are_those_of_the_order() -> None:
    made, order = loader(), BlockOrder(Blocked().blocks, 3, 1)
    for epoch in range(2):
        assert keys(made) == order.at(epoch, np.arange(50)).tolist()
    assert (made.shuffle, made.window) == ("blocks", 3)


def test_a_sampler_with_the_same_blocks_gives_the_same_keys() -> None:
    sampler = BlockSampler(Blocked().blocks, 3)
    assert keys(loader(shuffle=None, window=None, sampler=sampler)) == keys(loader())


def test_sixteen_blocks_are_the_default() -> None:
    assert loader(window=None).window == 16
    assert keys(loader(window=None)) == keys(loader(window=16))
    assert loader(shuffle=True, window=None).window is None


@pytest.mark.parametrize(
    "more", [{}, {"last_batch": "rollover"}, {"shard": (1, 3)}, {"on_error": "replace"}], ids=str
)
def test_it_is_the_same_everywhere_and_resumes_everywhere(more: dict[str, Any]) -> None:
    bad = frozenset({7, 8, 31}) if more.get("on_error") else frozenset[int]()

    def make(**settings: Any) -> DataLoader[Any]:
        return loader(Blocked(bad=bad), **more, **settings)

    settings = [{"num_workers": 0}, {"num_workers": 2, "backend": "thread"}, {"num_workers": 1}]
    assert_same_everywhere(make, settings, epochs=2)
    assert_resumes_everywhere(make, settings[:2])


def test_samples_that_fail_are_replaced() -> None:
    made = loader(Blocked(bad=frozenset({7, 8, 31})), on_error="replace")
    found = keys(made)
    assert sorted(key for key, _ in made.skipped) >= [7, 8, 31]
    assert len(found) == 50 and not {7, 8, 31} & set(found)


def test_consumers_that_share_an_epoch_get_every_key_once() -> None:
    first, second = loader().share(2)
    found = keys(islice(first, 3)) + keys(second) + keys(first)
    assert sorted(found) == list(range(50))


def test_the_blocks_of_each_epoch_are_those_that_the_dataset_has_then() -> None:
    dataset = Blocked()
    made = loader(dataset)
    list(made)
    made.update(size=10)
    assert keys(made) == BlockOrder(np.arange(0, 51, 10), 3, 1).at(1, np.arange(50)).tolist()


def state_after_two_batches(made: DataLoader[Any]) -> Any:
    batches = iter(made)
    next(batches), next(batches)
    return json.loads(json.dumps(made.state_dict()))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"dataset": Blocked(10)}, "was '50 keys in 10 blocks, window 3, .* and is '50 keys in 5 blocks, window 3, "),
        ({"window": 4}, "was '50 keys in 10 blocks, window 3, .* and is '50 keys in 10 blocks, window 4, "),
        ({"shuffle": True, "window": None}, "order was 'shuffled by blocks' .* and is 'shuffled'"),
        ({"shuffle": False, "window": None}, "order was 'shuffled by blocks' .* and is 'in sequence'"),
    ],
    ids=["blocks", "window", "shuffled", "in sequence"],
)
def test_a_state_of_another_order_is_refused_with_the_reason(other: dict[str, Any], why: str) -> None:
    state = state_after_two_batches(loader())
    with pytest.raises(StateError, match=why):
        loader(**other).load_state_dict(state)


def test_blocks_that_moved_are_noticed_even_if_there_are_as_many() -> None:
    state = state_after_two_batches(loader())

    class Moved(Blocked):
        @property
        def blocks(self) -> Any:
            return np.array([0, 6, 10, 15, 20, 25, 30, 35, 40, 45, 50])

    with pytest.raises(StateError, match=r"was '50 keys in 10 blocks, .* and is '50 keys in 10 blocks, "):
        loader(Moved()).load_state_dict(state)


def test_between_two_epochs_blocks_and_window_may_change() -> None:
    made = loader()
    list(made)
    other = loader(Blocked(10), window=4)
    other.load_state_dict(made.state_dict())
    assert keys(other) == BlockOrder(np.arange(0, 51, 10), 4, 1).at(1, np.arange(50)).tolist()


class Wrapped(Dataset[Any]):
    """Forwards what it does not have itself, as many wrappers do."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, key: int) -> Any:
        return self.inner[key]

    @property
    def blocks(self) -> Any:
        return self.inner.blocks


def test_a_wrapper_forwards_the_blocks() -> None:
    assert keys(loader(Wrapped(Blocked()))) == keys(loader())
    with pytest.raises(TypeError, match="Wrapped has none: 'range' object has no attribute 'blocks'"):
        loader(Wrapped(range(50)))


def test_the_blocks_of_a_concatenation_are_those_of_its_parts() -> None:
    joined = Blocked(20) + Blocked(50) + Wrapped(Blocked(30))
    assert joined.blocks.tolist() == [0, 20, 40, 50, 100, 130, 150]
    order = BlockOrder(joined.blocks, 2, 1)
    assert sorted(order.at(0, np.arange(150)).tolist()) == list(range(150))
    with DataLoader(joined, batch_size=30, shuffle="blocks", window=2, seed=1) as made:
        expected = order.at(0, np.arange(150)) % 50
        assert keys(made) == expected.tolist()
    some = ConcatDataset([Blocked(), [1, 2]])
    assert not hasattr(some, "blocks")
    with pytest.raises(TypeError, match="none: part 1 of the ConcatDataset, a list, has no `blocks`"):
        loader(some)


@pytest.mark.parametrize(
    ("blocks", "error", "why"),
    [
        (np.arange(0, 41, 5), ValueError, "must end with its length, 50, but they end with 40"),
        ([], ValueError, "must end with its length, 50, but they end with nothing"),
        ([0, 30, 20, 50], ValueError, r"never decrease .* but blocks\[2\] is 20 after 30"),
        ([5, 50], ValueError, r"begin with 0 .* but blocks\[0\] is 5"),
        ([0.0, 50.0], TypeError, "an array of integers"),
    ],
    ids=str,
)
def test_wrong_blocks_are_refused_when_the_loader_is_made(blocks: Any, error: type[Exception], why: str) -> None:
    wrong = type("Wrong", (Blocked,), {"blocks": blocks})
    with pytest.raises(error, match=why):
        loader(wrong())


def test_blocks_that_become_wrong_are_refused_by_the_next_epoch() -> None:
    dataset = type("Growing", (Blocked,), {"blocks": np.array([0, 20, 50])})()
    made = loader(dataset)
    list(made)
    dataset.blocks = np.array([0, 20, 60])
    with pytest.raises(ValueError, match="must end with its length, 50, but they end with 60"):
        iter(made)


def test_an_empty_dataset_has_no_batches() -> None:
    assert list(loader(type("Empty", (Blocked,), {"__len__": lambda self: 0, "blocks": [0]})())) == []
