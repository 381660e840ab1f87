"""Batches a second with 1 to 16 workers, beside peers: `python -m bench.scaling [--only wait] [--rounds 3]`.

Two rows: samples that wait 4 ms (`wait`), for which many workers help on any machine, and rows of a memory map
(`rows`), for which more workers than processors cannot help. All loaders of a number of workers are running before
its first round, and their rounds alternate.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.dated import RESULTS, newest, save
from bench.peers import installed
from bench.run import Effort, machine, measure
from bench.workloads import WORKLOADS, write_files

ROWS = {"wait": (1, 2, 4, 8, 16), "rows": (1, 2, 4, 8)}
ENGINES = ("penstock", "torch", "grain", "spdl")

Figures = dict[str, dict[str, dict[str, float]]]  # of a row and a number of workers: of each engine


def run(names: list[str], rounds: int) -> Figures:
    effort = Effort(rounds=rounds, seconds=0.6, lead=0.1, warm=0.3, epochs=1)
    engines = [engine for engine in ENGINES if installed(engine)]
    found: Figures = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = Path(temporary)
        write_files(folder, set(names))
        for name in names:
            for workers in ROWS[name]:
                workload = replace(WORKLOADS[name], workers=workers, longer=2.0 if name == "wait" else 1.0)
                rates = measure(workload, engines, folder, effort)
                medians = {engine: statistics.median(figures) for engine, figures in rates.items()}
                found.setdefault(name, {})[str(workers)] = medians
                print(f"{name}, {workers} workers: {_line(medians)}", flush=True)
    return found


def _line(medians: dict[str, float]) -> str:
    return ", ".join(f"{engine} {rate:,.4g}" for engine, rate in medians.items())


def table(found: Figures) -> str:
    engines = ["limit", *ENGINES]
    lines = [f"| row | workers | {' | '.join(engines)} |", "|---" * (len(engines) + 2) + "|"]
    for name, by_workers in found.items():
        for workers, medians in by_workers.items():
            cells = (f"{medians[engine]:,.4g}" if engine in medians else "-" for engine in engines)
            lines.append(f"| {name} | {workers} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    options.add_argument("--only", choices=sorted(ROWS), help="one row; the other is kept from the newest results")
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    found = run([args.only] if args.only else list(ROWS), args.rounds)
    if args.only and any(RESULTS.glob("*-scaling.json")):
        found = {**newest("scaling")[1]["results"], **found}
    text = f"Medians of {args.rounds} rounds, in batches a second.\n\n{table(found)}"
    print("\n" + text)
    save("scaling", "python -m bench.scaling", machine(), found, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
