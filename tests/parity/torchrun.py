"""Scripts of tests under torchrun, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def torchrun(script: str, folder: Path, ranks: int) -> list[Any]:
    """Runs the script with this folder as its argument, and reads what each rank wrote there into <rank>.json."""
    # Port 0: torchrun finds a free one. The local address, because this machine's name may not resolve.
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"),
        *(script, str(folder)),
    ]
    # One thread, or torchrun says on stderr that it sets it. The script finds what the tests find.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
