"""Threads on a Python without the GIL, beside processes, the plain loop and SPDL: `make group NAME=bench-free`.

Each engine reads every row in a process of its own, and they take turns. The figures are medians of the rounds. Grain
and torch have no wheels for this Python.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from bench import images
from bench.peers import FREE_ENGINES
from bench.run import Driver, Effort, machine
from bench.workloads import FREE_WORKLOADS, WORKLOADS, Workload, write_files

ROWS = ("ints", "python", "rows", "images", "jpeg")
EFFORT = Effort(rounds=5, seconds=0.6, lead=0.2, warm=0.6, epochs=1)


def rates(workload: Workload, folder: Path, effort: Effort) -> dict[str, list[float]]:
    """Returns the batches a second of each engine, one figure for each round."""
    found: dict[str, list[float]] = {name: [] for name in FREE_ENGINES}
    drivers = {name: Driver(name, workload, folder) for name in FREE_ENGINES}
    try:
        for driver in drivers.values():
            driver.answer()
            driver.ask(lead=0.0, seconds=effort.warm)
        for number in range(effort.rounds):
            for name in list(drivers)[:: 1 if number % 2 else -1]:
                found[name].append(drivers[name].ask(lead=effort.lead, seconds=effort.seconds)["rate"])
    finally:
        for driver in drivers.values():
            driver.close()
    return found


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.free", description=__doc__)
    options.add_argument("--only", metavar="ROWS", help=f"comma separated, of: {', '.join(ROWS)}")
    options.add_argument("--rounds", type=int, default=EFFORT.rounds)
    options.add_argument("--seconds", type=float, default=EFFORT.seconds, help="of each round")
    options.add_argument("--files", type=Path, help="a folder to keep the files that the rows read")
    args = options.parse_args()
    effort = dataclasses.replace(EFFORT, rounds=args.rounds, seconds=args.seconds)
    chosen = args.only.split(",") if args.only else ROWS
    print("\n".join(machine()))
    gil = "with" if getattr(sys, "_is_gil_enabled", lambda: True)() else "without"
    print(f"{gil} the GIL; spdl {version('spdl')}; batches a second, 2 workers; median of {effort.rounds} rounds")
    print(f"{'row':8}" + "".join(f"{name:>12}" for name in FREE_ENGINES), end="")
    print("   threads / inline   / processes   / spdl", flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = args.files or Path(temporary)
        write_files(folder, {*chosen} & {*WORKLOADS} - {*FREE_WORKLOADS})
        if "jpeg" in chosen:
            images.write_jpegs(folder)
        for name in chosen:
            found = rates({**WORKLOADS, **FREE_WORKLOADS}[name], folder, effort)
            middle = {engine: statistics.median(figures) for engine, figures in found.items()}
            ratios = [middle["threads"] / middle[other] for other in ("inline", "processes", "spdl")]
            print(f"{name:8}" + "".join(f"{middle[engine]:12,.1f}" for engine in FREE_ENGINES), end="")
            print(f"{ratios[0]:19.2f}{ratios[1]:14.2f}{ratios[2]:9.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
