"""`commit=True` and `loader.commit`: which batches are open, what states hold, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Batch, DataLoader, StateError
from penstock._resume import commits, state
from penstock._resume.state import State


def loader(n: int = 12, **more: Any) -> DataLoader[Any]:
    return DataLoader(np.arange(n), 2, seed=1, commit=True, **more)


def taken(one: DataLoader[Any], count: int) -> list[Batch[Any]]:
    return [batch for _, batch in zip(range(count), one.batches(), strict=False)]


def steps(one: DataLoader[Any]) -> list[tuple[int, int]]:
    return [(batch.epoch, batch.step) for batch in one.batches()]


def resumed(one: DataLoader[Any]) -> DataLoader[Any]:
    other = loader()
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    return other


def figures(one: DataLoader[Any]) -> tuple[int, int, int]:
    found = one.stats().commits
    assert found is not None
    return found.committed, found.twice, found.open


def test_a_batch_that_was_only_taken_comes_again() -> None:
    one = loader()
    first, second, _ = taken(one, 3)
    one.commit(second)
    assert steps(resumed(one)) == [(0, 0), (0, 2), (0, 3), (0, 4), (0, 5)]
    one.commit(first)
    assert steps(resumed(one)) == [(0, 2), (0, 3), (0, 4), (0, 5)]


def test_two_epochs_may_be_open_and_both_come_again_in_order() -> None:
    one = loader()
    before = list(one.batches())
    after = taken(one, 2)
    for batch in (*before[:2], *before[3:], after[1]):
        one.commit(batch)
    saved = one.state_dict()
    assert (saved["epoch"], saved["steps"], saved["beyond"]) == (0, 2, [[3, 5]])
    assert saved["later"] == [{"epoch": 1, "steps": 0, "beyond": [[1, 1]], "consumed": 0}]
    other = resumed(one)
    assert other.state_dict() == saved
    assert [steps(other) for _ in range(3)] == [
        [(0, 2)],
        [(1, 0), (1, 2), (1, 3), (1, 4), (1, 5)],
        [(2, step) for step in range(6)],
    ]
    one.commit(before[2])
    assert "later" not in one.state_dict() and one.state_dict()["epoch"] == 1


def test_three_epochs_may_be_open_over_two_resumes() -> None:
    one = loader()
    for open_step in (0, 5):
        for batch in one.batches():
            if batch.step != open_step:
                one.commit(batch)
    one.commit(taken(one, 2)[1])
    two = resumed(one)
    (first,) = two.batches()
    two.commit(first)
    three = resumed(two)
    assert steps(three) == [(1, 5)]
    assert steps(three) == [(2, 0), (2, 2), (2, 3), (2, 4), (2, 5)]


def test_later_epochs_stay_in_a_state_while_the_first_is_read_again() -> None:
    one = loader()
    list(one.batches())
    one.commit(taken(one, 2)[1])
    two = resumed(one)
    two.commit(taken(two, 1)[0])
    three = resumed(two)
    assert steps(three) == [(0, step) for step in range(1, 6)]
    assert steps(three) == [(1, 0), (1, 2), (1, 3), (1, 4), (1, 5)]


def test_the_next_epoch_also_begins_when_the_end_was_not_asked_for() -> None:
    one = loader()
    first = taken(one, 6)
    second = taken(one, 1)
    assert (second[0].epoch, second[0].step) == (1, 0)
    for batch in first:
        one.commit(batch)
    assert one.state_dict()["epoch"] == 1


def test_stats_count_batches_that_were_committed_twice_or_never() -> None:
    one = loader()
    first, second, *_ = list(one.batches())
    one.commit(first)
    one.commit(first)
    one.commit(second)
    assert figures(one) == (2, 1, 4)
    shown = str(one.stats())
    assert "2 committed, 4 open, 1 commits of batches that were committed before" in shown
    assert one.stats().to_dict()["commits"] == {"committed": 2, "twice": 1, "open": 4}
    assert DataLoader(range(3)).stats().commits is None


def test_a_batch_of_a_complete_epoch_is_committed_twice_and_no_error() -> None:
    one = loader()
    batches = list(one.batches())
    for batch in batches:
        one.commit(batch)
    list(one.batches())
    one.commit(batches[0])
    assert figures(one) == (6, 1, 6)


def test_a_batch_that_was_pickled_or_prefetched_can_be_committed() -> None:
    one = loader()
    with penstock.prefetch(one.batches, dtype="float32") as ahead:
        for batch in ahead:
            one.commit(replace(pickle.loads(pickle.dumps(batch)), data=None))
    assert figures(one) == (6, 0, 0)
    assert one.state_dict()["epoch"] == 1


def test_a_batch_of_another_loader_or_of_before_a_load_is_an_error() -> None:
    one, other = loader(), loader()
    (batch,) = taken(one, 1)
    with pytest.raises(ValueError, match=r"^Step 0 of epoch 0 was not handed out by this loader, or was"):
        other.commit(batch)
    one.load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match=r"such a batch comes again, and only its new copy can be committed"):
        one.commit(batch)
    (again,) = taken(one, 1)
    one.commit(again)
    with pytest.raises(ValueError, match=r"^Step 5 of epoch 0 was not handed out"):
        one.commit(replace(again, step=5))
    with pytest.raises(ValueError, match=r"^Step 0 of epoch 0 was not handed out"):
        one.commit(next(iter(DataLoader(range(3), seed=1).batches())))


def test_what_has_no_position_is_refused() -> None:
    one = loader()
    with pytest.raises(TypeError, match=r"commit\(\) takes a Batch that batches\(\) handed out, not a ndarray"):
        one.commit(np.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"With commit=True, only batches\(\) hands out batches"):
        iter(one)
    with pytest.raises(ValueError, match=r"instead of share\(\), read in one thread, and commit in any"):
        one.share(2)
    with pytest.raises(ValueError, match=r"commit\(\) needs a loader with commit=True"):
        DataLoader(range(4)).commit(Batch(None, None, 0, 0))
    with pytest.raises(ValueError, match=r"^commit must be True or False, got 1\.$"):
        DataLoader(range(4), commit=1)  # type: ignore[arg-type]


def test_an_epoch_that_was_left_is_read_on_or_given_up() -> None:
    one = loader()
    batches = taken(one, 2)
    with pytest.raises(RuntimeError, match=r"^Epoch 0 was not read to its end: 2 of its steps were handed out"):
        one.batches()
    one.commit(batches[1])
    other = copy.copy(one)
    one.load_state_dict(one.state_dict())
    assert steps(one) == [(0, 0), (0, 2), (0, 3), (0, 4), (0, 5)]
    other.set_epoch(1)
    assert steps(other) == [(1, step) for step in range(6)]
    assert other.state_dict()["epoch"] == 1, "none of its batches is committed"


def test_set_epoch_before_each_epoch_keeps_open_batches() -> None:
    """As scripts for torch's DistributedSampler do."""
    one = loader()
    one.set_epoch(0)
    batches = list(one.batches())
    one.set_epoch(1)
    list(one.batches())
    one.commit(batches[0])
    assert (one.state_dict()["epoch"], one.state_dict()["steps"]) == (0, 1)


def test_any_thread_may_commit() -> None:
    one = loader(400)
    batches = list(one.batches())
    parts = [batches[at::4] for at in range(4)]
    threads = [threading.Thread(target=lambda part=part: [one.commit(each) for each in part]) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert figures(one) == (200, 0, 0)
    assert (one.state_dict()["epoch"], one.state_dict()["steps"]) == (1, 0)


def test_commits_are_counted_under_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    # In today's CPython no thread is interrupted between reading and writing these counts, so none would be lost.
    one, locked = loader(), []

    def set_and_look(epochs: commits.CommittedEpochs, name: str, value: Any) -> None:
        if name == "_counts":
            locked.append(epochs._lock._is_owned())  # type: ignore[attr-defined]
        object.__setattr__(epochs, name, value)

    monkeypatch.setattr(commits.CommittedEpochs, "__setattr__", set_and_look)
    batches = list(one.batches())
    for batch in (*batches, batches[0]):
        one.commit(batch)
    assert locked == [True] * 7
    assert figures(one) == (6, 1, 0)
    assert figures(pickle.loads(pickle.dumps(one))) == (6, 1, 0)


class Faulty(penstock.Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> int:
        if key == 0:
            raise LookupError("bad")
        return key


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_step_without_a_batch_counts_as_committed(on_error: Any) -> None:
    one = DataLoader(Faulty(), 1, seed=1, commit=True, on_error=on_error)
    batches = one.batches()
    if on_error == "raise":
        with pytest.raises(LookupError):
            next(batches)
        assert one.state_dict()["steps"] == 1
    one.commit(next(batches))
    assert one.state_dict()["steps"] == 2


def test_copies_keep_open_batches_of_their_own() -> None:
    one = loader()
    batches = list(one.batches())
    one.commit(batches[0])
    for other in (copy.copy(one), pickle.loads(pickle.dumps(one))):
        other.commit(batches[1])
        assert other.state_dict()["steps"] == 2
        assert steps(other)[0] == (1, 0)
    assert one.state_dict()["steps"] == 1
    one.commit(batches[1])
    assert one.state_dict()["steps"] == 2


@pytest.mark.parametrize(
    "later",
    [
        3,
        [7],
        [{"epoch": 1, "steps": 0, "beyond": []}],
        [{"epoch": 2, "steps": 0, "beyond": [], "consumed": 0}],
        [{"epoch": 1, "steps": -1, "beyond": [], "consumed": 0}],
        [{"epoch": 1, "steps": 1, "beyond": [[1, 2]], "consumed": 2}],
        [{"epoch": 1, "steps": 8, "beyond": [], "consumed": 12}],
        [{"epoch": 1, "steps": 1, "beyond": [], "consumed": 8}],
        [{"epoch": 1, "steps": 0, "beyond": [[2, 600_000]], "consumed": 0}] * 2,
        [
            {"epoch": 1, "steps": 0, "beyond": [[2, 600_000]], "consumed": 0},
            {"epoch": 2, "steps": 0, "beyond": [[2, 600_000]], "consumed": 0},
        ],
    ],
)
def test_later_epochs_of_a_state_are_checked(later: Any) -> None:
    one = loader()
    one.commit(taken(one, 1)[0])
    saved = one.state_dict()
    with pytest.raises(StateError, match="The resume state is damaged"):
        loader().load_state_dict({**saved, "later": later})


def test_open_steps_cannot_be_dealt_to_another_number_of_ranks() -> None:
    one = loader(shard=(0, 2))
    batches = list(one.batches())
    list(one.batches())
    for batch in batches[:-1]:
        one.commit(batch)
    with pytest.raises(StateError, match=r"world=2, and here it is 1\. Its steps were not handed out in order"):
        loader().load_state_dict(one.state_dict())


def test_a_state_of_several_epochs_needs_a_loader_with_commit() -> None:
    one = loader()
    list(one.batches())
    other = DataLoader(np.arange(12), 2, seed=1)
    other.load_state_dict(one.state_dict())
    list(one.batches())
    with pytest.raises(StateError, match=r"^The resume state has batches of epochs 0 to 1 that were not committed"):
        other.load_state_dict(one.state_dict())


def test_a_state_that_could_not_be_loaded_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (commits, state):
        monkeypatch.setattr(module, "MOST_BEYOND", 3)
    one = loader()
    batches = list(one.batches())
    for batch in batches[1:4]:
        one.commit(batch)
    State.parse(one.state_dict())
    one.commit(batches[4])
    with pytest.raises(StateError, match=r"^4 batches were committed after step 0 of epoch 0, which is open"):
        one.state_dict()


def test_the_torch_face_has_it_with_a_seed() -> None:
    pytest.importorskip("torch")
    from penstock.torch import DataLoader as TorchLoader

    one = TorchLoader(list(range(6)), 2, seed=1, commit=True)
    first, second, _ = one.batches()
    one.commit(second)
    other = TorchLoader(list(range(6)), 2, seed=1, commit=True, num_workers=0)
    other.load_state_dict(one.state_dict())
    assert [batch.step for batch in other.batches()] == [0, 2]
    one.commit(first)
    stats = one.stats().commits
    assert stats is not None and (stats.committed, stats.open) == (2, 1)
    with pytest.raises(ValueError, match=r"commit=True needs seed=: without it a batch is not a function"):
        TorchLoader(list(range(6)), commit=True)
    with pytest.raises(ValueError, match=r"commit\(\) needs seed="):
        TorchLoader(list(range(6))).commit(first)
    with pytest.raises(ValueError, match=r"only batches\(\) hands out batches"):
        iter(other)


@settings(deadline=None)
@given(handed=st.permutations(range(8)), count=st.integers(0, 8), committed=st.sets(st.integers(0, 7)))
def test_steps_that_are_open_count_as_handed_out(handed: list[int], count: int, committed: set[int]) -> None:
    """From there on, changed weights may change the order."""
    progress = commits.Commits(State(0, 0), None)
    for number, step in enumerate(handed[:count], 1):
        progress.passed(step, None)
        assert len(progress.handed_out()[1]) + progress.handed_out()[0] == number  # whether it has a batch or not
        progress.hold()
    for step in committed & set(handed[:count]):
        assert progress.commit(step)
    first, beyond = progress.handed_out()
    assert [*range(first), *beyond] == sorted(handed[:count]) and first not in beyond
