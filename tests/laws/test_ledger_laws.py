"""Which task is where: any order of posts, answers, losses and leaves keeps the ledger's invariants."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.backends._ray.ledger import ANY, Ledger

OPERATIONS = ("post", "again", "rescind", "hire", "join", "answer", "halt", "lose", "leave", "withdraw")


class World:
    """The ledger beside what must be true of it: every task that was posted is told of exactly once."""

    def __init__(self, choose: Any) -> None:
        self.ledger, self.choose = Ledger(), choose
        self.next_seq = self.next_worker = 0
        self.posted: set[int] = set()  # and nothing is told of them yet
        self.hands: dict[int, list[int]] = {}
        self.void: set[int] = set()
        self.coming: list[int] = []
        self.lost: list[int] = []
        self.halted: set[int] = set()
        self.wanted = 0

    def one_of(self, some: Any) -> Any:
        some = sorted(some)
        return some[self.choose(len(some))] if some else None

    def settle(self) -> None:
        """What the backend does after each change."""
        for worker in self.ledger.leave():
            self.wanted -= 1
            assert not self.hands.pop(worker, []), "a worker leaves without a task"
            if worker in self.coming:
                self.coming.remove(worker)
        for worker, seq in self.ledger.deal():
            assert worker not in self.halted, "a worker that cannot be reached gets no task"
            self.hands[worker].append(seq)
        self.ledger.check()
        assert self.wanted >= 0
        waiting = self.posted - {seq for hand in self.hands.values() for seq in hand}
        idle = [worker for worker, hand in self.hands.items() if not hand and worker not in self.halted]
        assert not (waiting and idle), "no task waits while a worker is free"
        assert not (self.wanted and (idle or self.coming)), "no leave waits while a worker is free"

    def post(self) -> None:
        self.posted.add(self.next_seq)
        self.ledger.post(self.next_seq, ANY)
        self.next_seq += 1

    def again(self) -> None:
        if self.lost:  # a lost task is posted again under its old number
            seq = self.lost.pop()
            self.posted.add(seq)
            self.ledger.post(seq, ANY)

    def rescind(self) -> None:
        seq = self.one_of(self.posted)
        if seq is not None:
            assert self.ledger.rescind(seq)
            self.posted.remove(seq)
            if any(seq in hand for hand in self.hands.values()):
                self.void.add(seq)
            assert not self.ledger.rescind(seq)

    def hire(self) -> None:
        self.ledger.hire(self.next_worker, self.next_worker)
        self.coming.append(self.next_worker)
        self.next_worker += 1

    def join(self) -> None:
        if self.coming:
            worker = self.coming.pop()
            self.ledger.join(worker)
            self.hands[worker] = []

    def answer(self) -> None:
        worker = self.one_of(worker for worker, hand in self.hands.items() if hand and worker not in self.halted)
        if worker is not None:
            seq = self.hands[worker].pop(0)
            assert self.ledger.has(worker) == seq
            wanted = self.ledger.answering(worker, seq)
            assert wanted == (seq not in self.void)
            if wanted:
                assert not self.ledger.rescind(seq), "what arrives cannot be taken back"
                self.posted.remove(seq)
            self.void.discard(seq)
            self.ledger.answered(worker, quick=bool(self.choose(2)))

    def halt(self) -> None:
        worker = self.one_of(self.hands)
        if worker is not None:
            self.halted.add(worker)
            self.ledger.halt(worker)

    def lose(self) -> None:
        worker = self.one_of([*self.hands, *self.coming])
        if worker is not None:
            hand = self.hands.pop(worker, [])
            if worker in self.coming:
                self.coming.remove(worker)
            blamed = self.ledger.lose(worker)
            assert blamed == (hand[0] if hand and hand[0] not in self.void else None)
            if blamed is not None:
                self.posted.remove(blamed)
                self.lost.append(blamed)
            self.void -= {*hand}

    def leave(self) -> None:
        self.wanted += 1
        self.ledger.want_leave()

    def withdraw(self) -> None:
        assert self.ledger.withdraw_leaves() == self.wanted
        self.wanted = 0


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(st.sampled_from(OPERATIONS), max_size=60))
def test_no_task_is_lost_or_done_twice(data: st.DataObject, operations: list[str]) -> None:
    world = World(lambda size: data.draw(st.integers(0, size - 1)))
    for operation in operations:
        getattr(world, operation)()
        world.settle()


def joined(ledger: Ledger, *workers: int) -> None:
    for worker in workers:
        ledger.hire(worker, worker)
        ledger.join(worker)


def answer(ledger: Ledger, worker: int, seq: int, quick: bool = True) -> None:
    ledger.answering(worker, seq)
    ledger.answered(worker, quick)


def test_only_a_quick_worker_has_a_second_task() -> None:
    for quick in (True, False):
        ledger = Ledger()
        joined(ledger, 0)
        for seq in range(9):
            ledger.post(seq, ANY)
        assert ledger.deal() == [(0, 0)]
        answer(ledger, 0, 0, quick)
        assert ledger.deal() == ([(0, 1), (0, 2)] if quick else [(0, 1)])


def test_the_second_task_of_a_lost_worker_is_nobodys_fault() -> None:
    ledger = Ledger()
    joined(ledger, 0)
    ledger.post(0, ANY)
    ledger.deal()
    answer(ledger, 0, 0)
    for seq in (1, 2, 3):
        ledger.post(seq, ANY)
    assert ledger.deal() == [(0, 1), (0, 2)]
    assert ledger.lose(0) == 1
    joined(ledger, 1)
    assert ledger.deal() == [(1, 2)]  # before the third


def test_an_answer_that_was_not_asked_for_is_refused() -> None:
    ledger = Ledger()
    joined(ledger, 0, 1)
    ledger.post(5, ANY)
    ledger.deal()
    for worker, seq in ((1, 5), (0, 4), (7, 5)):
        with pytest.raises(ValueError, match="answers task"):
            ledger.answering(worker, seq)


def test_tasks_for_a_seat_wait_for_its_worker_which_leaves_after_them() -> None:
    ledger = Ledger(assigned=True)
    joined(ledger, 0, 1)
    for seq in range(4):
        ledger.post(seq, seq % 2)
    ledger.want_leave(1)
    assert sorted(ledger.deal()) == [(0, 0), (1, 1)] and ledger.leave() == []
    answer(ledger, 1, 1, quick=False)
    assert ledger.leave() == [] and ledger.deal() == [(1, 3)]
    answer(ledger, 1, 3, quick=False)
    assert ledger.leave() == [1] and ledger.leave() == []
