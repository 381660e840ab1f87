"""A hostile neighbour: another user, and another program of this user, beside a training run.

The batches stay the same, nothing hangs, and the other user gets nothing to see. Some seconds here; `make soak` takes
a minute.
"""

from __future__ import annotations

import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.neighbours import training
from tests.remote.serving import serving

SECONDS = max(4.0, float(os.environ.get("PENSTOCK_SOAK", "4")))
ROOT = Path(__file__).parents[2]
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
LONGEST = 60.0
"""Seconds for one epoch, which takes about one undisturbed."""


def write_data(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for part, name in enumerate(training.PARQUET):
        ids = range(part * 200, part * 200 + 200)
        rows = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(200 * 64)), 64)
        pq.write_table(pa.table({"id": list(ids), "row": rows}), folder / name, row_group_size=25)
    for shard, name in enumerate(training.TARS):
        with tarfile.open(folder / name, "w") as tar:
            for number in range(40):
                data = rng.bytes(500)
                info = tarfile.TarInfo(f"{shard}-{number:04}.bin")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of 2 MB at this folder, if this user may mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=1777", "tmpfs", str(folder)]
    is_small = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield is_small
    finally:
        if is_small:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def program(*command: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/src", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, env=environment, cwd=ROOT, start_new_session=True, **more
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what it has started, and stopped
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.wait()


def lines(process: subprocess.Popen[str], until: float) -> Iterator[dict[str, Any]]:
    """What a program says, line by line, until it ends or the time has come."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    rest = ""
    while (left := until - time.monotonic()) > 0:
        if select.select([process.stdout], [], [], left)[0]:
            data = os.read(process.stdout.fileno(), 1 << 16).decode()
            if not data:
                return
            *whole, rest = (rest + data).split("\n")
            yield from map(json.loads, whole)


def first(process: subprocess.Popen[str], seconds: float = 60.0) -> dict[str, Any]:
    for line in lines(process, time.monotonic() + seconds):
        return line
    raise AssertionError(f"{process.args} has said nothing")


def end_of(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    process.send_signal(signal.SIGTERM)
    said = list(lines(process, time.monotonic() + 30))
    process.wait(30)
    return said


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users can reach, as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-neighbour-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def may_be_nobody() -> bool:
    tried = [*NOBODY, sys.executable, "-c", "import json"]
    can = os.geteuid() == 0 and shutil.which("setpriv") is not None
    return can and subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.mark.timeout(300 + 4 * SECONDS, method="thread")
def test_hostile_neighbours_change_nothing_and_see_nothing(tmp_path: Path, place: Path) -> None:
    write_data(tmp_path)
    with serving(tmp_path) as server, small_disk(place) as is_small:
        expected = [training.digest(each) for each in training.datasets(str(tmp_path))]
        cache, told = str(place / "cache"), tmp_path / "workers"
        trained = [sys.executable, "-m", "tests.neighbours.training", server.url, cache, str(400_000), str(told)]
        with program(*trained, stdin=subprocess.PIPE) as run:
            table = first(run)["table"]
            with _neighbours(run.pid, told, place, cache, table, is_small) as them:
                epochs, warned = _watched(run, SECONDS)
                said = {name: end_of(process) for name, process in them.items()}
    assert run.returncode == 0
    assert len(epochs) >= 2
    assert all(epoch["digest"] == expected for epoch in epochs), "batches have changed"
    slowest = max(epoch["took"] for epoch in epochs)
    (did,) = (line["done"] for line in said["sibling"] if "done" in line)
    assert did["stopped with locks"] and did["mess"], did
    if "stranger" in said:
        assert not [line for line in said["stranger"] if "could" in line], (
            "another user could open or change something"
        )
        (tried,) = (line["tried"] for line in said["stranger"] if "tried" in line)
        assert tried["open a descriptor"] > 100 and tried["list the cache"] and tried["signal"], tried
        print(f"stranger: {sum(tried.values()):,} attempts, none had success")
    print(f"{len(epochs)} epochs, the slowest took {slowest:.1f} s; sibling: {did}; warnings: {warned}")


@contextmanager
def _neighbours(
    pid: int, told: Path, place: Path, cache: str, table: str, is_small: bool
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    small = "small" if is_small else "large"
    with program(sys.executable, "-m", "tests.neighbours.sibling", str(told), cache, small) as sibling:
        first(sibling)
        if not may_be_nobody():
            yield {"sibling": sibling}
            return
        stranger = [
            sys.executable,
            str(ROOT / "tests/neighbours/stranger.py"),
            str(pid),
            str(place),
            cache,
            table,
        ]
        with program(*NOBODY, *stranger) as other:
            assert first(other)["uid"] == 65534
            yield {"sibling": sibling, "stranger": other}


def _watched(run: subprocess.Popen[str], seconds: float) -> tuple[list[dict[str, Any]], list[str]]:
    """The epochs of a run for so many seconds, and what it warned of; each epoch must come in time."""
    epochs: list[dict[str, Any]] = []
    begun = time.monotonic()
    assert run.stdin is not None
    while True:
        if time.monotonic() - begun > seconds and len(epochs) >= 2 and not run.stdin.closed:
            run.stdin.close()
        line = first(run, LONGEST)
        if "warned" in line:
            run.wait(LONGEST)
            return epochs, line["warned"]
        epochs.append(line)
