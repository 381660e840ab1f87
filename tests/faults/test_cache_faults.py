"""A process that uses a cache is killed, or interrupted, at any moment: the cache is right, and nobody waits."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import penstock
from penstock._cache.agendas import Agenda, Publisher, key_of, ranking, rows_of
from penstock._cache.cache import Cache, digest_of
from tests.interrupting import interrupt
from tests.stores import Store, threads, until

PIECE = 200
LIMIT = 5 * (PIECE + 24)


def content(name: str) -> bytes:
    return (name.encode() * PIECE)[:PIECE]


def read(cache: Cache, name: str) -> None:
    assert bytes(cache.get(name, lambda: [content(name)[:50], content(name)[50:]])) == content(name)


def full(folder: Path, pieces: int = 5) -> Cache:
    """A cache in which there is no room: each further piece evicts another."""
    cache = Cache(folder, LIMIT)
    for number in range(pieces):
        read(cache, f"{number}")
    return cache


def check(folder: Path) -> None:
    """Everything is right after a process was killed; a wait for a lock would be ended by the alarm."""
    signal.alarm(20)
    try:
        cache = Cache(folder, LIMIT)
        read(cache, "new")  # what was being made
        read(cache, "another")  # sweeps
        for name in ("0", "4", "more", "new", "another"):
            read(Cache(folder, LIMIT), name)
    finally:
        signal.alarm(0)
    files = list(folder.iterdir())
    assert not [file for file in files if file.name.endswith((".penstock-part", ".penstock-agenda", ".draft"))]
    assert sum(file.stat().st_size for file in files if file.name.endswith(".penstock-piece")) <= LIMIT


def in_child(work: Callable[[], object]) -> int:
    """The status of a forked child that does the work."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def killed_at(line: int, work: Callable[[], object]) -> None:
    """Does the work, and kills this process before a line of the cache's code, counted from its beginning."""
    passed = 0

    def tracer(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal passed
        if "/_cache/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            passed += 1
            if passed == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return tracer

    sys.settrace(tracer)
    work()


def add_one(cache: Cache) -> None:
    read(cache, "new")


def publish_and_add(cache: Cache) -> None:
    publisher = Publisher(cache.path)
    cache.publish(publisher, Agenda(0, rows_of([key_of(digest_of("new"))], [5], [6])))
    cache.fetch("new", partial(content, "new"))
    publisher.close()


@pytest.mark.deep
@pytest.mark.parametrize(("work", "pieces"), [(add_one, 5), (add_one, 2), (publish_and_add, 5)])
def test_killed_at_any_line_the_cache_is_right_and_nobody_waits(
    tmp_path: Path, work: Callable[[Cache], object], pieces: int
) -> None:
    line = killed = 0
    every = random.Random(7)
    while line == killed:
        # Every line with `make wide`; here some of them, and others in each part of the code.
        line += 1 if "PENSTOCK_WIDE" in os.environ else every.randint(1, 16)
        folder = tmp_path / f"{line}"
        full(folder, pieces)
        cache = Cache(folder, LIMIT)
        status = in_child(partial(killed_at, line, partial(work, cache)))
        assert os.WIFSIGNALED(status) or not status
        killed = line if status else 0
        check(folder)
    assert line > 100


LOOP = """
import sys
from penstock._cache.cache import Cache
cache, names = Cache(sys.argv[1], int(sys.argv[2])), sys.argv[3].split()
print("ready", flush=True)
while True:
    for name in names:
        content = (name.encode() * 200)[:200]
        assert cache.get(name, lambda: content) == content
        cache._mapped.clear()
"""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.wide) for seed in range(1, 8))])
def test_programs_that_share_a_folder_are_killed_one_by_one(tmp_path: Path, seed: int) -> None:
    """Each reads more than the cache holds, in another order. Those that are left go on, with the right pieces."""
    draw = random.Random(seed)
    names = [f"{number}" for number in range(12)]
    programs = []
    for _ in range(3):
        draw.shuffle(names)
        command = [sys.executable, "-c", LOOP, str(tmp_path), str(LIMIT), " ".join(names)]
        programs.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        for program in programs:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
        for program in programs:
            time.sleep(draw.uniform(0.01, 0.1))  # a moment of work: any will do
            assert program.poll() is None, program.communicate()[1]
            program.kill()
            program.wait(10)
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    check(tmp_path)


LOADER = """
import sys
from pathlib import Path
import penstock
from tests.stores import Store
folder, limit, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = Store(folder, 20, limit, delay=0.002)
with penstock.DataLoader(store, batch_size=10, shuffle=True, seed=seed, num_workers=1) as loader:
    for _ in range(3):
        assert sorted(key for batch in loader for key in batch.tolist()) == list(range(200))
"""


@pytest.mark.parametrize("pieces", [6, 20])
def test_two_programs_share_what_their_scouts_fetch(tmp_path: Path, pieces: int) -> None:
    command = [sys.executable, "-W", "error", "-c", LOADER, str(tmp_path), str(pieces * 104)]
    programs = [subprocess.Popen([*command, seed], stderr=subprocess.PIPE, text=True) for seed in "12"]
    for program in programs:
        assert program.communicate(timeout=60)[1] == ""
        assert program.returncode == 0
    fetched = [block for block, _ in Store(tmp_path, 20, pieces * 104).fetched()]
    assert set(fetched) == set(range(20))
    if pieces == 20:
        assert len(fetched) == 20
    assert not list(tmp_path.rglob("*.penstock-agenda*"))


@pytest.mark.deep
def test_interrupted_at_any_point_a_cache_leaves_no_lock_and_no_descriptor(tmp_path: Path) -> None:
    at, every = 0, random.Random(5)
    while True:
        at += 1 if "PENSTOCK_WIDE" in os.environ else every.randint(1, 12)
        folder = tmp_path / f"{at}"
        full(folder)
        cache = Cache(folder, LIMIT)
        before = len(os.listdir("/proc/self/fd"))
        done = interrupt(partial(read, cache, "new"), at)
        assert len(os.listdir("/proc/self/fd")) == before, done.where
        if not done.where:
            break
        assert (done.came, done.ignored) == (1, []), done.where
        check(folder)
    assert at > 400


@pytest.mark.deep
@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_interrupted_at_any_point_a_loader_leaves_no_scout(tmp_path: Path, end: str) -> None:
    """Without the garbage collector: no cycle of references keeps the loader."""

    def work(folder: Path) -> None:
        loader = penstock.DataLoader(Store(folder, 4, 1 << 20), batch_size=10)
        with loader if end == "closed" else nullcontext():
            for _ in range(2):
                assert len(list(loader)) == 4

    at, every = 0, random.Random(3)
    gc.collect()
    gc.disable()
    try:
        while True:
            at += every.randint(1, 15 if "PENSTOCK_WIDE" in os.environ else 250)  # there are 3,000
            folder = tmp_path / f"{at}"
            folder.mkdir()
            done = interrupt(partial(work, folder), at)
            until(lambda: not threads())
            assert not list(folder.rglob("*.penstock-agenda*")), done.where
            if not done.where:
                break
    finally:
        gc.enable()
    assert at > 1000


def test_an_agenda_of_another_program_keeps_its_pieces(tmp_path: Path) -> None:
    """A loader that needs some pieces soon, and a program that reads others without any plan."""
    cache = full(tmp_path)
    publisher = Publisher(cache.path)
    names = ["0", "1", "2"]
    rows = rows_of([key_of(digest_of(name)) for name in names], [110, 120, 130], [120, 130, 140])
    cache.publish(publisher, Agenda(100, rows))
    other = Cache(tmp_path, LIMIT)
    for number in range(20):
        read(other, f"other {number}")
    assert all(cache.has(name) for name in names)
    publisher.move(125)  # of "0" nothing is known any more
    read(other, "one more")
    read(other, "and one more")
    read(other, "and another one")
    assert [cache.has(name) for name in names] == [False, True, True]
    publisher.close()
    for number in range(20):
        read(other, f"again {number}")
    assert not any(cache.has(name) for name in names)


def test_what_is_needed_last_by_any_program_goes_first() -> None:
    names = [digest_of(f"{number}") for number in range(6)]
    keys = [key_of(name) for name in names]
    one = Agenda(0, rows_of(keys[:5], [10, 50, 20, 60, 30], [11, 51, 21, 61, 31]))
    other = Agenda(1000, rows_of(keys[:5], [990, 1015, 1030, 1055, 1040], [1010, 1016, 1031, 1056, 1041]))
    order, spare = ranking(keys, [0] * 6, [one, other])
    assert order.tolist() == [5, 3, 4, 2, 1, 0]  # in nobody's agenda, then needed in 55, 30, 20, 15 samples, and now
    assert spare.tolist() == [False, True, True, True, True, True]
    # For a piece that is needed in 20 samples: "1" is used before that, and then once more, in 50 samples.
    order, spare = ranking(keys, [0] * 6, [one, other], keys[2])
    assert order.tolist() == [0, 5, 3, 1, 4, 2]
    assert spare.tolist() == [False, False, False, True, True, True]
