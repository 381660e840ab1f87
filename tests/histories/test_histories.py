"""Random histories find nothing: a few seconds here, longer in `make soak`."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

SECONDS = float(os.environ.get("PENSTOCK_SOAK", "0"))


@pytest.mark.deep
@pytest.mark.timeout(300 + 3 * SECONDS)
@pytest.mark.parametrize("face", ["core", pytest.param("torch", marks=pytest.mark.imports_torch)])
def test_random_histories_find_nothing(face: str) -> None:
    """In a process of its own, which forks their programs: it must have one thread and no other children."""
    command = [sys.executable, "-m", "tests.histories", "--face", face]
    if SECONDS:
        command += ["--seconds", str(SECONDS), "--seed", str(int(time.time())), "--most", "3"]
    else:
        # Among these few are some that find the bugs which tests/planted has for them.
        few = {"core": ["--first", "85", "--histories", "22"], "torch": ["--histories", "8"]}[face]
        command += [*few, "--quiet", "--most", "1", "--shrink", "20"]
    ran = subprocess.run(command, capture_output=True, text=True)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
