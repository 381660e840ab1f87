"""The simulated backend: what is chosen happens, faults happen when they should, and time is virtual."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from penstock import DataLoader, Dataset, LoaderTimeout, WorkerLost, get_worker_info
from penstock._engine.engine import Engine
from penstock._feed.base import Begin
from penstock._schedule.assigned import Assigned
from penstock.testing import _sources as sources
from penstock.testing import simulate


def values(batches: Any) -> list[int]:
    return [int(value) for batch in batches for value in np.ravel(batch)]


def deaths(simulation: simulate.Simulation) -> list[int]:
    return [action.step for action in simulation.history if action.kind == "die"]


def test_a_saved_list_of_numbers_repeats_everything_that_happened() -> None:
    histories, choices = [], None
    for _ in range(2):
        choose = simulate.seeded(5) if choices is None else simulate.replay(choices)
        with (
            simulate.workers(choose, deaths=3) as simulation,
            DataLoader(range(30), 2, num_workers=3, backend=simulation.name, retries=9) as loader,
        ):
            assert values(loader) == list(range(30))
        histories.append(simulation.history)
        choices = simulation.choices
    assert histories[0] == histories[1] and len(choices) > 50


def test_without_numbers_the_first_worker_does_everything() -> None:
    with (
        simulate.workers(simulate.replay([])) as simulation,
        DataLoader(range(6), num_workers=3, backend=simulation.name) as loader,
    ):
        assert values(loader) == list(range(6))
    assert {action.worker for action in simulation.history if action.kind == "fill"} == {0}


@pytest.mark.parametrize("action", ["claim", "fill", "report"])
def test_whichever_worker_comes_to_the_moment_of_a_fault_dies(action: str) -> None:
    faults = [simulate.Kill(action, step=3, epoch=0, times=2), simulate.Kill("start", seat=1)]
    with (
        simulate.workers(faults=faults) as simulation,
        DataLoader(range(16), 2, num_workers=2, backend=simulation.name) as loader,
    ):
        assert values(loader) == list(range(16))
    assert sorted(deaths(simulation)) == [-1, 3, 3]


def test_a_step_that_kills_every_worker_is_lost_and_the_error_names_it() -> None:
    with (
        simulate.workers(faults=[simulate.Kill("fill", step=1, times=3)]) as simulation,
        DataLoader(range(8), 2, num_workers=2, backend=simulation.name) as loader,
    ):
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1]
        with pytest.raises(WorkerLost, match=r"worker . \(simulated\) died while filling step 1(.|\n)*tried 3 times"):
            next(batches)
        assert values(batches) == [4, 5, 6, 7]


@pytest.mark.parametrize("names_step", [True, False])
@pytest.mark.parametrize("action", ["fill", "report"])
@pytest.mark.parametrize("seed", range(5))
def test_of_a_bundle_whose_worker_dies_every_step_is_done(seed: int, action: str, names_step: bool) -> None:
    faults = [simulate.Kill(action, step=step) for step in (20, 33, 34, 47)]
    with (
        simulate.workers(simulate.seeded(seed), faults, most_steps=8, names_step=names_step) as simulation,
        DataLoader(range(60), num_workers=2, backend=simulation.name, retries=4) as loader,
    ):
        assert values(loader) == list(range(60))
    assert deaths(simulation)


def test_seats_whose_workers_crash_at_start_up_stay_empty_and_the_caller_is_told() -> None:
    with (
        simulate.workers(faults=[simulate.Kill("start", seat=1, times=9)]) as simulation,
        DataLoader(range(40), num_workers=2, backend=simulation.name) as loader,
    ):
        with pytest.warns(RuntimeWarning, match=r"worker 1 \(simulated\) .* stays empty until the next epoch"):
            assert values(loader) == list(range(40))
        assert len(deaths(simulation)) == 4  # retries=2 more than two


def test_a_worker_that_cannot_be_started_later_is_done_without() -> None:
    faults = [simulate.Kill("fill", step=2), simulate.Refuse(after=2, times=9, error=OSError("no memory"))]
    with (
        simulate.workers(faults=faults) as simulation,
        DataLoader(range(9), num_workers=2, backend=simulation.name) as loader,
    ):
        with pytest.warns(RuntimeWarning, match=r"no replacement could be started \(OSError: no memory\)"):
            assert values(loader) == list(range(9))
        assert len(loader.workers) == 1


def test_a_first_crew_that_cannot_be_started_is_the_error_of_the_system() -> None:
    with (
        simulate.workers(faults=[simulate.Refuse(seat=1)]) as simulation,
        DataLoader(range(9), num_workers=2, backend=simulation.name) as loader,
        pytest.raises(OSError, match="refuses to start"),
    ):
        iter(loader)


class Sleepy(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: int) -> Any:
        simulate.sleep(100.0 if key == 1 else 0.5)
        return key


def test_time_is_virtual_and_a_timeout_may_be_waited_out() -> None:
    with (
        simulate.workers() as simulation,
        DataLoader(Sleepy(), num_workers=1, backend=simulation.name, timeout=30) as loader,
    ):
        batches = iter(loader)
        assert next(batches).item() == 0 and simulation.now == 0.5
        for _ in range(3):
            with pytest.raises(LoaderTimeout, match=r"Step 1 of epoch 0 .*; worker 0 \(simulated\) is working"):
                next(batches)
        assert simulation.now == 90.5
        assert values(batches) == [1, 2, 3, 4, 5] and simulation.now == 102.5


def test_out_of_order_a_slow_step_holds_back_no_other() -> None:
    with (
        simulate.workers() as simulation,
        DataLoader(Sleepy(), num_workers=2, backend=simulation.name, in_order=False) as loader,
    ):
        assert values(loader)[-1] == 1


def test_sleep_outside_a_simulation_does_nothing() -> None:
    assert values(DataLoader(Sleepy())) == list(range(6))


def test_a_loader_that_would_wait_for_ever_is_stuck() -> None:
    with simulate.workers() as simulation:
        loader = DataLoader(range(4), num_workers=1, backend=simulation.name)
        batches: Any = iter(loader)
        batches._engine.backend._board.clear()  # as if tasks were lost
        batches._engine.backend._outbox.clear()
        with pytest.raises(simulate.Stuck, match="nothing can happen any more: 1 worker is alive"):
            values(batches)


class Revealing(Dataset[Any]):
    """Counts what its own copy was asked for, draws, and says which worker it is in."""

    asked = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: int) -> Any:
        info = get_worker_info()
        self.asked += 1
        assert info is None or info.dataset is self
        return -1 if info is None else info.id, self.asked, random.random()


@pytest.mark.parametrize("copies", [True, False])
def test_each_worker_has_a_dataset_of_its_own_or_all_have_the_callers(copies: bool) -> None:
    dataset = Revealing()
    state = random.getstate()
    with (
        simulate.workers(copies_dataset=copies) as simulation,
        DataLoader(dataset, num_workers=2, backend=simulation.name, seed=1) as loader,
    ):
        found = [(int(who[0]), int(asked[0])) for who, asked, _ in loader]
    assert {who for who, _ in found} == {0, 1}
    counts = [asked for who, asked in found if who == 0]
    assert (counts == list(range(1, len(counts) + 1))) == copies
    assert dataset.asked == (0 if copies else 12)
    assert random.getstate() == state and get_worker_info() is None


def test_with_a_fixed_assignment_each_worker_does_its_own_steps() -> None:
    with simulate.workers(simulate.seeded(3)) as simulation:
        made: Any = DataLoader(sources.Numbers(20), 2, num_workers=2, backend=simulation.name)
        session = made._session
        engine = session.hire(session)
        assigned = Engine(engine.backend, Assigned(window=4, workers=2), engine.job)
        assigned.open(session.feed.run(session.runs, 0, 1, session.feed.plan(1), Begin()))
        found = []
        while (delivery := assigned.next(None)).task is not None:
            found.append((delivery.task.step, delivery.worker))
        assert found == [(step, step % 2) for step in range(10)]
        assigned.close()


def test_a_reader_that_dies_idle_is_followed_by_one_that_begins_with_the_right_step() -> None:
    """Found by the suite: the new reader could claim the step after the one that was to be posted again."""
    for seed in range(40):
        with (
            simulate.workers(simulate.seeded(seed)) as simulation,
            DataLoader(sources.Stateful(30), 2, num_workers=1, backend=simulation.name, seed=1) as loader,
        ):
            found = []
            for step, batch in enumerate(loader):
                found += batch[0].tolist()
                if step in (0, 6):
                    loader.workers[0].kill()
            assert found == list(range(1, 31)), f"seed {seed}"


def test_a_state_from_before_the_first_batch_is_resumed_though_the_reader_has_read_on() -> None:
    """Found by the law of resizing: the reader's dataset was where its prefetching had left it."""
    for seed in range(10):
        with (
            simulate.workers(simulate.seeded(seed)) as simulation,
            DataLoader(sources.Stateful(10), 2, num_workers=1, backend=simulation.name, seed=1) as loader,
        ):
            batches: Any = iter(loader)
            state = loader.state_dict()
            batches.close()
            loader.load_state_dict(state)
            assert [value for batch in loader for value in batch[0].tolist()] == list(range(1, 11)), f"seed {seed}"
