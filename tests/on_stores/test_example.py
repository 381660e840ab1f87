"""examples/s3_parquet.py, with moto's server, which it starts itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "s3_parquet.py"


def test_s3_parquet(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    ran = subprocess.run(
        [sys.executable, EXAMPLE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    first, rest, second = (float(found) for found in re.findall(r"([\d.]+) MB downloaded", ran.stdout))
    assert first > 0 and second == rest  # the second epoch downloads nothing
    assert "100 further steps" in ran.stdout
    assert list(tmp_path.iterdir()) == []
