"""An engine with `receive` and `early` converts batches that are done before the caller asks for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import DataLoader
from penstock._session.seeded import SeedSession
from penstock.testing._laws import until


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What engines have converted so far. Each batch becomes a list; one with the number -13 cannot be converted."""
    found: list[Any] = []

    def receive(batch: Any, root: Any) -> Any:
        found.append(batch.tolist())
        assert any(batch.base is home for home in (root, root.base)), "the batch is in the slab"
        if -13 in found[-1]:
            raise ArithmeticError("-13")
        return found[-1]

    manner = SeedSession.manner
    early = {"receive": receive, "early": 2}
    monkeypatch.setattr(SeedSession, "manner", lambda session: {**manner(session), **early})
    return found


def done(loader: Any, number: int) -> None:
    """Waits until the threads are this many tasks ahead of the caller."""
    (engine,) = loader._session.engines.all()
    until(lambda: engine.ready + engine.backend._outcomes.qsize() >= number, "the threads are ahead")


def loader_of(data: Any, **given: Any) -> Any:
    # With a timeout, each step is a task of its own.
    threads = {"num_workers": 1, "backend": "thread", "prefetch_factor": 6, "timeout": 100}
    return DataLoader(np.arange(data) if isinstance(data, int) else data, 4, **{**threads, **given})


def test_two_batches_are_converted_ahead_and_each_once(received: list[Any]) -> None:
    with loader_of(40) as loader:
        batches = iter(loader)
        taken = [next(batches)]
        while len(taken) < 7:
            done(loader, 3)
            taken.append(next(batches))
            assert len(received) == len(taken) + 2
            assert loader.state_dict()["steps"] == len(taken)
        taken += batches
    assert taken == received == [list(range(at, at + 4)) for at in range(0, 40, 4)]


def test_out_of_order_too(received: list[Any]) -> None:
    with loader_of(40, in_order=False, num_workers=2) as loader:
        assert sorted(loader) == sorted(received) == [list(range(at, at + 4)) for at in range(0, 40, 4)]


def test_an_error_takes_the_place_of_its_batch_and_not_of_an_earlier_one(received: list[Any]) -> None:
    numbers = np.arange(40)
    numbers[13] = -13
    with loader_of(numbers) as loader:
        batches = iter(loader)
        first = next(batches)
        done(loader, 3)
        assert [first, next(batches), next(batches)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        with pytest.raises(ArithmeticError) as caught:
            next(batches)
        assert "While the batch of step 3 of epoch 0 was received." in caught.value.__notes__
        assert next(batches) == [16, 17, 18, 19]


def test_what_was_converted_ahead_is_dropped_by_a_change(received: list[Any]) -> None:
    with loader_of(np.arange(40)) as loader:
        batches = iter(loader)
        next(batches)
        done(loader, 3)
        next(batches)
        assert received[2:4] == [[8, 9, 10, 11], [12, 13, 14, 15]]
        loader.update(add_hundred)
        assert next(batches) == [108, 109, 110, 111]


def add_hundred(dataset: Any) -> None:
    dataset += 100


def test_steps_that_share_a_task_are_converted_one_by_one(received: list[Any]) -> None:
    with DataLoader(np.arange(100, 4100), 4, num_workers=1) as loader:
        for number, batch in enumerate(loader, 1):
            assert number <= len(received) <= number + 2
            assert batch == received[number - 1]
    assert len(received) == 1000


def test_the_next_epoch_is_not_converted_before_it_begins(received: list[Any]) -> None:
    with loader_of(8, num_workers=1, backend=None) as loader:
        for epoch in range(1, 5):
            assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
            assert len(received) == 2 * epoch
