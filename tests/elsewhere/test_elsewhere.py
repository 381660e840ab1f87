"""On macOS and Windows: see `pretending.py`. `make elsewhere` runs all of the core, and `make deep` a part of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.elsewhere.core import CORE, QUICK
from tests.elsewhere.pretending import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).parent / "site"
SYSTEMS = ("darwin", "win32")


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_core_works(system: str) -> None:
    tests = ["--numprocesses", "2", *CORE] if "PENSTOCK_ELSEWHERE" in os.environ else QUICK
    command = [sys.executable, "-m", "pytest", "-p", "tests.elsewhere.plugin", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, VARIABLE: system}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)
    ran = subprocess.run([*command, *tests], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout.splitlines()[-1]


def run(system: str, program: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that pretends to be on another system, as users run theirs."""
    (folder / "program.py").write_text(program)
    environment = {**os.environ, VARIABLE: system, "PYTHONPATH": str(SITE)}
    command = [sys.executable, "-X", "warn_default_encoding", *options, "program.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


THREADS = """
import penstock

for _ in range(2):
    with penstock.DataLoader(range(6), 2, num_workers=2) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
"""


@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("win32", "Windows")])
def test_workers_are_threads_with_one_warning(system: str, name: str, tmp_path: Path) -> None:
    ran = run(system, THREADS, tmp_path)
    assert ran.returncode == 0, ran.stderr
    [warned] = [line for line in ran.stderr.splitlines() if "Warning" in line]
    assert "program.py:5: RuntimeWarning: Workers are threads here" in warned and name in warned
    assert 'Pass backend="thread" to confirm this' in warned


@pytest.mark.deep
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_program_that_names_threads_is_not_warned(system: str, tmp_path: Path) -> None:
    program = THREADS.replace("num_workers=2", 'num_workers=2, backend="thread"')
    ran = run(system, program, tmp_path, "-W", "error")
    assert (ran.returncode, ran.stderr) == (0, "")


REFUSED = """
import penstock

for settings, kind, said in (
    (dict(backend="process"), RuntimeError, "Worker processes need Linux"),
    (dict(multiprocessing_context="spawn"), RuntimeError, "Worker processes need Linux"),
    (dict(backend="ray"), RuntimeError, 'backend="ray" needs Linux'),
    (dict(hang=3), ValueError, "needs processes"),
):
    try:
        penstock.DataLoader(range(6), 2, num_workers=2, **settings)
    except kind as error:
        assert said in str(error), error
    else:
        raise AssertionError(settings)
"""


@pytest.mark.deep
@pytest.mark.parametrize("system", SYSTEMS)
def test_what_needs_linux_and_is_asked_for_is_an_error(system: str, tmp_path: Path) -> None:
    ran = run(system, REFUSED, tmp_path, "-W", "error")
    assert (ran.returncode, ran.stderr) == (0, "")


TORCH = """
import warnings
import torch
from penstock.torch import DataLoader, status

data = torch.utils.data.TensorDataset(torch.arange(6))
assert [batch.tolist() for [batch] in DataLoader(data, 4)] == [[0, 1, 2, 3], [4, 5]]
assert [batch.tolist() for [batch] in DataLoader(data, 4, seed=3)] == [[0, 1, 2, 3], [4, 5]]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert [batch.tolist() for [batch] in DataLoader(data, 4, num_workers=1)] == [[0, 1, 2, 3], [4, 5]]
[warned] = [str(each.message) for each in said if "engine" in str(each.message)]
assert "uses torch's engine, not penstock's: penstock's worker processes need Linux" in warned, warned
try:
    next(iter(DataLoader(data, 4, num_workers=1, seed=3)))
except (RuntimeError, TypeError) as error:
    assert "need Linux" in str(error), error
else:
    raise AssertionError
"""


@pytest.mark.deep
@pytest.mark.imports_torch
@pytest.mark.parametrize("system", SYSTEMS)
def test_torchs_engine_runs_workers_of_penstock_torch(system: str, tmp_path: Path) -> None:
    ran = run(system, TORCH, tmp_path)
    assert ran.returncode == 0, ran.stderr


FILES = """
import json
import pathlib
import penstock

pathlib.Path("lines.jsonl").write_bytes(b"".join(b'{"id": %d}\\r\\n' % n for n in range(1000)))
lines = penstock.open("lines.jsonl")
loader = penstock.DataLoader(lines, 8, shuffle=True, seed=1, num_workers=2, backend="thread")
batches = iter(loader)
first = [next(batches)["id"].tolist() for _ in range(3)]
state = json.dumps(loader.state_dict())
loader.close()
loader = penstock.DataLoader(lines, 8, shuffle=True, seed=1)
loader.load_state_dict(json.loads(state))
rest = [batch["id"].tolist() for batch in loader]
assert sorted(sum(first + rest, [])) == [*range(1000)]
loader.report("report.html")
assert "</html>" in pathlib.Path("report.html").read_text("utf-8")
"""


@pytest.mark.deep
@pytest.mark.parametrize("system", SYSTEMS)
def test_files_states_and_reports_work(system: str, tmp_path: Path) -> None:
    ran = run(system, FILES, tmp_path, "-W", "error")
    assert (ran.returncode, ran.stderr) == (0, "")
    kept = [path.name for path in tmp_path.iterdir() if "penstock" in path.name]
    assert len(kept) == (system == "darwin"), kept  # who may write a file is not known on Windows


@pytest.mark.deep
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("arguments", [["demo"], ["--version"], ["inspect", "lines.txt"], ["top"]])
def test_the_command_line_works(system: str, arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    program = f"import sys, penstock.cli\nsys.exit(penstock.cli.main({arguments}))"
    ran = run(system, program, tmp_path, "-W", "error")
    if arguments == ["top"]:
        assert ran.returncode == 1 and "only on Linux" in ran.stderr and "Traceback" not in ran.stderr
    else:
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout


LATE = """
import threading
import time
import penstock

begun = threading.Event()

class Slow(penstock.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, key):
        if key:
            begun.set()
            until = time.monotonic() + 3
            while time.monotonic() < until:
                pass
            print("done", flush=True)
        return key

batches = iter(penstock.DataLoader(Slow(), 1, num_workers=1, backend="thread"))
next(batches)
begun.wait()
"""


@pytest.mark.deep
def test_the_exit_waits_for_a_thread_that_computes(tmp_path: Path) -> None:
    ran = run("darwin", LATE, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "") and "done" in ran.stdout
