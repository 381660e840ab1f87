"""What a type checker says of programs that use penstock: nothing of right ones, and the mistake in wrong ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
pytestmark = pytest.mark.imports_torch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, int], str]:
    """The errors of one run of mypy, by file and line. `make lint` has filled its cache."""
    files = [str(HERE / name) for name in ("right.py", "wrong.py")]
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), *files]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    lines = re.findall(r"^(\S+\.py):(\d+): error: (.*)$", ran.stdout, re.MULTILINE)
    return {(Path(name).name, int(line)): text for name, line, text in lines}


def test_right_uses_have_no_error(found: dict[tuple[str, int], str]) -> None:
    assert {place: text for place, text in found.items() if place[0] != "wrong.py"} == {}


def test_each_wrong_use_has_its_error(found: dict[tuple[str, int], str]) -> None:
    missed = []
    for number, line in enumerate((HERE / "wrong.py").read_text().splitlines(), 1):
        kind, _, words = line.partition("# wrong: ")[2].partition(": ")
        text = found.pop(("wrong.py", number), "")
        if (kind and not (words in text and text.endswith(f"[{kind}]"))) or (text and not kind):
            missed.append(f"{number}: {line.strip()}\n  {text}")
    assert not missed, "\n".join(missed)
