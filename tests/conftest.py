"""What every test is held to: nothing is left behind (law 6)."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell that starts us in the background, or nohup, has us ignore these, and so would the programs that tests end.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


def descriptors() -> Counter[str]:
    """What this process has open that a loader might have opened, by kind."""
    found: Counter[str] = Counter()
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
        except FileNotFoundError:
            continue
        kind = target.split(":")[0]
        if kind in ("pipe", "socket", "anon_inode") or "memfd" in target:
            found["memfd" if "memfd" in target else target if kind == "anon_inode" else kind] += 1
    return found


def children() -> list[str]:
    """The child processes of this one, zombies included."""
    pids: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            pids += (task / "children").read_text().split()
        except FileNotFoundError:
            continue
    return pids


def mappings() -> int:
    """How many pieces of penstock's shared memory are mapped here."""
    return Path("/proc/self/maps").read_text().count("memfd:penstock")


def names() -> set[str]:
    """The names in /dev/shm, but for those of torch, and of Python's shared memory with names, which is not ours."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("sem.mp-", "torch_", "psm_"))}


def belongings() -> tuple[Counter[str], set[str], int, set[str]]:
    return descriptors(), set(children()), mappings(), names()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = belongings()
    yield
    after = belongings()
    if after != before:
        gc.collect()  # only now: it costs more than most tests
        after = belongings()
    assert not after[0] - before[0], "open file descriptors"
    assert not after[1] - before[1], "child processes"
    assert after[2] <= before[2], "mapped shared memory"
    assert not after[3] - before[3], "names in /dev/shm"
