"""Where torch is not installed, tests that need it are skipped, and the others run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = "import sys, pytest; sys.modules['torch'] = None; sys.exit(pytest.main(sys.argv[1:]))"


def test_without_torch_tests_that_need_it_are_skipped() -> None:
    tests = [
        "tests/parity/test_last_batch.py",  # imports penstock.torch
        "tests/parity/test_private.py",  # imports torch
        "tests/unit/test_torch_collate.py",
        "tests/unit/test_plan_samplers.py::TestBesideTorch",
        "tests/faults/test_hangs.py::test_torch_needs_a_seed_for_it",
        "tests/unit/test_tree.py",
    ]
    command = [sys.executable, "-c", RUN, "-q", "-p", "no:cacheprovider", *tests]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = ran.stdout.splitlines()[-1]
    assert ran.returncode == 0 and " passed, " in said and " skipped" in said and "failed" not in said, ran.stdout
