"""The process backend, driven without a loader: tasks, workers that leave when asked, and kills in between."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from penstock import get_worker_info
from penstock._feed.keys import KeyFetch
from penstock._wire.task import Task
from penstock._work.job import Job
from penstock.backends import Filled, Left, Lost
from penstock.backends._process.backend import start
from penstock.backends._process.board import Board
from penstock.errors import InternalError

# By value: else each fresh interpreter imports this module, and pytest with it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

METHODS = ("fork", "forkserver")


class Keys:
    """The sample of a key is the key and the pid of the worker."""

    def __getitem__(self, key: int) -> Any:
        return key, os.getpid()


class Gated(Keys):
    """The samples of a key below 100 wait until there is a file with the name of the key."""

    def __init__(self, gates: Path) -> None:
        self.gates = gates

    def __getitem__(self, key: int) -> Any:
        if key < 100:
            (self.gates / f"begun {key}").touch()
            while not (self.gates / str(key)).exists():
                time.sleep(0.001)
        return super().__getitem__(key)

    def wait_until_begun(self, *keys: int) -> None:
        deadline = time.monotonic() + 30
        while not all((self.gates / f"begun {key}").exists() for key in keys):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def open(self, *keys: int) -> None:
        for key in keys:
            (self.gates / str(key)).touch()


class Crew:
    """A backend and the outcomes that it has told of."""

    def __init__(self, method: str, dataset: Any, workers: int) -> None:
        self.job = Job(dataset, KeyFetch, None, None, workers, seed=1, drop_last=False)
        self.backend = start(self.job, method)
        self.hired = 0
        self.posted = 0
        self.done: dict[int, int] = {}  # by key: the pid of the worker
        self.left: list[int] = []
        self.lost: list[Lost] = []
        for _ in range(workers):
            self.hire()

    def hire(self) -> int:
        self.backend.hire(self.hired, self.hired)
        self.hired += 1
        return self.hired - 1

    def post(self, *keys: int) -> None:
        for key in keys:
            task = Task(self.posted, 0, 0, self.posted, [key])
            self.backend.post(task, self.posted, -1)
            self.posted += 1
        self.backend.flush()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, (self.done, self.left, self.lost)
            for outcome in self.backend.poll(0.01):
                if isinstance(outcome, Filled):
                    keys, pids = self.backend.open(outcome)  # type: ignore[misc]
                    assert keys[0] not in self.done
                    self.done[int(keys[0])] = int(pids[0])
                elif isinstance(outcome, Left):
                    self.left.append(outcome.worker)
                else:
                    assert isinstance(outcome, Lost)
                    self.lost.append(outcome)
            self.backend.flush()

    def pid(self, worker: int) -> int:
        return self.backend._workers[worker].pid

    def kill(self, worker: int) -> None:
        os.kill(self.pid(worker), signal.SIGKILL)


@pytest.fixture
def crew_of() -> Iterator[Callable[..., Crew]]:
    made: list[Crew] = []

    def make(method: str, dataset: Any, workers: int) -> Crew:
        made.append(Crew(method, dataset, workers))
        return made[-1]

    yield make
    while made:
        made.pop().backend.close()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def is_asleep(pid: int) -> bool:
    """True if the process waits: for a token, if it has nothing else to wait for."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"


@pytest.mark.parametrize("method", METHODS)
def test_all_workers_of_an_idle_crew_leave_one_by_one(method: str, crew_of: Any) -> None:
    crew = crew_of(method, Keys(), 3)
    crew.post(*range(20))
    crew.until(lambda: len(crew.done) == 20)
    for count in range(1, 4):
        before = {process.pid for process in crew.backend.workers}
        crew.backend.retire()
        crew.until(lambda count=count: len(crew.left) == count)
        gone = before - {process.pid for process in crew.backend.workers}
        assert len(gone) == 1 and not is_alive(gone.pop())
    assert sorted(crew.left) == [0, 1, 2] and not crew.lost


@pytest.mark.parametrize("method", METHODS)
def test_tasks_wait_for_a_worker_that_comes_after_all_have_left(method: str, crew_of: Any) -> None:
    crew = crew_of(method, Keys(), 1)
    crew.backend.retire()
    crew.until(lambda: crew.left == [0])
    crew.post(*range(20))
    assert crew.backend.poll(0) == []
    crew.hire()
    crew.until(lambda: len(crew.done) == 20)
    assert set(crew.done.values()) == {crew.pid(1)}


@pytest.mark.parametrize("method", METHODS)
def test_a_busy_worker_leaves_after_its_present_step(method: str, crew_of: Any, tmp_path: Path) -> None:
    dataset = Gated(tmp_path)
    crew = crew_of(method, dataset, 2)
    crew.post(0, 1)
    dataset.wait_until_begun(0, 1)
    crew.post(*range(100, 130))
    crew.backend.retire()
    assert crew.backend.poll(0) == []
    dataset.open(0)
    crew.until(lambda: len(crew.left) == 1)
    assert set(crew.done) == {0}, "it leaves before it takes another step"
    dataset.open(1)
    crew.until(lambda: len(crew.done) == 32)
    leaver = crew.done.pop(0)
    assert set(crew.done.values()) == {crew.pid(1 - crew.left[0])}
    assert not is_alive(leaver) and not crew.lost


def test_a_worker_that_is_asked_before_it_has_started_does_no_step(crew_of: Any) -> None:
    crew = crew_of("forkserver", Keys(), 1)
    crew.backend.retire()
    crew.post(1)
    crew.until(lambda: crew.left == [0])
    assert not crew.done


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_is_killed_is_lost_and_the_leave_stays_wanted(
    method: str, crew_of: Any, tmp_path: Path
) -> None:
    dataset = Gated(tmp_path)
    crew = crew_of(method, dataset, 2)
    crew.post(0, 1)
    dataset.wait_until_begun(0, 1)
    crew.backend.retire()
    crew.kill(0)
    crew.until(lambda: len(crew.lost) == 1)
    assert crew.lost[0].worker == 0 and crew.lost[0].seq in (0, 1) and not crew.left
    dataset.open(0, 1)
    crew.until(lambda: crew.left == [1])
    assert len(crew.done) == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_leave_that_the_only_worker_did_not_live_to_take_is_that_of_the_next(method: str, crew_of: Any) -> None:
    crew = crew_of(method, Keys(), 1)
    crew.post(1)
    crew.until(lambda: 1 in crew.done)
    os.kill(crew.pid(0), signal.SIGSTOP)
    crew.backend.retire()
    crew.kill(0)
    crew.until(lambda: len(crew.lost) == 1)
    crew.hire()
    crew.until(lambda: crew.left == [1])


@pytest.mark.parametrize("after", [False, True], ids=["before it took the leave", "after it took the leave"])
def test_a_worker_that_dies_while_it_leaves(
    after: bool, crew_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it has read the token that was to wake one of them: another worker must still leave."""
    life = tmp_path / "life"
    take_leave = Board.take_leave

    def die_first(board: Board, worker: int) -> bool:
        leaves = take_leave(board, worker) if after else board.wanted_leaves > 0
        if leaves and life.exists():
            life.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return leaves if after else take_leave(board, worker)

    monkeypatch.setattr(Board, "take_leave", die_first)
    dataset = Gated(tmp_path)
    crew = crew_of("fork", dataset, 2)
    crew.post(0, 1)
    dataset.wait_until_begun(0, 1)
    dataset.open(0, 1)
    crew.until(lambda: len(crew.done) == 2)
    crew.until(lambda: all(is_asleep(process.pid) for process in crew.backend.workers))
    life.touch()
    crew.backend.retire()
    crew.until(lambda: len(crew.left) == 1)
    assert len(crew.lost) == (0 if after else 1)
    assert len(crew.backend.workers) == (1 if after else 0)
    if after:
        crew.post(100)
        crew.until(lambda: 100 in crew.done)


@pytest.mark.parametrize("method", METHODS)
def test_close_in_a_forked_child_closes_no_file_of_the_child(method: str, crew_of: Any) -> None:
    crew = crew_of(method, Keys(), 1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            files = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]  # with numbers that the crew had
            crew.backend.close()
            for file in files:
                os.fstat(file)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    crew.post(1)
    crew.until(lambda: 1 in crew.done)
    assert not crew.lost


class Who:
    def __getitem__(self, key: int) -> Any:
        info = get_worker_info()
        return info.id, info.num_workers


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_beyond_the_first_number_of_workers_knows_its_seat(method: str, crew_of: Any) -> None:
    crew = crew_of(method, Who(), 1)
    crew.hired = 5
    crew.hire()
    crew.backend.retire()
    crew.backend.retire()
    crew.until(lambda: len(crew.left) == 2)
    assert sorted(crew.left) == [0, 5]
    crew.hire()
    crew.post(0)
    crew.until(lambda: len(crew.done) == 1)
    assert crew.done == {6: 1}


def test_workers_that_have_tasks_of_their_own_cannot_be_asked_to_leave() -> None:
    job = Job(Keys(), KeyFetch, None, None, 1, seed=1, drop_last=False, assigned=True)
    backend = start(job, "fork")
    try:
        with pytest.raises(InternalError, match="assigned"):
            backend.retire()
    finally:
        backend.close()


@pytest.mark.parametrize("seed", range(4))
def test_any_mixture_of_hires_leaves_and_kills_does_every_task_once(seed: int, crew_of: Any) -> None:
    choose = random.Random(seed)
    crew = crew_of("fork" if seed % 2 else "forkserver", Keys(), 2)
    asked, killed = 0, set()
    for _ in range(60):
        deed = choose.choice(["post", "post", "hire", "retire", "kill"])
        living = len(crew.backend.workers)
        if deed == "post":
            crew.post(*range(100 + crew.posted, 100 + crew.posted + choose.randrange(1, 30)))
        elif deed == "hire" and living < 5:
            crew.hire()
        elif deed == "retire" and asked - len(crew.left) < living:
            crew.backend.retire()
            asked += 1
        elif deed == "kill" and living:
            worker = choose.choice(list(crew.backend._workers))
            crew.kill(worker)
            killed.add(worker)
        moment = time.monotonic() + choose.random() * 0.01
        crew.until(lambda moment=moment: time.monotonic() > moment)
    crew.until(lambda: killed <= {loss.worker for loss in crew.lost} | set(crew.left))
    while len(crew.left) < asked:
        crew.hire()
        crew.until(lambda: len(crew.left) == asked or not crew.backend.workers)
    assert {loss.worker for loss in crew.lost} <= killed and not crew.backend._board.wanted_leaves
    crew.hire()
    keys = {100 + seq for seq in range(crew.posted)}
    crew.post(*(100 + loss.seq for loss in crew.lost if loss.seq is not None))
    crew.until(lambda: set(crew.done) == keys)
    assert len(crew.left) == asked
