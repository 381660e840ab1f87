"""The tests that pass on every system, because they need neither worker processes nor `/proc`."""

from __future__ import annotations

QUICK = [
    *("tests/unit/test_slabs.py", "tests/unit/test_records.py", "tests/unit/test_run.py"),
]
CORE = [*QUICK]
