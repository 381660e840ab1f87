"""A program that shares a cache, or decoded blocks, is stopped while it has a lock: others go on, and say so."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from penstock._cache.cache import Cache
from penstock._cache.claims import Claim
from penstock._cache.shared import Inventory, Shared
from penstock._system import trust

TABLES = count()
FLOCK = struct.Struct("hhqqi4x")

PROGRAM = """
import os, signal, sys, time
from penstock._cache.cache import Cache
from penstock._system.interrupts import with_loan
from penstock._cache.shared import Shared

def stop(content=b"late"):
    print("has the lock", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    return [content]

def slow():
    print("has the lock", flush=True)
    time.sleep(1.5)
    return b"slow"
"""


@contextmanager
def program(code: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has said that it has the lock. It is killed in the end."""
    command = [sys.executable, "-c", PROGRAM + code, *args]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "has the lock\n"
        yield running
    finally:
        running.kill()
        running.communicate()


def until_stopped(running: subprocess.Popen[str]) -> None:
    while Path(f"/proc/{running.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        assert running.poll() is None


@pytest.fixture(autouse=True)
def no_wait_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(trust, "WAIT", 0.3)
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _too_long(*args: object) -> None:
    raise AssertionError("the wait has no limit")


@pytest.mark.parametrize("lock", ["of a piece", "of the folder"])
def test_a_stopped_program_does_not_stop_others(tmp_path: Path, lock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "cache = Cache(sys.argv[1], 1000)\n"
    code += "cache.get('a', stop)" if lock == "of a piece" else "with_loan(cache._folder.own_lock(), stop)"
    with program(code, str(tmp_path)) as running:
        until_stopped(running)
        cache = Cache(tmp_path, 1000)
        said = rf"process {running.pid} \(stopped\) has kept a lock .* Continue or end that program"
        with pytest.warns(RuntimeWarning, match=said):
            assert cache.get("a", lambda: b"mine") == b"mine"
        # Once is enough: no further piece is waited for.
        monkeypatch.setattr(trust, "WAIT", 1000)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cache.get("a", lambda: b"again") == b"mine"
            assert cache.get("b", lambda: b"b") == b"b"
            assert cache.fetch("a", lambda: b"a") is False
        os.kill(running.pid, signal.SIGCONT)
        running.wait()
    assert Cache(tmp_path, 1000).get("a", lambda: b"new") == (b"late" if lock == "of a piece" else b"new")


def test_a_program_that_reads_the_lock_file_does_not_stop_its_owner(tmp_path: Path) -> None:
    """For a shared lock, it need only be allowed to read. It runs, but is not at work for us."""
    cache = Cache(tmp_path, 1000)
    cache.get("a", lambda: b"a")
    fd = os.open(tmp_path / "penstock-cache", os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        with pytest.warns(RuntimeWarning, match=rf"process {os.getpid()} has kept a lock"):
            assert cache.get("b", lambda: b"b") == b"b"
    finally:
        os.close(fd)


def test_a_program_that_is_at_a_long_download_is_waited_for(tmp_path: Path) -> None:
    with program("Cache(sys.argv[1], 1000).get('a', slow)", str(tmp_path)), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Cache(tmp_path, 1000).get("a", lambda: b"twice") == b"slow"


def test_a_download_that_does_not_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "LONGEST", 1.0)
    code = "Cache(sys.argv[1], 1000).get('a', lambda: (print('has the lock', flush=True), signal.pause()))"
    said = "process [0-9]+ has kept a lock for more than 1 s"
    with program(code, str(tmp_path)), pytest.warns(RuntimeWarning, match=said):
        assert Cache(tmp_path, 1000).get("a", lambda: b"mine") == b"mine"


def test_a_block_that_a_stopped_process_decodes_is_decoded_by_others() -> None:
    table = f"stopped{next(TABLES)}x{os.getpid()}"
    with (
        closing(Inventory(table, Claim(np.empty(0, np.int64), 1000))),
        closing(Shared(table, 100)) as shared,
        program("Shared(sys.argv[1], 100).get(3, stop)", table) as running,
    ):
        until_stopped(running)
        with pytest.warns(RuntimeWarning, match=rf"process {running.pid} \(stopped\)"):
            assert shared.get(3, lambda: [b"mine"]) is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert shared.get(3, lambda: [b"mine"]) is None
            assert shared.get(4, lambda: [b"mine"]) == b"mine"
        os.kill(running.pid, signal.SIGCONT)
        assert running.wait() == 0


def test_an_inventory_whose_lock_is_not_let_go_does_not_stop_a_loader() -> None:
    table = f"stopped{next(TABLES)}x{os.getpid()}"
    with closing(Inventory(table, Claim(np.empty(0, np.int64), 1000))) as inventory:
        code = "from penstock._cache.locks import *\nshared = Shared(sys.argv[1], 100)\n"
        code += "with_loan(ByteLock(again(shared._find_inventory()), 0, LockPatience()), stop)"
        with program(code, table) as running, closing(Shared(table, 100)) as shared:
            until_stopped(running)
            with pytest.warns(RuntimeWarning, match=rf"process {running.pid} \(stopped\)"):
                assert shared.get(3, lambda: [b"mine"]) == b"mine"
            with pytest.raises(Exception, match="has kept a lock"):
                inventory.claim(Claim(np.arange(3), None))
