"""Law 6: nothing is left behind, however it ends. Real programs, real signals."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from programs import Begin

from penstock import DataLoader, Dataset

METHODS = ["fork", "spawn", "forkserver"]

PREAMBLE = """
import os, sys, time
import numpy as np
from penstock import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, key):
        # Quick until every worker has had one, even if one of them starts late; then very slow.
        time.sleep(0.01 if key < 200 else 1000)
        return np.array([os.getpid(), key])
"""


@pytest.mark.parametrize("method", METHODS)
def test_when_the_parent_is_killed_the_workers_die_at_once(begin: Begin, method: str) -> None:
    program = begin(f"""
        loader = DataLoader(Data(), num_workers=2, multiprocessing_context={method!r})
        batches = iter(loader)
        pids = set()
        while len(pids) < 2:
            pids.add(int(next(batches)[0, 0]))
        print(*pids, flush=True)
        time.sleep(1000)
        """)
    pids = [int(pid) for pid in program.line().split()]
    assert len(pids) == 2
    os.kill(program.pid, signal.SIGKILL)
    assert program.end() == (-signal.SIGKILL, "", "")


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_gives_one_clean_keyboard_interrupt(begin: Begin, method: str) -> None:
    program = begin(f"""
        loader = DataLoader(Data(), num_workers=2, multiprocessing_context={method!r})
        batches = iter(loader)
        next(batches)
        try:
            print("ready", flush=True)
            for batch in batches:
                pass
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """)
    assert program.line() == "ready"
    os.killpg(program.pid, signal.SIGINT)
    assert program.end() == (0, "interrupted\n", "")


ENDINGS = {
    "out of a loop": "list(zip(range(5), loader))",
    "with an iterator": "batches = iter(loader); next(batches)",
    "by sys.exit": "batches = iter(loader); next(batches); sys.exit(0)",
    "closed": "batches = iter(loader); next(batches); loader.close()",
    "dropped": "batches = iter(loader); next(batches); del loader, batches",
    "with batches kept": "kept = [batch for _, batch in zip(range(5), loader)]",
    "with two iterators": "a, b = iter(loader), iter(loader); next(a), next(b)",
}
# The method decides how a worker is started, not how it is ended: three endings do for the slow ones.
NARROW = ("with an iterator", "dropped", "with batches kept")


@pytest.mark.parametrize(
    ("method", "ending"),
    [
        pytest.param(method, ending, marks=() if method == "fork" or ending in NARROW else pytest.mark.wide)
        for method in METHODS
        for ending in ENDINGS
    ],
)
def test_a_script_ends_quickly_and_silently(begin: Begin, method: str, ending: str) -> None:
    program = begin(f"""
        loader = DataLoader(Data(), num_workers=2, multiprocessing_context={method!r})
        {ENDINGS[ending]}
        """)
    assert program.end() == (0, "", "")


def test_an_unguarded_script_with_its_own_classes_works(tmp_path: Path) -> None:
    text = """
        class Mine(Exception):
            pass
        class Bad(Data):
            def __getitem__(self, key):
                if key == 3:
                    raise Mine(key)
                return key
        loader = DataLoader(
            Bad(), num_workers=2, multiprocessing_context=sys.argv[1], collate_fn=lambda x: x
        )
        batches = iter(loader)
        print([next(batches) for _ in range(3)])
        try:
            next(batches)
        except Mine as error:
            print("caught", error)
        """
    path = tmp_path / "script.py"
    path.write_text(PREAMBLE + textwrap.dedent(text))
    for method in METHODS:
        command = [sys.executable, "-W", "error", str(path), method]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "[[0], [1], [2]]\ncaught 3\n", "")


def test_a_forked_child_leaves_the_parents_workers_alone(begin: Begin) -> None:
    program = begin("""
        loader = DataLoader(range(10), num_workers=2, batch_size=2)
        batches = iter(loader)
        first = next(batches).tolist()
        pid = os.fork()
        if pid == 0:
            try:
                next(batches)
            except RuntimeError as error:
                print("iter(loader) after the fork" in str(error), flush=True)
            print([batch.tolist() for batch in loader], flush=True)
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print([first, *(batch.tolist() for batch in batches)])
        """)
    whole = "[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]\n"
    assert program.end() == (0, "True\n" + whole + whole, "")


def test_a_loader_in_a_thread_that_ends_goes_on_elsewhere() -> None:
    from threading import Thread

    loader = DataLoader(range(10), num_workers=2)
    found: list[Any] = []
    for _ in range(2):
        thread = Thread(target=lambda: found.append([batch.item() for batch in loader]))
        thread.start()
        thread.join()
    loader.close()
    assert found == [list(range(10))] * 2


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> Any:
        return key


def descriptors() -> int:
    """How many are open, without those through which `penstock top` sees loaders that have run for a second."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(not os.readlink(link).startswith("/memfd:penstock-loader ") for link in links if os.path.lexists(link))


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_many_iterators_leave_nothing_behind(backend: str) -> None:
    loader = DataLoader(Numbers(), num_workers=1, backend=backend)

    def once() -> None:
        for batch in loader:
            if batch.item() == 1:
                break

    once()
    before = descriptors(), Path("/proc/self/maps").read_text().count("\n")
    for _ in range(300):
        once()
    gc.collect()
    after = descriptors(), Path("/proc/self/maps").read_text().count("\n")
    loader.close()
    assert after[0] == before[0] and after[1] <= before[1] + 3


def test_many_loaders_leave_nothing_behind() -> None:
    def once() -> None:
        for batch in DataLoader(Numbers(), num_workers=1, persistent_workers=False):
            if batch.item() == 1:
                break

    once()
    before = descriptors()
    for _ in range(30):
        once()
    assert descriptors() == before


def test_dropping_a_loader_needs_no_garbage_collector() -> None:
    gc.disable()
    try:
        loader = DataLoader(Numbers(), num_workers=1)
        batches = iter(loader)
        next(batches)
        before = descriptors()
        del loader, batches
        assert descriptors() < before
    finally:
        gc.enable()
