"""Progress through an epoch, and the state that tells of it."""

from __future__ import annotations

import pickle

from penstock._resume.reading import Mark
from penstock._resume.state import Progress, State


def mark(read: int) -> bytes:
    return pickle.dumps(Mark(read, {"iterable": read}))


def test_the_mark_is_of_the_last_step_before_the_first_that_is_missing() -> None:
    progress = Progress(State(0, 0), None)
    found = []
    for step in (0, 2, 3, 1, 5):
        progress.passed(step, mark(step + 1))
        state = State.parse(progress.as_dict())
        assert state.mark is not None
        found.append((state.steps, state.beyond, state.mark.read))
    assert found == [(1, (), 1), (1, (2,), 1), (1, (2, 3), 1), (4, (), 4), (4, (5,), 4)]


def test_a_step_without_a_mark_leaves_the_one_before_it() -> None:
    progress = Progress(State(0, 7, beyond=(9,), mark=Mark(6, None, {"iterable": 1})), None)
    assert State.parse(progress.as_dict()).mark == Mark(6, None, {"iterable": 1})
    progress.passed(7, mark(8))
    progress.passed(8, None)
    state = State.parse(progress.as_dict())
    assert (state.steps, state.beyond, state.mark) == (10, (), Mark(8, {"iterable": 8}))


def test_a_state_survives_being_written_and_read() -> None:
    state = State(
        3, 2, (4, 5, 6, 8), 11, {"world": 1}, None, Mark(2, {"iterator": [1, "x"]}, {"iterable": 2}), {"a": 1}
    )
    assert State.parse(state.as_dict()) == state
