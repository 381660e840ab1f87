"""Memory and descriptors of long-lived loaders: `python -m bench.memory` exits with 1 if a check fails.

Each check runs in a process of its own, so that they do not share memory, and prints a line. The peers read a million
paths too: bench/results/<date>-memory.json has how much the memory of each grew.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from bench.dated import save
from bench.peers import installed
from bench.run import machine
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


@contextlib.contextmanager
def opened(loader: str, table: LengthTable) -> Iterator[Iterator[Any]]:
    """One pass over the table, shuffled, in batches of 1000, by four workers."""
    warnings.filterwarnings("ignore")  # this measures copies, not speed
    if loader == "penstock":
        with penstock.DataLoader(table, 1000, shuffle=True, num_workers=WORKERS, seed=0) as ours:
            yield iter(ours)
    elif loader == "grain":
        import grain

        keys = grain.MapDataset.range(len(table)).seed(0).shuffle()
        batches = keys.batch(1000).map(lambda part: np.array([table[int(key)] for key in part]))
        quiet = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        workers = grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=4)
        with contextlib.closing(iter(batches.to_iter_dataset(quiet).mp_prefetch(workers))) as stream:
            yield stream
    else:
        if loader == "torch":
            from torch.utils.data import DataLoader
        else:
            from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader
        stream = iter(DataLoader(table, 1000, shuffle=True, num_workers=WORKERS))
        yield stream
        del stream


def pass_growth(loader: str, packed: bool = False) -> dict[str, float]:
    """A pass over a million paths: MB of memory after 50 batches, and after the pass."""
    items: Sequence[str] = paths()
    size = sys.getsizeof(items) + sum(map(sys.getsizeof, items))
    if packed:
        items = penstock.PackedList(items)
    with opened(loader, LengthTable(items)) as stream:
        for _ in range(50):  # start the workers, and touch the pages of the slabs, before measuring
            next(stream)
        before, total, after = pss(), 0, 0
        for step, batch in enumerate(stream, 51):
            total += int(batch.sum())
            if step == PATHS // 1000 - 10:  # all workers are there; near the end some may have gone
                after = pss()
    assert total > 0 and after
    kind, share = "PackedList" if packed else "list", (after - before) / size
    print(
        f"{loader}, {kind} of {PATHS:,} paths ({size / 1e6:.0f} MB as a list), {WORKERS} workers: total memory "
        f"grew by {(after - before) / 1e6:.1f} MB in a pass, {share:.1%} of the list"
    )
    return {"list": size / 1e6, "before": before / 1e6, "after": after / 1e6, "share": share}


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


def packed_list() -> bool:
    return pass_growth("penstock", packed=True)["share"] < 0.05


GROWTHS = {
    "penstock, PackedList": lambda: pass_growth("penstock", packed=True),
    **{
        f"{loader}, list": (lambda loader=loader: pass_growth(loader))
        for loader in ("penstock", "torch", "torchdata", "grain")
    },
}
CHECKS = {"packed": packed_list, "kept": kept_batches, "iterators": many_iterators}


def _alone(name: str) -> tuple[int, str]:
    """Runs one of them in a process of its own. What it printed is shown, except the figures in the last line."""
    ran = subprocess.run([sys.executable, "-m", "bench.memory", name], stdout=subprocess.PIPE, text=True)
    *lines, last = ran.stdout.splitlines() or [""]
    print("\n".join(lines), flush=True)
    return ran.returncode, last


def main() -> int:
    if len(sys.argv) > 1:
        found = {**GROWTHS, **CHECKS}[sys.argv[1]]()
        print(json.dumps(found), flush=True)
        os._exit(1 if found is False else 0)  # grain's processes may keep the interpreter from ending
    there = [name for name in GROWTHS if installed(name.partition(",")[0])]
    ran = {name: _alone(name) for name in [*there, *CHECKS]}
    growths = {name: json.loads(ran[name][1]) for name in there if not ran[name][0]}
    lines = [f"| loader | MB before | MB after | of the list |\n{'|---' * 4}|"]
    lines += [
        f"| {name} | {x['before']:,.0f} | {x['after']:,.0f} | {x['share']:.1%} |" for name, x in growths.items()
    ]
    text = (
        f"Total memory of a loader with {WORKERS} workers over {PATHS:,} paths, early in a pass and at its end.\n\n"
    )
    save("memory", "python -m bench.memory", machine(), growths, text + "\n".join(lines))
    failed = [name for name, (code, _) in ran.items() if code]
    print("failed: " + ", ".join(failed) if failed else "all as required")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
