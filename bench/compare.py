"""Measures this tree beside another one: `python -m bench.compare ../other-checkout [--only ints,rows]`.

Both run the same rows with the same interpreter, in turn, and the ratio of their medians is printed: above 1, this
tree is the faster. The order of the two changes from round to round, because the first of a pair finds warmer caches.
After some rounds both are started again, in the other order: a process keeps the processor and the memory that it got
at its start, and a tree compared with itself differed by 20 % for that reason.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from bench.run import ROOT, USUAL, Driver, machine, one_round
from bench.workloads import WORKLOADS, Workload, write_files

THIS, OTHER = "this", "other"

_SITTING = 3  # rounds before both are started again


Side = tuple[str, Path]
"""A loader, and the tree that it is taken from."""


def compare(workload: Workload, sides: dict[str, Side], folder: Path, rounds: int) -> dict[str, list[float]]:
    """The figures of each side: batches a second, or milliseconds for a first batch and an epoch boundary."""
    found: dict[str, list[float]] = {name: [] for name in sides}

    def start(name: str) -> Driver:
        engine, tree = sides[name]
        return Driver(engine, workload, folder, tree)

    def turn(number: int) -> list[str]:
        return list(sides)[:: 1 if number % 2 else -1]

    if workload.kind == "first":
        for number in range(rounds):
            for name in turn(number):
                driver = start(name)
                try:
                    found[name].append(1e3 * driver.answer()["seconds"])
                finally:
                    driver.close()
        return found
    for sitting, begin in enumerate(range(0, rounds, _SITTING)):
        drivers = {name: start(name) for name in turn(sitting)}
        try:
            for driver in drivers.values():
                driver.answer()
                if workload.kind == "rate":
                    driver.ask(lead=0.0, seconds=USUAL.warm)
            for number in range(begin, min(begin + _SITTING, rounds)):
                for name in turn(number):
                    found[name] += one_round(drivers[name], workload, USUAL)
        finally:
            for driver in drivers.values():
                driver.close()
    return found


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    options.add_argument("other", type=Path, help="the root of another checkout of penstock")
    options.add_argument("--only", metavar="ROWS", help=f"comma separated, of: {', '.join(WORKLOADS)}")
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--least", type=float, default=0.97, help="fail if a ratio is lower (default: 0.97)")
    args = options.parse_args()
    chosen = [WORKLOADS[name] for name in (args.only.split(",") if args.only else WORKLOADS)]
    trees = {THIS: ROOT, OTHER: args.other.resolve()}
    print("\n".join(machine()), flush=True)
    slower = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = Path(temporary)
        write_files(folder, {workload.name for workload in chosen})
        for workload in chosen:
            for engine in ("penstock_torch", "penstock_torch_seed") if workload.tensors else ("penstock",):
                sides = {name: (engine, tree) for name, tree in trees.items()}
                found = compare(workload, sides, folder, args.rounds)
                medians = {name: statistics.median(figures) for name, figures in found.items()}
                ratio = medians[THIS] / medians[OTHER]
                ratio = ratio if workload.kind == "rate" else 1 / ratio
                row = f"{workload.name} {engine}"
                print(f"{row:50} this {medians[THIS]:,.4g} other {medians[OTHER]:,.4g} ratio {ratio:.3f}", flush=True)
                slower += [row] if ratio < args.least else []
    print(f"below {args.least}: {', '.join(slower) or 'none'}")
    return bool(slower)


if __name__ == "__main__":
    sys.exit(main())
