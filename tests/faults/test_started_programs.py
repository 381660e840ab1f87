"""Programs that a dataset or the training script starts get no descriptor of penstock's.

With a descriptor of the slabs such a program could read and change batches, and it would keep their memory after
`close()`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import standin

from penstock import DataLoader

# Prints the descriptors that the program has: their numbers, and what they are.
LIST = """
import json, os
found = {}
for name in os.listdir("/proc/self/fd"):
    try:
        found[name] = os.readlink("/proc/self/fd/" + name)
    except OSError:
        pass  # the folder itself
print(json.dumps(found))
"""

COMMAND = [sys.executable, "-ISc", LIST]


pytestmark = pytest.mark.usefixtures("warmed_up")


def by_subprocess(folder: str) -> str:
    return subprocess.run(COMMAND, close_fds=False, stdout=subprocess.PIPE, text=True, check=True).stdout


def by_shell(folder: str) -> str:
    output = Path(folder) / f"{os.getpid()}.json"
    assert os.system(f"{shlex.join(COMMAND)} > {shlex.quote(str(output))}") == 0
    return output.read_text()


def by_posix_spawn(folder: str) -> str:
    output = Path(folder) / f"{os.getpid()}.json"
    opened = (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    pid = os.posix_spawn(sys.executable, COMMAND, os.environ, file_actions=[opened])
    assert os.waitpid(pid, 0)[1] == 0
    return output.read_text()


WAYS = [by_subprocess, by_shell, by_posix_spawn]


def further(said: str) -> set[str]:
    """What a program has open beside its three standard streams."""
    return {what for number, what in json.loads(said).items() if int(number) > 2}


def inheritable() -> set[str]:
    """What a program that this process starts would have open, beside its three standard streams."""
    found = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the folder itself
            if number > 2 and os.get_inheritable(number):
                found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


class Starts:
    """Each sample is what a program has that was started for it; the first was started when this was unpickled.

    Without what programs had on a node before it had a worker: multiprocessing's forkserver has a pipe of its own.
    """

    def __init__(self, way: Callable[[str], str], folder: str) -> None:
        self.way, self.folder, self.early, self.here = way, folder, "{}", os.getpid()

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        self.early = self.way(self.folder)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: int) -> list[str]:
        before = json.loads(os.environ.get("PENSTOCK_TEST_BEFORE", "[]"))
        return sorted(further(self.way(self.folder) if key else self.early).difference(before))


def node_main(*args: Any) -> None:
    os.environ["PENSTOCK_TEST_BEFORE"] = json.dumps(sorted(inheritable()))
    standin.node_main(*args)


@pytest.fixture
def opened() -> Iterator[str]:
    """A pipe of the test's own that programs do inherit."""
    ends = os.pipe()
    os.set_inheritable(ends[0], True)
    yield os.readlink(f"/proc/self/fd/{ends[0]}")
    for end in ends:
        os.close(end)


METHODS = ["fork", "spawn", "forkserver"]
KINDS: dict[str, dict[str, Any]] = {
    "inline": {},
    "thread": {"num_workers": 1, "backend": "thread"},
    **{name: {"num_workers": 1, "multiprocessing_context": name} for name in METHODS},
    "standin": {"num_workers": 1, "backend": "standin"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_a_dataset_starts_has_no_descriptor_of_ours(
    kind: str, way: Callable[[str], str], tmp_path: Path, opened: str
) -> None:
    before = inheritable()
    assert opened in before
    with ExitStack() as block:
        if kind == "standin":
            cluster = standin.LocalCluster()
            cluster.mains = [node_main]
            block.enter_context(standin.standing_in(cluster))
        loader = block.enter_context(DataLoader(Starts(way, str(tmp_path)), batch_size=None, **KINDS[kind]))
        batches = iter(loader)
        found: list[list[str]] = [next(batches), next(batches)]
        ours = further(way(str(tmp_path)))  # a program that the training script starts in the middle of an epoch
        found += batches
    assert ours == before
    # Programs of this process, and of its forks, have what the test has opened for them: so the lists are true.
    theirs = before if kind in ("inline", "thread", "fork") else set()
    assert [{*each} for each in found] == [set(), theirs, theirs]


class Large:
    """Batches of 8 MB, and a program that a worker leaves running."""

    def __init__(self, held: str) -> None:
        self.held = held

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> Any:
        if key == 0:
            # It ends when the test closes the other end of the fifo.
            subprocess.Popen(["sh", "-c", f"echo $$ > {self.held}.pid; read line < {self.held}"], close_fds=False)
        return bytes(8_000_000)


@pytest.mark.parametrize("method", METHODS)
def test_a_program_that_is_left_running_holds_no_slab_after_close(method: str, tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    with DataLoader(Large(str(held)), num_workers=1, multiprocessing_context=method) as loader:
        assert sum(1 for _ in loader) == 4
    with open(held, "w"):  # waits for the program
        pid = Path(f"{held}.pid").read_text().strip()
        assert all(not what.startswith("/memfd:penstock") for what in links(pid)), links(pid)
    # It has read the end, and ends: its parent was the worker, so nobody here can wait for it.


def links(pid: str) -> list[str]:
    return [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
