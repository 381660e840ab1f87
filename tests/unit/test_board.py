"""The board: a task is claimed once, whoever dies, and a stale token claims nothing."""

from __future__ import annotations

import fcntl
import os
import select
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.backends._process.board import TOKEN, Board, Record


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("board")
    yield fd
    os.close(fd)


def record(seq: int) -> Record:
    return Record(seq, 0, 0, seq, 0, 8, 1, 0, 0, 4096, 0, 4096)


def test_a_task_is_claimed_once(fd: int) -> None:
    board = Board(fd, 4)
    board.post(2, *record(7))
    assert board.is_open(2) and board.claimant(2) is None
    assert board.claim(2, 7, worker=5) == record(7)
    assert not board.is_open(2) and board.claimant(2) == 5
    assert board.claim(2, 7, worker=6) is None
    board.clear(2)
    assert board.claimant(2) is None


def test_a_token_of_another_task_claims_nothing(fd: int) -> None:
    board = Board(fd, 1)
    board.post(0, *record(1))
    assert board.rescind(0)
    board.post(0, *record(2))
    assert board.claim(0, 1, worker=0) is None
    assert board.claim(0, 2, worker=0) == record(2)


def test_a_claimed_task_cannot_be_rescinded(fd: int) -> None:
    board = Board(fd, 1)
    board.post(0, *record(1))
    board.claim(0, 1, worker=0)
    assert not board.rescind(0)
    assert board.claimant(0) == 0


def test_a_claim_waits_for_a_lock_which_dies_with_its_holder(fd: int) -> None:
    board = Board(fd, 1)
    board.post(0, *record(1))
    ready, go = os.pipe()
    holder = os.fork()
    if holder == 0:
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)
        os.write(go, b"x")
        signal.pause()
    os.read(ready, 1)
    assert not board.rescind(0), "rescinding does not wait"
    with ThreadPoolExecutor(1) as threads:
        claim = threads.submit(board.claim, 0, 1, 1)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        assert claim.result() == record(1)
    os.close(ready)
    os.close(go)


def test_stale_tokens_beside_a_good_one_keep_nobody_from_the_task(fd: int) -> None:
    """A worker with a stale token holds the lock for a moment. Who came then with the good one once gave up."""
    board = Board(fd, 1)
    tokens, tokens_in = os.pipe()
    done, done_in = os.pipe()
    pids = []
    for worker in range(4):
        pid = os.fork()
        if pid == 0:
            os.close(tokens_in)
            mine = Board(fd, 1)
            while token := os.read(tokens, TOKEN.size):
                if mine.claim(*TOKEN.unpack(token), worker) is not None:
                    os.write(done_in, b"x")
            os._exit(0)
        pids.append(pid)
    try:
        for seq in range(1, 3000):
            board.post(0, *record(seq))
            os.write(tokens_in, TOKEN.pack(0, seq - 1) * 3 + TOKEN.pack(0, seq) + TOKEN.pack(0, seq - 1) * 3)
            assert select.select([done], [], [], 20)[0], f"task {seq} stays open"
            os.read(done, 1)
            board.clear(0)
    finally:
        os.close(tokens_in)
        for pid in pids:
            os.waitpid(pid, 0)
        for end in (tokens, done, done_in):
            os.close(end)


def test_many_processes_claim_every_task_exactly_once(fd: int) -> None:
    """Every token is sent three times, as after deaths; every task is still done once."""
    slots, workers = 200, 4
    board = Board(fd, slots)
    tokens, tokens_in = os.pipe()
    done, done_in = os.pipe()
    pids = []
    for worker in range(workers):
        pid = os.fork()
        if pid == 0:
            os.close(tokens_in)
            mine = Board(fd, slots)
            while token := os.read(tokens, TOKEN.size):
                claimed = mine.claim(*TOKEN.unpack(token), worker)
                if claimed is not None:
                    os.write(done_in, TOKEN.pack(claimed.seq, worker))
            os._exit(0)
        pids.append(pid)
    for slot in range(slots):
        board.post(slot, *record(1000 + slot))
    for _ in range(3):
        for slot in range(slots):
            os.write(tokens_in, TOKEN.pack(slot, 1000 + slot))
    os.close(tokens_in)
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(done_in)
    with os.fdopen(done, "rb") as file:
        claims = dict(pairs := list(TOKEN.iter_unpack(file.read())))
    assert len(pairs) == slots and sorted(claims) == [1000 + slot for slot in range(slots)]
    assert all(board.claimant(seq - 1000) == worker for seq, worker in pairs)
    os.close(tokens)


def test_who_has_a_task_that_nobody_wants_is_told(fd: int) -> None:
    board = Board(fd, 1)
    board.post(0, *record(1))
    board.claim(0, 1, worker=0)
    assert board.begin(0, 1) and board.at(0) == 1
    board.void(0)
    assert not board.begin(0, 2)
    board.clear(0)
    board.post(0, *record(2))
    assert board.begin(0, 0)
