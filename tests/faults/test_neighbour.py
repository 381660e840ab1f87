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
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.records import RecordWriter
from tests.neighbours import training
from tests.remote.serving import serving

SECONDS = max(4.0, float(os.environ.get("PENSTOCK_SOAK", "4")))
ROOT = Path(__file__).parents[2]
STRANGER = str(ROOT / "tests/neighbours/stranger.py")
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


def write_local(folder: Path, *, decoy: bool = False) -> None:
    """Files that have indexes beside them. A decoy has the same size and time, but other samples in other places."""
    with tarfile.open(folder / "beside.tar", "w") as tar:
        for number in range(40):
            info = tarfile.TarInfo(f"{number:04}.bin")
            info.size = 1000 * (number % 2 == decoy)
            tar.addfile(info, io.BytesIO(bytes([number]) * info.size))
    lines = [json.dumps({"id": number, "text": "x" * number}) + "\n" for number in range(60)]
    (folder / "beside.jsonl").write_text("".join(lines[::-1] if decoy else lines))
    with RecordWriter(folder / "beside.rec") as writer:
        for number in range(40):
            writer.write(bytes(40 - number if decoy else number + 1))
    for name in training.LOCAL:
        os.utime(folder / name, ns=(10**18, 10**18))


def write_wrong_indexes(folder: Path) -> None:
    """Indexes of decoys, under all names that penstock looks for."""
    write_local(folder, decoy=True)
    subprocess.run([sys.executable, "-m", "penstock", "index", str(folder)], check=True, capture_output=True)
    training.local_datasets(str(folder))
    shards = [{"url": "beside.tar", "nsamples": 3}]
    (folder / "wids-meta.json").write_text(json.dumps({"wids_version": 1, "shardlist": shards}))
    for name in training.LOCAL:
        (folder / name).unlink()
    assert {".beside.tar.penstock-tar-2", ".beside.jsonl.penstock-lines-1", "beside.idx", "penstock.index"} <= {
        *os.listdir(folder)
    }
    for path in folder.iterdir():
        path.chmod(0o644)


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


class Program:
    """A program beside this one, which says what it does in lines of JSON."""

    def __init__(self, command: Sequence[str], **more: Any) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/src", "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment, cwd=ROOT, start_new_session=True, **more
        )
        self._lines: deque[bytes] = deque()
        self._rest = b""

    def line(self, seconds: float) -> dict[str, Any] | None:
        """Its next line; None if it has ended. Fails if neither happens within so many seconds."""
        until, out = time.monotonic() + seconds, self.process.stdout
        assert out is not None
        while not self._lines:
            ready = select.select([out], [], [], max(0.0, until - time.monotonic()))[0]
            assert ready, f"{self.process.args!r} has said nothing for {seconds:g} s"
            data = os.read(out.fileno(), 1 << 16)
            if not data:
                return None
            *whole, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(whole)
        found: dict[str, Any] = json.loads(self._lines.popleft())
        return found

    def end(self) -> list[dict[str, Any]]:
        """Asks it to end; all that it said and says."""
        self.process.send_signal(signal.SIGTERM)
        return list(iter(partial(self.line, 30.0), None))

    def kill(self) -> None:
        """With all that it has started, and stopped."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait()


@contextmanager
def program(*command: str, **more: Any) -> Iterator[Program]:
    begun = Program(command, **more)
    try:
        yield begun
    finally:
        begun.kill()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users can reach and write, as /tmp is."""
    yield from _reached(0o1777)


@pytest.fixture
def wrong() -> Iterator[Path]:
    """A folder that other users can read."""
    yield from _reached(0o755)


def _reached(mode: int) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-neighbour-", dir="/tmp"))
    folder.chmod(mode)
    yield folder
    shutil.rmtree(folder)


def may_be_nobody() -> bool:
    tried = [*NOBODY, sys.executable, "-c", "import json"]
    can = os.geteuid() == 0 and shutil.which("setpriv") is not None
    return can and subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.mark.deep
@pytest.mark.timeout(300 + 4 * SECONDS, method="thread")
def test_hostile_neighbours_change_nothing_and_see_nothing(
    tmp_path: Path, place: Path, wrong: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    write_local(tmp_path)
    write_wrong_indexes(wrong)
    with serving(tmp_path) as server, small_disk(place) as is_small:
        known = [*training.datasets(str(tmp_path)), *training.local_datasets(str(tmp_path))]
        expected = [training.digest(each) for each in known]
        write_local(place)
        (place / "beside.idx").unlink()
        if may_be_nobody():
            subprocess.run([*NOBODY, sys.executable, STRANGER, str(wrong), str(place)], check=True)
        told = tmp_path / "workers"
        about = [server.url, str(place), str(place / "cache"), str(400_000), str(told)]
        monkeypatch.setenv("PENSTOCK_CACHE", str(place / "kept"))
        with program(sys.executable, "-m", "tests.neighbours.training", *about, stdin=subprocess.PIPE) as run:
            table = (run.line(LONGEST) or {})["table"]
            with _neighbours(run.process.pid, told, place, wrong, table, is_small) as them:
                epochs, warned = _watched(run, SECONDS)
                top = subprocess.run([sys.executable, "-m", "penstock", "top"], capture_output=True, text=True)
                said = {name: each.end() for name, each in them.items()}
    assert run.process.returncode == 0
    assert top.returncode == 0 and "PLANTED" not in top.stdout, "a row of another user"
    assert len(epochs) >= 2
    assert all(epoch["digest"] == expected for epoch in epochs), "batches have changed"
    slowest = max(epoch["took"] for epoch in epochs)
    (did,) = (line["done"] for line in said["sibling"] if "done" in line)
    assert did["stopped with locks"] and did["mess"] and any("index" in each for each in did), did
    if "stranger" in said:
        could = [line for line in said["stranger"] if "could" in line]
        assert not could, "another user could open or change something"
        (tried,) = (line["tried"] for line in said["stranger"] if "tried" in line)
        assert tried["open a descriptor"] > 100 and tried["list the cache"] and tried["signal"], tried
        assert any("plant an index" in each for each in tried), tried
        print(f"stranger: {sum(tried.values()):,} attempts, none had success")
    print(f"{len(epochs)} epochs, the slowest took {slowest:.1f} s; sibling: {did}; {len(warned)} warnings")
    for each in sorted({*warned}):
        print(f"  {each}")


@contextmanager
def _neighbours(
    pid: int, told: Path, place: Path, wrong: Path, table: str, is_small: bool
) -> Iterator[dict[str, Program]]:
    small = "small" if is_small else "large"
    with program(sys.executable, "-m", "tests.neighbours.sibling", str(told), str(place), small) as sibling:
        assert sibling.line(LONGEST)
        if not may_be_nobody():
            yield {"sibling": sibling}
            return
        stranger = [sys.executable, STRANGER, str(pid), str(place), str(place / "cache"), table, str(wrong)]
        with program(*NOBODY, *stranger) as other:
            assert (other.line(LONGEST) or {})["uid"] == 65534
            yield {"sibling": sibling, "stranger": other}


def _watched(run: Program, seconds: float) -> tuple[list[dict[str, Any]], list[str]]:
    """The epochs of a run for so many seconds, and what it warned of; each epoch must come in time."""
    epochs: list[dict[str, Any]] = []
    begun, stdin = time.monotonic(), run.process.stdin
    assert stdin is not None
    while True:
        if time.monotonic() - begun > seconds and len(epochs) >= 2 and not stdin.closed:
            stdin.close()
        line = run.line(LONGEST)
        assert line is not None, "the training run has ended by an error, which is above"
        if "warned" in line:
            run.process.wait(LONGEST)
            return epochs, line["warned"]
        epochs.append(line)
