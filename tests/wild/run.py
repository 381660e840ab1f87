"""Runs one program of `programs/` in this process and writes a report: `python -m wild.run NAME HOW REPORT`.

HOW is "torch", "penstock" or "race": on torch, and then timed on both in turn. The report is a JSON file.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conftest import children, descriptors, mappings, names
from wild.race import Cost, Race

WORKERS = 2


def main(name: str, how: str, report: str) -> None:
    found: dict[str, Any] = {"warnings": []}

    def show(message: Any, category: type[Warning], *rest: Any) -> None:
        found["warnings"].append(f"{category.__name__}: {message}")

    warnings.showwarning = show
    held = without_cuda(name)
    module = importlib.import_module(f"wild.programs.{name}")
    from wild.tape import Tape

    import penstock.torch

    if how == "penstock":
        penstock.torch.enable()
    named = names()
    for part, workers in {"inline": 0, "workers": WORKERS}.items():
        tape = Tape()
        play(module.program, tape, workers)
        found[part] = {"lines": tape.lines, "batches": tape.batches}
    if how == "race":
        with unheard(found["warnings"]):
            found["race"] = asdict(Race.held(lambda engine: cost(module.program, engine)))
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


@contextmanager
def unheard(warned: list[str]) -> Iterator[None]:
    """Forgets what is printed to stderr and warned of: this process is the control of that too."""
    count, stderr, null = len(warned), os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)
        del warned[count:]


def play(program: Callable[[Any, int, Path], None], tape: Any, workers: int) -> None:
    from wild.tape import seed

    seed()
    with tempfile.TemporaryDirectory() as folder:
        program(tape, workers, Path(folder))


def cost(program: Callable[[Any, int, Path], None], engine: str) -> Cost:
    from wild.tape import Tape

    import penstock.torch

    (penstock.torch.enable if engine == "penstock" else penstock.torch.disable)()
    gc.collect()
    tape, before = Tape(times_only=True), resource.getrusage(resource.RUSAGE_CHILDREN)
    play(program, tape, WORKERS)
    gc.collect()  # ends the workers that the program has kept: only of ended ones is the CPU time known
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    workers = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(tape.clock, tape.cpu + workers)


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
