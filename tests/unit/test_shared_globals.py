"""What several threads of a process use at the same time: generators, counters, limits, and modules."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import DataLoader, IterableDataset
from penstock._engine.turn import NEXT, Turn
from penstock._measure.meter import Meter, Totals
from penstock._resume.state import Progress, State
from penstock._system.warnings import warn_caller
from penstock._work.seeding import Borrowed

# The global generators.


def generators() -> Any:
    state: Any = np.random.get_state(legacy=False)
    return random.getstate(), state["state"]["key"].tolist(), state["state"]["pos"], state["gauss"]


@pytest.fixture(autouse=True)
def a_normal_number_is_kept() -> Any:
    before: Any = random.getstate(), np.random.get_state()
    random.seed(3)
    np.random.seed(3)
    np.random.standard_normal()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])


def in_another_thread(work: Any, *args: Any) -> None:
    thread = threading.Thread(target=work, args=args)
    thread.start()
    thread.join()


@pytest.mark.parametrize("first_to_end", ["the first", "the second"])
def test_two_threads_that_borrow_leave_the_generators_as_they_were(first_to_end: str) -> None:
    before = generators()
    ours, theirs = Borrowed(1, 0, 0), Borrowed(2, 0, 0)
    ours.begin()
    begun, may_end = threading.Event(), threading.Event()

    def borrow() -> None:
        theirs.begin()
        begun.set()
        may_end.wait()
        theirs.end()

    thread = threading.Thread(target=borrow)
    thread.start()
    begun.wait()
    random.random()
    if first_to_end == "the first":
        ours.end()
        assert generators() != before
    may_end.set()
    thread.join()
    if first_to_end == "the second":
        assert generators() != before
        ours.end()
    assert generators() == before


def test_a_loan_inside_of_a_loan_restores_what_the_outer_one_had() -> None:
    before, outer, inner = generators(), Borrowed(1, 0, 0), Borrowed(2, 0, 0)
    outer.begin()
    middle = generators()
    in_another_thread(lambda: None)
    inner.begin()
    assert generators() != middle
    inner.end()
    assert generators() == middle
    outer.end()
    outer.end()  # after an interrupt it is called again
    assert generators() == before


def test_a_forked_child_gets_back_what_threads_of_its_parent_had_borrowed() -> None:
    before, begun, may_end = generators(), threading.Event(), threading.Event()

    def borrow() -> None:
        loan = Borrowed(1, 0, 0)
        loan.begin()
        begun.set()
        may_end.wait()
        loan.end()

    thread = threading.Thread(target=borrow)
    thread.start()
    begun.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os._exit(generators() != before)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    may_end.set()
    thread.join()
    assert generators() == before


def test_loaders_in_two_threads_leave_the_generators_as_they_were() -> None:
    meet = threading.Barrier(2)

    class Data:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, key: int) -> float:
            if not meet.broken:
                meet.wait()  # both are in the middle of a sample
            return random.random() + np.random.standard_normal()

    before = generators()
    threads = [threading.Thread(target=list, args=(DataLoader(Data(), seed=0),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert generators() == before


# Counters.


def test_answers_that_come_while_others_are_added_up_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another thread that reads the same loader."""
    meter, plus = Meter(), Totals.plus

    def slowly(totals: Totals, answers: Any) -> Totals:
        with memoryview(answers):  # as numpy has it
            meter.answered(1, 1, 1, 1, 1, 1)
            meter.add_up()  # is being done already
        return plus(totals, answers)

    meter.answered(1, 1, 1, 1, 1, 1)
    monkeypatch.setattr(Totals, "plus", slowly)
    meter.add_up()
    monkeypatch.undo()
    assert meter.snapshot([]).sum().tasks == 2
    meter.add_up()
    assert meter.snapshot([]).sum().tasks == 2 and not meter._kept


def test_steps_out_of_order_are_noted_in_constant_time() -> None:
    progress, steps = Progress(State(0, 0), None), 50_000
    begun = time.process_time()
    for step in range(1, steps):
        progress.passed(step, b"%d" % step)
    assert (progress.steps, len(progress.beyond)) == (0, steps - 1)
    progress.passed(0, None)
    assert (progress.steps, progress.beyond, progress.mark) == (steps, [], b"%d" % (steps - 1))
    assert time.process_time() - begun < 3  # if each step copied the others: 10 s and more


# Messages.


def test_two_threads_on_one_iterator_are_told_of_share() -> None:
    turn, said = Turn(), []
    turn.take((-1, NEXT))

    def ask() -> None:
        with pytest.raises(RuntimeError) as error:
            turn.take((threading.get_ident(), NEXT))
        said.append(str(error.value))

    in_another_thread(ask)
    assert "loader.share(n)" in said[0]


class Stream(IterableDataset[int]):
    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Any:
        return iter(range(8))


WARN = {
    "one reader": lambda: DataLoader(Stream(), num_workers=2),
    "a wrong length": lambda: list(DataLoader(Stream(), 4)),
    "pinning": lambda: DataLoader([1], pin_memory=True),
    "many workers": lambda: DataLoader([1], num_workers=1000),
    "an empty part": lambda: penstock.random_split(range(2), [0.9, 0.1]),
    "ours": lambda: warn_caller("look"),
}


@pytest.mark.parametrize("cause", WARN.values(), ids=WARN)
def test_a_warning_points_at_the_line_of_the_user(cause: Any) -> None:
    with pytest.warns((UserWarning, RuntimeWarning)) as caught:
        cause()
    assert {warning.filename for warning in caught} == {__file__}


def test_no_room_for_another_process_is_said_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(BlockingIOError, match=r"could not be started: the system allows no more(.|\n)*has \d"):
        list(DataLoader(range(4), num_workers=1, multiprocessing_context="fork"))


def test_no_room_for_another_thread_is_said_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match=r"can't start new thread\): the system allows no more"):
        list(DataLoader(range(4), num_workers=1, backend="thread"))
