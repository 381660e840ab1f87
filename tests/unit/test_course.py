"""The course, sentence by sentence: what a seq stands for, from the draw until the consumer has the batch."""

from __future__ import annotations

from model.world import Ended, Run, Setting, Task

from penstock._schedule.course import Course


def course(*runs: int, look_ahead: bool = True) -> Course[Run, Task]:
    made: Course[Run, Task] = Course(look_ahead)
    made.open(Run(Setting(runs=runs, ends="found"), 0, 0))
    return made


def drawn(made: Course[Run, Task], *seqs: int, most: int = 1) -> list[tuple[int, int, int] | None]:
    """Run, step and number of steps of each task drawn."""
    tasks = [made.draw(seq, most)[0] for seq in seqs]
    made.check()
    return [None if task is None else (task.run, task.step, task.steps) for task in tasks]


def handed_out(made: Course[Run, Task]) -> list[tuple[int, object]]:
    found = []
    while made.ready:
        task, outcome = made.ready.popleft()
        found.append((task.step, outcome))
    return found


# Drawing


def test_steps_are_drawn_in_their_order() -> None:
    made = course(3)
    assert made.draw(5) == (Task(5, 0, 0), False)
    assert made.draw(7) == (Task(7, 0, 1), False)
    assert made.find(7) == Task(7, 0, 1)


def test_where_nothing_is_left_the_run_ends() -> None:
    made = course(1, look_ahead=False)
    made.draw(0)
    assert made.draw(1) == (None, True)


def test_the_next_run_is_drawn_where_the_current_one_ends() -> None:
    made = course(1, 2)
    made.draw(0)
    assert made.draw(1) == (Task(1, 10, 0), True)
    assert made.draw(2) == (Task(2, 10, 1), False)
    assert made.draw(3) == (None, False), "that is for the next run to tell, when it is the current one"
    assert made.ahead is not None
    made.open(made.ahead)
    assert made.ahead is None
    assert made.draw(4) == (None, True)


def test_behind_a_run_that_failed_nothing_is_drawn_ahead() -> None:
    made = course(2, 2)
    assert made.run is not None
    made.run.error = Ended(0)
    assert made.draw(0) == (None, True)
    assert made.ahead is None


def test_an_outcome_waits_with_its_task() -> None:
    made = course(3)
    drawn(made, 0, 1)
    assert made.fill(1, "one") == Task(1, 0, 1)
    assert made.filled == {1: "one"}
    made.check()


def test_the_outcome_of_a_task_that_was_cancelled_is_not_kept() -> None:
    made = course(3)
    drawn(made, 0)
    run = made.run
    made.fill(0, "zero")
    made.cancel()
    assert made.fill(0, "zero") is None and not made.filled
    assert run is not None
    made.open(run)
    drawn(made, 5, 6)
    made.fill(5, "five")
    made.redo()
    assert not made.filled
    made.check()


def test_where_a_run_breaks_no_later_outcome_is_kept() -> None:
    made = course(4)
    drawn(made, 0, 1, 2)
    for seq in (0, 2):
        made.fill(seq, seq)
    made.forget_from(1)
    assert made.filled == {0: 0}
    made.check()


def test_a_task_that_cannot_be_sent_ends_the_run_that_it_is_of() -> None:
    made = course(2, 2)
    made.draw(0)
    made.draw(1)
    error = Ended(1)
    assert made.refuse(1, error)
    assert made.run is not None
    assert made.run.error is error
    assert made.find(1) is None


def test_a_task_of_the_next_run_that_cannot_be_sent_does_not_end_this_one() -> None:
    made = course(1, 2)
    made.draw(0)
    made.draw(1)
    assert not made.refuse(1, Ended(0))
    assert made.run is not None
    assert made.run.error is None


def test_a_task_that_is_posted_again_ends_its_own_run_though_the_next_is_drawn_from() -> None:
    made = course(1, 2)
    made.draw(0)
    made.draw(1)
    assert made.run is not None and made.ahead is not None
    assert made.refuse(0, Ended(0))
    assert made.run.error is not None and made.ahead.error is None


# Bundles


def test_a_bundle_is_handed_out_step_by_step() -> None:
    made = course(5)
    assert drawn(made, 0, most=3) == [(0, 0, 3)]
    made.deliver(0, ["a", "b", "c"])
    assert handed_out(made) == [(0, "a"), (1, "b"), (2, "c")]


def test_the_steps_of_a_bundle_that_is_split_are_known_by_seqs_of_their_own() -> None:
    made = course(3)
    made.draw(0, 3)
    assert made.split(0) == [Task(0, 0, 0), Task(1, 0, 1), Task(2, 0, 2)]
    assert made.find(2) == Task(2, 0, 2)
    made.deliver(1, ["b"])
    assert handed_out(made) == [(1, "b")]
    assert made.split(1) == [], "it is not known any more"


def test_nothing_is_known_of_the_steps_behind_an_end() -> None:
    made = course(4)
    drawn(made, 0, 1, 2)
    made.forget_from(1)
    assert [made.find(seq) is None for seq in (0, 1, 2)] == [False, True, True]


# Changes


def test_what_was_not_handed_out_is_drawn_again_under_other_seqs() -> None:
    made = course(4)
    drawn(made, 0, 1, 2)
    made.deliver(0, ["stale"])
    made.redo()
    assert not made.ready
    assert made.find(1) is None
    assert drawn(made, 7, 8, 9, 10, 11) == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 1), None]


def test_what_was_handed_out_is_not_drawn_again() -> None:
    made = course(2)
    drawn(made, 0)
    made.deliver(0, ["fresh"])
    assert handed_out(made) == [(0, "fresh")]
    made.redo()
    assert drawn(made, 1, 2) == [(0, 1, 1), None]


def test_the_rest_of_a_bundle_is_drawn_again_step_by_step() -> None:
    made = course(6)
    made.draw(0, 3)
    made.draw(3, 3)
    made.deliver(0, ["a", "b", "c"])
    made.ready.popleft()
    made.redo()
    assert drawn(made, 6, 9, 12, 15, 18, 21, most=3) == [(0, step, 1) for step in (1, 2, 3, 4, 5)] + [None]


def test_two_changes_in_a_row_lose_nothing_and_double_nothing() -> None:
    made = course(4)
    drawn(made, 0, 1, 2)
    made.redo()
    drawn(made, 3)
    made.redo()
    assert drawn(made, 4, 5, 6, 7, 8) == [(0, step, 1) for step in range(4)] + [None]


def test_the_next_run_is_drawn_anew_after_a_change() -> None:
    made = course(1, 2)
    drawn(made, 0, 1, 2)
    made.redo()
    assert made.ahead is None
    assert drawn(made, 3, 4, 5) == [(0, 0, 1), (10, 0, 1), (10, 1, 1)]


def test_between_runs_a_change_has_nothing_to_redo() -> None:
    made: Course[Run, Task] = Course(look_ahead=True)
    made.redo()
    assert made.run is None


def test_after_a_task_that_cannot_be_sent_nothing_is_redone() -> None:
    """Found by the model: the steps behind it were posted, and delivered in the next run."""
    made = course(3)
    drawn(made, 0, 1, 2)
    made.redo()
    drawn(made, 3)
    made.refuse(3, Ended(0))
    assert made.draw(4) == (None, True)


def test_a_cancelled_course_knows_nothing() -> None:
    made = course(3, 1)
    drawn(made, 0, 1)
    made.deliver(0, ["a"])
    made.cancel()
    assert (made.run, made.ahead, made.find(0), len(made.ready)) == (None, None, None, 0)
