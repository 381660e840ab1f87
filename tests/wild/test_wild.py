"""Programs of other libraries, as their docs show them, on torch's engine and on penstock's.

Each program of `programs/` runs in a process of its own: on torch, on penstock, and on torch again. The two runs on
torch are the control: what differs between them says nothing about penstock.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

Runs = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]  # on torch, on penstock, and on torch again
HERE = Path(__file__).parent
PROGRAMS = sorted(path.stem for path in (HERE / "programs").glob("*.py"))

# At least this part of torch's speed: torch beside torch differs by as much on a shared machine.
TOLERANCE = 0.9
ROUNDS = 3  # so many more pairs of runs are timed at most, until the median of their ratios is good enough


def run(name: str, engine: str) -> dict[str, Any]:
    """What `wild.run` reports, with what was printed to stderr."""
    quiet = {
        "PYTHONHASHSEED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "NO_ALBUMENTATIONS_UPDATE": "1",
        "YOLO_OFFLINE": "true",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE.parent.parent / "src")]),
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        command = [sys.executable, "-m", "wild.run", name, engine, str(report)]
        environment = {**os.environ, **quiet, "HOME": folder}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{engine}:\n{done.stderr[-4000:]}"
        found: dict[str, Any] = json.loads(report.read_text())
    return {**found, "stderr": done.stderr}


@pytest.fixture(scope="module", params=PROGRAMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runs(name: str) -> Runs:
    """The program on torch, on penstock, and on torch again."""
    return run(name, "torch"), run(name, "penstock"), run(name, "torch")


def first_difference(found: dict[str, Any], expected: dict[str, Any]) -> str | None:
    for part in ("inline", "workers"):
        ours, theirs = (each.get(part, {}).get("lines", []) for each in (found, expected))
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            if one != other:
                return f"{part}, line {number}:\n  {one}\n  {other}"
        if len(ours) != len(theirs):
            return f"{part}: {len(ours)} lines and {len(theirs)} lines"
    return None


pytestmark = pytest.mark.timeout(1800)


def test_two_runs_on_torch_are_the_same(runs: Runs) -> None:
    one, _, other = runs
    assert sum(one[part]["batches"] for part in ("inline", "workers") if part in one) > 10
    assert first_difference(one, other) is None


def test_a_run_on_penstock_is_the_same_as_on_torch(runs: Runs) -> None:
    expected, found, _ = runs
    assert first_difference(found, expected) is None


def test_every_loader_ran_on_penstock_but_those_that_a_warning_names(name: str, runs: Runs) -> None:
    _, found, _ = runs
    on_torch = _on_torch(name)
    for loader_class, on_penstock, count, reason in found["status"]:
        short = loader_class.rpartition(".")[2]
        if short in on_torch:
            assert count and on_torch[short] in reason
            assert sum(reason in text for text in found["warnings"]) == 1
        else:
            assert on_penstock and not count, f"{loader_class}: {reason}"
    assert {name.rpartition(".")[2] for name, *_ in found["status"]} >= set(on_torch)


def test_penstock_prints_and_warns_of_nothing_that_torch_does_not(name: str, runs: Runs) -> None:
    one, found, other = runs
    for said in ("stderr", "warnings"):
        expected = {*_lines(one[said]), *_lines(other[said])}
        more = [line for line in _lines(found[said]) if line not in expected]
        assert [line for line in more if "uses torch's engine" not in line or not _on_torch(name)] == []


def test_penstock_leaves_nothing_behind_that_torch_does_not(runs: Runs) -> None:
    one, found, _ = runs
    ours, theirs = found["left"], one["left"]
    assert set(ours["workers"]) <= set(theirs["workers"])
    assert len(ours["workers"]) <= len(theirs["workers"])
    assert not ours["active"]
    assert ours["memory"] <= theirs["memory"]  # libraries keep some of their own
    assert not ours["names"]
    for kind, count in ours["descriptors"].items():
        assert count <= theirs["descriptors"].get(kind, 0), kind


def test_penstock_is_no_slower_than_torch(name: str, runs: Runs) -> None:
    one, found, other = runs
    ratios = [speed(found, one), speed(found, other)]
    for _ in range(ROUNDS):
        if statistics.median(ratios) >= TOLERANCE:
            break
        ratios.append(speed(run(name, "penstock"), run(name, "torch")))
    print(
        f"{name}: {statistics.median(ratios):.2f} of torch's speed; torch beside torch {speed(other, one):.2f}"
    )
    assert statistics.median(ratios) >= TOLERANCE, ratios


def speed(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """The median over the timed epochs with workers; each is compared with the same epoch of the other run."""
    pairs = zip(found["timed"]["times"], expected["timed"]["times"], strict=True)
    return statistics.median(theirs / ours for ours, theirs in pairs)


def _on_torch(name: str) -> dict[str, str]:
    """Loaders of this program that cannot run on penstock, with the word of the warning that says why."""
    found = re.search(r"^ON_TORCH = (.*)$", (HERE / "programs" / f"{name}.py").read_text(), re.MULTILINE)
    return {} if found is None else json.loads(found[1])


def _lines(said: str | list[str]) -> list[str]:
    lines = said.splitlines() if isinstance(said, str) else said
    lines = [line for line in lines if not re.search(r"\|.*(it/s|s/it)", line)]  # bars of tqdm
    return [re.sub(r"0x[0-9a-f]+|\d[\d:.,]*|tmp\w+", "#", line).strip() for line in lines if line.strip()]
