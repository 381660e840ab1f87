"""The board: a task is claimed once, whoever dies, and a stale token claims nothing."""

from __future__ import annotations

import fcntl
import os
import select
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from penstock._wire.task import Notice
from penstock.backends._process.board import NO_TASK, SLOTS, TOKEN, Board
from penstock.errors import InternalError


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("board")
    yield fd
    os.close(fd)


def notice(seq: int) -> Notice:
    return Notice(seq, 0, 0, seq, 0, 8, 1, 0, 0, 4096, 4096)


def test_a_task_is_claimed_once(fd: int) -> None:
    board = Board(fd)
    slot = board.post(*notice(7))
    assert board.is_open(slot) and board.claimant(slot) is None
    assert board.claim(slot, 7, worker=5) == notice(7)
    assert not board.is_open(slot) and board.claimant(slot) == 5
    assert board.claim(slot, 7, worker=6) is None
    board.clear(slot)
    assert board.claimant(slot) is None


def test_a_token_of_another_task_claims_nothing(fd: int) -> None:
    board = Board(fd)
    slot = board.post(*notice(1))
    assert board.rescind(slot)
    board.clear(slot)
    assert board.post(*notice(2)) == slot
    assert board.claim(slot, 1, worker=0) is None
    assert board.claim(slot, 2, worker=0) == notice(2)


def test_a_token_that_names_no_task_claims_nothing(fd: int) -> None:
    board = Board(fd)
    slot = board.post(*notice(-1))
    assert board.claim(*TOKEN.unpack(NO_TASK), worker=0) is None
    assert board.is_open(slot)


def test_a_claimed_task_cannot_be_rescinded(fd: int) -> None:
    board = Board(fd)
    slot = board.post(*notice(1))
    board.claim(slot, 1, worker=0)
    assert not board.rescind(slot)
    assert board.claimant(slot) == 0


def test_a_board_takes_little_memory_and_has_room_for_all_slots_but_one(fd: int) -> None:
    board = Board(fd)
    for seq in range(8):
        board.post(*notice(seq))
    assert os.fstat(fd).st_blocks * 512 <= 2 * 4096
    for seq in range(8, SLOTS - 1):
        board.post(*notice(seq))
    with pytest.raises(InternalError, match="no room"):
        board.post(*notice(SLOTS))
    board.clear(77)
    assert board.post(*notice(SLOTS)) == 77


@contextmanager
def a_lock_is_held(fd: int, byte: int) -> Iterator[int]:
    """Another process holds the lock on this byte until it is killed. Yields its pid."""
    ready, go = os.pipe()
    holder = os.fork()
    if holder == 0:
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, byte)
        os.write(go, b"x")
        signal.pause()
    os.read(ready, 1)
    yield holder
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    os.close(ready)
    os.close(go)


def test_a_claim_waits_for_a_lock_which_dies_with_its_holder(fd: int) -> None:
    board = Board(fd)
    slot = board.post(*notice(1))
    with ThreadPoolExecutor(1) as threads:
        with a_lock_is_held(fd, slot):
            assert not board.rescind(slot), "rescinding does not wait"
            claim = threads.submit(board.claim, slot, 1, 1)
        assert claim.result() == notice(1)


class Workers:
    """Processes that claim tasks. Tokens go in, and (seq, worker) of each claim comes out."""

    def __init__(self, fd: int) -> None:
        tokens, self.tokens = os.pipe()
        self.claims, claims = os.pipe()
        self.pids = []
        for worker in range(4):
            pid = os.fork()
            if pid == 0:
                os.close(self.tokens)
                board = Board(fd)
                while token := os.read(tokens, TOKEN.size):
                    claimed = board.claim(*TOKEN.unpack(token), worker)
                    if claimed is not None:
                        os.write(claims, TOKEN.pack(claimed.seq, worker))
                os._exit(0)
            self.pids.append(pid)
        os.close(tokens)
        os.close(claims)

    def end(self) -> list[Any]:
        """Waits until they have read all tokens. Returns the claims that were not read before."""
        os.close(self.tokens)
        for pid in self.pids:
            os.waitpid(pid, 0)
        with os.fdopen(self.claims, "rb") as file:
            return list(TOKEN.iter_unpack(file.read()))


def test_stale_tokens_beside_a_good_one_keep_nobody_from_the_task(fd: int) -> None:
    """A worker with a stale token holds the lock for a moment. A worker with the good token then once gave up."""
    board, workers = Board(fd), Workers(fd)
    try:
        for seq in range(1, 3000):
            slot = board.post(*notice(seq))
            stale = TOKEN.pack(slot, seq - 1) * 3
            os.write(workers.tokens, stale + TOKEN.pack(slot, seq) + stale)
            assert select.select([workers.claims], [], [], 20)[0], f"task {seq} stays open"
            os.read(workers.claims, TOKEN.size)
            board.clear(slot)
    finally:
        assert workers.end() == []


def test_many_processes_claim_every_task_exactly_once(fd: int) -> None:
    """Every token is sent three times, as after deaths; every task is still done once."""
    board, workers = Board(fd), Workers(fd)
    slots = {seq: board.post(*notice(seq)) for seq in range(1000, 1200)}
    for _ in range(3):
        for seq, slot in slots.items():
            os.write(workers.tokens, TOKEN.pack(slot, seq))
    claims = workers.end()
    assert sorted(seq for seq, _ in claims) == list(slots)
    assert all(board.claimant(slots[seq]) == worker for seq, worker in claims)


def test_a_worker_is_told_that_its_task_is_not_wanted_any_more(fd: int) -> None:
    board = Board(fd)
    slot = board.post(*notice(1))
    board.claim(slot, 1, worker=0)
    assert board.begin(slot, 1) and board.at(slot) == 1
    board.void(slot)
    assert not board.begin(slot, 2)
    board.clear(slot)
    assert board.post(*notice(2)) == slot
    assert board.begin(slot, 0)


# Leaves


def test_each_wanted_leave_is_taken_once_and_by_name(fd: int) -> None:
    parents, board = Board(fd), Board(fd)
    assert not board.take_leave(3)
    parents.want_leave()
    parents.want_leave()
    assert parents.wanted_leaves == 2
    assert [board.take_leave(worker) for worker in (3, 4, 5)] == [True, True, False]
    assert [parents.took_leave(worker) for worker in (3, 4, 5)] == [True, True, False]
    assert parents.wanted_leaves == 0


def test_leaves_that_no_worker_has_taken_are_withdrawn(fd: int) -> None:
    parents, board = Board(fd), Board(fd)
    assert parents.withdraw_leaves() == 0
    for _ in range(3):
        parents.want_leave()
    assert board.take_leave(3)
    assert parents.withdraw_leaves() == 2 and parents.wanted_leaves == 0
    assert not board.take_leave(4)
    parents.want_leave()
    assert board.take_leave(5)
    assert [worker for worker in range(9) if parents.took_leave(worker)] == [3, 5]


def test_a_leave_waits_for_a_lock_which_dies_with_its_holder(fd: int) -> None:
    board = Board(fd)
    board.want_leave()
    with ThreadPoolExecutor(1) as threads:
        with a_lock_is_held(fd, 0):
            leave = threads.submit(board.take_leave, 1)
        assert leave.result()


def test_many_processes_take_as_many_leaves_as_are_wanted(fd: int) -> None:
    board = Board(fd)
    for _ in range(300):
        board.want_leave()
    pids = []
    for first in range(0, 4000, 1000):
        pid = os.fork()
        if pid == 0:
            mine = Board(fd)
            for worker in range(first, first + 1000):
                mine.take_leave(worker)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    assert board.wanted_leaves == 0
    assert sum(board.took_leave(worker) for worker in range(4000)) == 300
