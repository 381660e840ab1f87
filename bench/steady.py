"""Page faults and calls that map memory, for each batch of the steady state: `python -m bench.steady`.

strace counts the calls in every process of the loader, between two marks that the consumer sets; the kernel
counts the faults, in a second run without strace. Exits with 1 if batches cost calls.
"""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from bench.peers import open_stream
from bench.workloads import WORKLOADS, write_files

ROOT = Path(__file__).parent.parent
NAMES = ("ints", "rows", "rows_batched", "images", "dict20")
CALLS = ("mmap", "munmap", "mremap", "ftruncate", "memfd_create")
BEGIN, END = "/penstock-steady-begin", "/penstock-steady-end"
WARM, BATCHES = 4.0, 500  # seconds, then batches that are counted
# Python's own allocator maps an arena now and then; a loader that maps per batch is a hundred times above.
ALLOWED = 0.01


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    for parent in found:
        with suppress(OSError):  # it has ended
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def faults() -> int:
    """Page faults, minor and major, of this process and its descendants so far."""
    total = 0
    for pid in family(os.getpid()):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[7]) + int(fields[9])
    return total


def child(name: str, folder: Path) -> None:
    with open_stream("penstock", WORKLOADS[name], folder) as stream:
        end = time.monotonic() + WARM
        while time.monotonic() < end:
            next(stream)
        os.access(BEGIN, os.F_OK)
        before = faults()
        for _ in range(BATCHES):
            next(stream)
        after = faults()
        os.access(END, os.F_OK)
    print((after - before) / BATCHES)


def run_child(name: str, folder: Path, *tracer: str) -> str:
    command = [*tracer, sys.executable, "-m", "bench.steady", "--child", name, str(folder)]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def count_calls(name: str, folder: Path) -> collections.Counter[str]:
    log = folder / f"{name}.strace"
    # The access calls are the marks.
    names = ",".join((*CALLS, "access", "?faccessat", "?faccessat2"))
    run_child(name, folder, "strace", "-f", "-qq", "-e", f"trace={names}", "-o", str(log))
    counted: collections.Counter[str] = collections.Counter()
    counting = False
    for line in log.read_text().splitlines():
        if BEGIN in line:
            counting = True
        elif END in line:
            break
        elif counting and (call := re.match(r"\d+\s+(\w+)\(", line)) and call[1] in CALLS:
            counted[call[1]] += 1
    log.unlink()
    return counted


def main() -> int:
    names = sys.argv[1:] or list(NAMES)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = Path(temporary)
        write_files(folder, set(names))
        if shutil.which("strace") is None:
            print("skipped: strace is not installed, so only page faults are counted")
        for name in names:
            line = f"{name:<14}{float(run_child(name, folder)):8.2f} faults a batch"
            if shutil.which("strace"):
                calls = count_calls(name, folder)
                per_batch = calls.total() / BATCHES
                missed += per_batch >= ALLOWED
                line += f", {per_batch:.3f} calls a batch ({dict(calls) or 'none'} in {BATCHES})"
            print(line, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main())
