"""Loops that take a fixed number of batches in each epoch, and never ask for the end."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.torch import DataLoader


@pytest.mark.parametrize("settings", [{}, {"persistent_workers": True}, {"seed": 1}], ids=str)
def test_epochs_of_a_fixed_number_of_batches_use_one_crew_at_a_time(settings: dict[str, Any]) -> None:
    loader: Any = DataLoader(range(8), 4, num_workers=1, **settings)
    workers, iterators = {}, []
    for _ in range(3):
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert loader.state_dict()["steps"] == 2
        iterators.append(batches)
        workers |= {worker.pid: worker for worker in batches._workers}
        assert sum(worker.is_alive() for worker in workers.values()) == 1
    for batches in iterators:
        with pytest.raises(StopIteration):
            next(batches)
    assert (loader.stats().life.epochs, loader.stats().life.batches) == (3, 6)


@pytest.mark.parametrize("settings", [{}, {"persistent_workers": True}, {"seed": 1}], ids=str)
def test_an_iterator_of_a_closed_loader_is_at_its_end_after_the_last_batch(settings: dict[str, Any]) -> None:
    loader: Any = DataLoader(range(8), 4, num_workers=1, **settings)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    loader.close()
    assert next(batches, None) is None
