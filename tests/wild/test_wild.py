"""Programs of other libraries, as their docs show them, on torch's engine and on penstock's.

Each program of `programs/` runs in a process of its own: on torch, on penstock, and on torch again. The two runs on
torch are the control: what differs between them says nothing about penstock. The third process then times both
engines in turn (`race.py`). A table at the end shows what was found.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from wild.race import MARGIN, SLOWDOWN, Race

Runs = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]  # on torch, on penstock, and on torch again
HERE = Path(__file__).parent
PATHS = os.pathsep.join(map(str, (HERE.parent, HERE.parent.parent, HERE.parent.parent / "src")))
PROGRAMS = sorted(path.stem for path in (HERE / "programs").glob("*.py"))

HEAD = (
    "library",
    "batches",
    "identical",
    "engine",
    "time / torch's",
    "torch / torch",
    "CPU / torch's",
    "verdict",
)


class Table:
    """A plugin that prints its rows after all tests."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = [HEAD]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        terminalreporter.section("medians of ratios below 1: penstock is faster", sep="-")
        for row in self.rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            terminalreporter.write_line("  ".join(cells).rstrip())


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest) -> Table:
    made = Table()
    request.config.pluginmanager.register(made)
    return made


def run(name: str, how: str) -> dict[str, Any]:
    """What `wild.run` reports, with what was printed to stderr."""
    quiet = {
        "PYTHONHASHSEED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "NO_ALBUMENTATIONS_UPDATE": "1",
        "YOLO_OFFLINE": "true",
        "PYTHONPATH": PATHS,
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        command = [sys.executable, "-m", "wild.run", name, how, str(report)]
        environment = {**os.environ, **quiet, "HOME": folder}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, f"{how}:\n{done.stderr[-4000:]}"
        found: dict[str, Any] = json.loads(report.read_text())
    return {**found, "stderr": done.stderr}


@pytest.fixture(scope="module", params=PROGRAMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runs(name: str, table: Table) -> Runs:
    """The program on torch, on penstock, and on torch again, and then on both in turn."""
    one, found, other = run(name, "torch"), run(name, "penstock"), run(name, "race")
    race = Race.read(other["race"])
    ratios = [str(ratio) for ratio in (race.ratio("clock"), race.control("clock"), race.ratio("cpu"))]
    batches = sum(found[part]["batches"] for part in ("inline", "workers"))
    same = {first_difference(found, one), first_difference(other, one)} == {None}
    table.rows.append((name, f"{batches}", "yes" if same else "NO", _engines(found), *ratios, race.verdict))
    return one, found, other


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
    assert sum(one[part]["batches"] for part in ("inline", "workers")) > 10
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


def test_penstock_is_no_slower_than_torch(runs: Runs) -> None:
    race = Race.read(runs[2]["race"])
    clock, cpu, control = race.ratio("clock"), race.ratio("cpu"), race.control("clock")
    told = f"{clock} of torch's time, {cpu} of its CPU time; torch beside torch {control}"
    if race.verdict == "undecided":
        pytest.skip(f"this machine is too busy to exclude {SLOWDOWN}: {told}")
    assert race.verdict == "no slower", f"above {MARGIN} for sure: {told}"


def _engines(found: dict[str, Any]) -> str:
    counts = [sum(use[at] for use in found["status"]) for at in (1, 2)]
    return "penstock" if not counts[1] else f"penstock {counts[0]}, torch {counts[1]}"


def _on_torch(name: str) -> dict[str, str]:
    """Loaders of this program that cannot run on penstock, with the word of the warning that says why."""
    found = re.search(r"^ON_TORCH = (.*)$", (HERE / "programs" / f"{name}.py").read_text(), re.MULTILINE)
    return {} if found is None else json.loads(found[1])


def _lines(said: str | list[str]) -> list[str]:
    lines = said.splitlines() if isinstance(said, str) else said
    lines = [line for line in lines if not re.search(r"\|.*(it/s|s/it)", line)]  # bars of tqdm
    return [re.sub(r"0x[0-9a-f]+|\d[\d:.,]*|tmp\w+", "#", line).strip() for line in lines if line.strip()]
