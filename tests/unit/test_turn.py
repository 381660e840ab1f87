"""Taking turns: one thread at a time uses an engine, and a change goes before those who ask again and again."""

from __future__ import annotations

import signal
import threading
from threading import get_ident
from typing import Any

import pytest

from penstock._engine.turn import CHANGE, NEXT, Turn


def let_go(turn: Turn) -> None:
    turn.holder = None
    if turn.waiting:
        turn.changes.tell()


def started(turn: Turn, use: str, done: list[Any]) -> threading.Thread:
    """A thread that takes the turn, notes it and lets go. It waits already when this returns."""
    before = len(turn.waiting)

    def take() -> None:
        try:
            turn.take((get_ident(), use))
        except RuntimeError as error:
            done.append(error)
        else:
            done.append(use)
            let_go(turn)

    thread = threading.Thread(target=take)
    thread.start()
    while len(turn.waiting) == before and thread.is_alive():
        thread.join(0.001)
    return thread


def test_a_free_turn_is_taken_and_given_back() -> None:
    turn = Turn()
    hold = (get_ident(), NEXT)
    turn.take(hold)
    assert turn.holder is hold and turn.is_used_here()
    let_go(turn)
    assert turn.holder is None and not turn.is_used_here()


def test_two_threads_that_ask_at_the_same_time_are_an_error() -> None:
    turn, done = Turn(), []
    turn.take((get_ident(), NEXT))
    started(turn, NEXT, done).join()
    assert "Two threads asked" in str(done[0])


def test_asking_inside_an_ask_is_an_error() -> None:
    turn = Turn()
    turn.take((get_ident(), NEXT))
    with pytest.raises(RuntimeError, match="from inside of its own next"):
        turn.take((get_ident(), NEXT))
    with pytest.raises(RuntimeError, match="cannot be changed"):
        turn.take((get_ident(), CHANGE))
    assert not turn.waiting


def test_asking_while_the_same_thread_waits_to_change_something_is_an_error() -> None:
    """As by a signal handler: the change would go before the batch, and waits for the handler."""
    turn, told, late = Turn(), [], []
    turn.take((-1, NEXT))  # of another thread

    def handler(*signal: object) -> None:
        if not turn.waiting or told:
            return
        late.append(turn.holder)
        if len(late) == 1:
            turn.holder = None  # the other thread lets go
            with pytest.raises(RuntimeError) as caught:
                turn.take((get_ident(), NEXT))
            told.append(str(caught.value))
        elif len(late) > 100:
            raise TimeoutError

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        turn.take((get_ident(), CHANGE))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "from inside of its own next() or update()" in told[0]


def test_a_change_waits_for_the_batch_that_is_asked_for() -> None:
    turn, done = Turn(), []
    turn.take((get_ident(), NEXT))
    change = started(turn, CHANGE, done)
    assert not done
    let_go(turn)
    change.join()
    assert done == [CHANGE]


def test_a_change_goes_before_the_next_batch() -> None:
    turn, done = Turn(), []
    turn.take((get_ident(), CHANGE))
    batch, change = started(turn, NEXT, done), started(turn, CHANGE, done)
    let_go(turn)
    for thread in (batch, change):
        thread.join()
    assert done == [CHANGE, NEXT]


def test_a_thread_that_waits_for_its_batch_is_told_that_the_engine_has_ended() -> None:
    turn, done = Turn(), []
    turn.take((get_ident(), CHANGE))
    batch = started(turn, NEXT, done)
    turn.ended_by = "was closed"
    turn.changes.tell()
    batch.join()
    assert "was closed" in str(done[0])


def test_only_a_free_turn_is_taken_without_waiting() -> None:
    turn = Turn()
    first, second = (get_ident(), CHANGE), (get_ident(), CHANGE)
    assert turn.take_if_free(first) and not turn.take_if_free(second)
    let_go(turn)
    assert turn.take_if_free(second)


def test_many_threads_share_one_turn() -> None:
    turn, done, inside = Turn(), [], []

    def work() -> None:
        for _ in range(200):
            hold = (get_ident(), CHANGE)
            turn.take(hold)
            inside.append(hold)
            done.append(len(inside))
            inside.remove(hold)
            let_go(turn)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [1] * 800
