"""What `loader.stats()` costs while nobody asks: `python -m bench.measuring`.

The figures are measured all the time. They are taken out of one of two loaders, which then run in turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from bench.compare import compare
from bench.peers import UNMEASURED
from bench.run import ROOT, machine
from bench.workloads import WORKLOADS, write_files

LEAST = 0.99


def take_out() -> None:
    """In this process, and in workers that are forked from it, nothing is measured."""
    from penstock._epoch import engine
    from penstock._measure.meter import Stopwatch
    from penstock.backends import _local
    from penstock.backends._process import worker

    class Nothing:
        detailed = times = False

        def __init__(self, *args: object) -> None:
            pass

        def ready(self) -> None:
            pass

        begin = ready

        def end(self, *args: object) -> None:
            pass

    class Stopped(Stopwatch):
        def ask(self) -> int:
            return 0

        def deliver(self, *counts: int) -> None:
            pass

        def answer(self, ready: bool) -> None:
            pass

    worker.Gauge = _local.Gauge = Nothing  # type: ignore[assignment,misc]
    engine.Stopwatch = Stopped  # type: ignore[misc]


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.measuring", description=__doc__)
    options.add_argument("--only", default="ints", help=f"comma separated, of: {', '.join(WORKLOADS)}")
    options.add_argument("--rounds", type=int, default=24)
    args = options.parse_args()
    print("\n".join(machine()), flush=True)
    worst = 1.0
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = Path(temporary)
        chosen = [WORKLOADS[name] for name in args.only.split(",")]
        write_files(folder, {workload.name for workload in chosen})
        for workload in chosen:
            sides = {"with": ("penstock", ROOT), "without": (UNMEASURED, ROOT)}
            found = compare(workload, sides, folder, args.rounds)
            measured, bare = (statistics.median(found[name]) for name in sides)
            worst = min(worst, measured / bare)
            row = f"with {measured:,.5g} without {bare:,.5g} ratio {measured / bare:.3f}"
            print(f"{workload.name:20} {row}", flush=True)
    print(f"required: {LEAST}")
    return worst < LEAST


if __name__ == "__main__":
    sys.exit(main())
