"""Runs one program of `programs/` in this process and writes a report: `python -m wild.run NAME ENGINE REPORT`.

ENGINE is "torch" or "penstock". The report is a JSON file.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any

from conftest import children, descriptors, mappings, names

WORKERS = 2


def main(name: str, engine: str, report: str) -> None:
    found: dict[str, Any] = {"warnings": []}

    def show(message: Any, category: type[Warning], *rest: Any) -> None:
        found["warnings"].append(f"{category.__name__}: {message}")

    warnings.showwarning = show
    held = without_cuda(name)
    module = importlib.import_module(f"wild.programs.{name}")
    from wild.tape import Tape, seed

    import penstock.torch

    if engine == "penstock":
        penstock.torch.enable()
    named = names()
    parts = {"inline": (0, False), "workers": (WORKERS, False), "timed": (WORKERS, True)}
    for part, (workers, times_only) in parts.items():
        tape = Tape(times_only=times_only)
        seed()
        with tempfile.TemporaryDirectory() as folder:
            module.program(tape, workers, Path(folder))
        found[part] = {"lines": tape.lines, "batches": tape.batches, "times": tape.times}
    gc.collect()
    used = penstock.torch.status().loaders
    found["status"] = [[use.loader_class, use.on_penstock, use.on_torch, use.reason] for use in used]
    found["left"] = {
        "workers": sorted(_command(pid) for pid in children()),
        "active": [child.name for child in multiprocessing.active_children()],
        "memory": mappings(),
        "names": sorted(names() - named),
        "descriptors": dict(descriptors()),
    }
    del held
    Path(report).write_text(json.dumps(found))


def without_cuda(name: str) -> Any:
    """Lets libraries be imported whose wheels were compiled for a torch with CUDA.

    torchvision then has no compiled operators, which no loader needs, but it refers to two of them by name.
    torchaudio cannot be imported at all: SpeechBrain asks only for its version.
    """
    import torch

    audio = types.ModuleType("torchaudio")
    audio.__version__ = "2.11.0"  # type: ignore[attr-defined]
    if name == "speechbrain":
        sys.modules["torchaudio"] = audio
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()[:200]
    except OSError:
        return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
