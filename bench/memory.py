"""Memory and descriptors of long-lived loaders: `python -m bench.memory` exits with 1 if a check fails.

Each check runs in a process of its own, so that they do not share memory, and prints a line.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import penstock
from bench.steady import family

PATHS, WORKERS = 1_000_000, 4
KEPT, FILES = 10_000, 256
ITERATORS = 1_000


class LengthTable:
    """Sample i is the length of path i: it reads the path and sends almost nothing."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: int) -> int:
        return len(self.paths[key])


def paths() -> list[str]:
    return [f"/data/images/train/{key % 1000:04d}/picture-{key:08d}.jpeg" for key in range(PATHS)]


def pss() -> int:
    """Bytes of this process and its descendants; a shared page counts once, divided among its users."""
    total = 0
    for pid in family(os.getpid()):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def pass_growth(packed: bool) -> bool:
    """A pass over a million paths: growth of the total memory, as a share of the list's size."""
    items: Sequence[str] = paths()
    size = sys.getsizeof(items) + sum(map(sys.getsizeof, items))
    if packed:
        items = penstock.PackedList(items)
    warnings.filterwarnings("ignore", "num_workers=4 is more than")  # this measures copies, not speed
    with penstock.DataLoader(LengthTable(items), 1000, shuffle=True, num_workers=WORKERS, seed=0) as loader:
        stream = iter(loader)
        for _ in range(50):  # start the workers, and touch the pages of the slabs, before measuring
            next(stream)
        before = pss()
        total = sum(int(batch.sum()) for batch in stream)
        growth = pss() - before
    assert total > 0
    kind, share = "PackedList" if packed else "list", growth / size
    print(
        f"{kind} of {PATHS:,} paths ({size / 1e6:.0f} MB as a list), {WORKERS} workers: total memory grew by "
        f"{growth / 1e6:.1f} MB in a pass, {share:.1%} of the list"
    )
    return share < 0.05 or not packed


def kept_batches() -> bool:
    """Ten thousand small batches, all kept, with a low limit of descriptors."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    rows = np.arange(KEPT * 4 * 8).reshape(-1, 8)
    with penstock.DataLoader(penstock.ArrayDataset(rows), 4, num_workers=2) as loader:
        batches = list(loader)
        open_files = len(os.listdir("/proc/self/fd"))
        right = len(batches) == KEPT and np.array_equal(np.concatenate(batches), rows)
    print(
        f"{len(batches):,} batches kept under ulimit -n {FILES}: {open_files} descriptors, "
        f"{'every row right' if right else 'ROWS WRONG'}"
    )
    return right


def many_iterators() -> bool:
    """A thousand iterators over one loader, each abandoned after one batch."""
    figures = []
    with penstock.DataLoader(penstock.ArrayDataset(np.arange(6400)), 64, num_workers=2, seed=0) as loader:
        for turn in range(1, ITERATORS + 1):
            next(iter(loader))
            if turn in (ITERATORS // 10, ITERATORS):
                pids = family(os.getpid())
                figures.append((len(os.listdir("/proc/self/fd")), len(pids) - 1, pss()))
    (fds, children, memory), (later_fds, later_children, later_memory) = figures
    print(
        f"iterators: after {ITERATORS // 10} and {ITERATORS}: descriptors {fds}, {later_fds}; children "
        f"{children}, {later_children}; total memory {memory / 1e6:.1f}, {later_memory / 1e6:.1f} MB"
    )
    return later_fds <= fds and later_children <= children and later_memory < memory + 2_000_000


CHECKS = {
    "list": lambda: pass_growth(packed=False),
    "packed": lambda: pass_growth(packed=True),
    "kept": kept_batches,
    "iterators": many_iterators,
}


def main() -> int:
    if len(sys.argv) > 1:
        return 0 if CHECKS[sys.argv[1]]() else 1
    failed = [name for name in CHECKS if subprocess.run([sys.executable, "-m", "bench.memory", name]).returncode]
    print("failed: " + ", ".join(failed) if failed else "all as required")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
