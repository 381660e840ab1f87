"""Scripts of tests under torchrun, in real processes."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from programs import programs


def torchrun(forge: socket.socket, script: str, folder: Path, ranks: int) -> list[Any]:
    """Runs the script with this folder as its argument, and reads what each rank wrote there into <rank>.json."""
    # Port 0: torchrun finds a free one. The local address, because this machine's name may not resolve.
    arguments = [
        *("--nproc-per-node", str(ranks), "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"),
        *(script, str(folder)),
    ]
    # One thread, or torchrun says on stderr that it sets it. The script finds what the tests find.
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with programs(forge, folder) as begin:
        program = begin(f"""
            import os
            from torch.distributed.run import main
            os.environ.update({environment!r})
            main({arguments!r})
            """)
        returncode, _, err = program.end()
    assert returncode == 0, err
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
