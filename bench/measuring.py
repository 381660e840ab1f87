"""What `loader.stats()` costs while nobody asks: `python -m bench.measuring`.

The figures are measured all the time. They are taken out of one of two loaders of the same process, which then run in
turn for a twentieth of a second each: whatever else the machine does, it does to both. Each sitting is a new process,
because a process keeps the luck of its start.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from bench.driver import consume
from bench.peers import open_stream
from bench.run import machine
from bench.workloads import WORKLOADS, write_files

LEAST = 0.99
SIDES = ("with", "without")
PAIRS, LEAD, SLICE = 40, 0.01, 0.04  # of a sitting; seconds


@contextmanager
def taken_out() -> Iterator[None]:
    """Nothing is measured by the loaders that are started now, and by their forked workers."""
    from penstock._engine import engine
    from penstock._measure.meter import Stopwatch
    from penstock.backends import _local
    from penstock.backends._process import worker

    class Nothing:
        detailed = times = False

        def __init__(self, *args: object) -> None:
            pass

        def ready(self) -> None:
            pass

        begin = flush = ready

        def end(self, *args: object) -> None:
            pass

    class Stopped(Stopwatch):
        def ask(self) -> int:
            return 0

        def deliver(self, *counts: int) -> None:
            pass

        def answer(self, ready: bool) -> None:
            pass

    with ExitStack() as stack:
        for module, name, stand_in in (
            (worker, "Gauge", Nothing),
            (_local, "Gauge", Nothing),
            (engine, "Stopwatch", Stopped),
        ):
            stack.enter_context(mock.patch.object(module, name, stand_in))
        yield


def sitting(name: str, folder: Path, number: int) -> list[float]:
    """The ratio of each pair of slices. Which side starts first changes from one sitting to the next."""
    workload, streams = WORKLOADS[name], {}
    turn = SIDES[:: 1 if number % 2 else -1]
    with ExitStack() as stack:
        for side in turn:
            with ExitStack() as start:
                if side == "without":
                    start.enter_context(taken_out())
                streams[side] = stack.enter_context(open_stream("penstock", workload, folder))
                consume(streams[side], 10 * SLICE)
        rates, ratios = {}, []
        for pair in range(PAIRS):
            for side in turn[:: 1 if pair % 2 else -1]:
                consume(streams[side], LEAD)
                rates[side] = consume(streams[side], SLICE)
            ratios.append(rates["with"] / rates["without"])
    return ratios


def parts(times: int = 100_000) -> str:
    """What a task costs by itself, in the worker and in the caller."""
    from penstock._measure.gauges import Gauge, Gauges
    from penstock._measure.meter import Meter, Stopwatch

    gauge, watch = Gauge(Gauges(None), 0, 1, time.process_time_ns), Stopwatch(Meter())
    began = time.process_time()
    for _ in range(times):
        gauge.begin()
        if gauge.detailed:
            gauge.stepped(64)
        gauge.end(None)
    between = time.process_time()
    for _ in range(times):
        watch.ask()
        watch.deliver(1, 64, 512)
        watch.answer(False)
    worker, caller = (1e6 * seconds / times for seconds in (between - began, time.process_time() - between))
    return f"for each task: {worker:.2f} µs in the worker, {caller:.2f} µs in the caller"


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.measuring", description=__doc__)
    options.add_argument("--only", default="ints", help=f"comma separated, of: {', '.join(WORKLOADS)}")
    options.add_argument("--sittings", type=int, default=31)
    options.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # a sitting, in its own process
    args = options.parse_args()
    if args.one:
        name, folder, number = args.one
        print(json.dumps(sitting(name, Path(folder), int(number))))
        return 0
    print("\n".join(machine()), flush=True)
    print(parts(), flush=True)
    worst = 1.0
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        names = args.only.split(",")
        write_files(Path(temporary), set(names))
        for name in names:
            ratios: list[float] = []
            for number in range(args.sittings):
                command = [sys.executable, "-m", "bench.measuring", "--one", name, temporary, str(number)]
                ratios += json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            ratios.sort()
            ratio, doubt = statistics.median(ratios), round(len(ratios) ** 0.5)
            low, high = (ratios[len(ratios) // 2 + side] for side in (-doubt, doubt))
            worst = min(worst, ratio)
            print(f"{name:20} with / without {ratio:.3f} (95 %: {low:.3f} to {high:.3f})", flush=True)
    print(f"required: {LEAST}")
    return worst < LEAST


if __name__ == "__main__":
    sys.exit(main())
