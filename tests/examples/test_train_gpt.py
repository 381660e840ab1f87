"""A run that is killed continues on other numbers of ranks with the same batches and losses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_killed_run_continues_on_one_and_three_ranks_as_if_undisturbed(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "examples" / "train_gpt.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    lines = [line for line in ran.stdout.splitlines() if re.match(r" *\d+  [0-9a-f]{16} ", line)]
    assert [int(line.split()[0]) for line in lines] == list(range(40))
    runs = [line.split(maxsplit=4)[4] for line in lines]
    assert runs == ["killed"] * 20 + ["killed, on 1, on 3"] * 3 + ["on 1, on 3"] * 17
    assert not [*tmp_path.iterdir()]
