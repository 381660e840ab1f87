"""Measures `backend="ray"` beside processes and Ray Data, on two nodes of this machine: `python -m bench.ray`.

The rounds of processes and of actors alternate, with all workers up. Ray Data is started for each sitting and is read
for some seconds before the clock starts: it would otherwise fill its store while the others are measured. It is
measured as Ray's documentation writes it, and in the fastest form that was found for each row (`bench/ray_peer.py`).
Its batches are read-only views of its store. A ratio is the median over pairs of rounds. Exits with 1 if a ratio is
below what is required; that of the tuned form is shown only.

The machine must be quiet: Linux shares the processor between sessions, and each node of Ray is a session of its own,
so beside other programs actors get more of it than processes. The microseconds of processor time are of all processes
of a loader, for each batch, and hardly depend on the load.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import penstock
from bench.driver import consume
from bench.ray_peer import PLACE
from bench.run import Driver, machine
from bench.served import processor_time
from bench.workloads import WORKLOADS, Workload, write_files

# Of a row: at least so many times the rate of processes, and of Ray Data.
REQUIRED = {"ints": (0.8, 8.0), "rows": (0.5, 3.0), "images": (0.2, 2.5), "python": (0.9, None)}

BUSY, LONGEST_WAIT = 0.020, 0.001  # seconds of Python in the caller, and that next() may wait then, in the median
SITTINGS, PAIRS = 3, 3
WARM, LEAD, SECONDS = 1.0, 0.2, 0.8
WARM_RAY_DATA, SECONDS_RAY_DATA = 4.0, 3.0  # its batches come in bursts of a block
PEERS = "ray_data", "ray_data_tuned"
WAITS = 60
SECOND = "127.0.0.2"  # the address of the second node, which is another one only by name


@contextmanager
def cluster(*nodes: dict[str, Any]) -> Iterator[str]:
    """A cluster with these nodes; gives its address. The first node is the head."""
    from ray.cluster_utils import Cluster

    head, *others = ({"object_store_memory": 2 * 10**9, **node} for node in nodes)
    started = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **head})
    try:
        for node in others:
            with on_cores(node.pop("cores", None)):
                started.add_node(**node)
        yield started.address
    finally:
        started.shutdown()


@contextmanager
def on_cores(cores: set[int] | None) -> Iterator[None]:
    """Processes that are started in the block run on these cores, and so do theirs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class Row:
    """The figures of one row, by engine: batches a second, and seconds of processor time for each batch.

    `cpu`: of the driver. `costs`: of all processes, those of Ray included; the machine's load does not change them.
    """

    rates: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    costs: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)

    def ask(self, driver: Driver, lead: float, seconds: float) -> float:
        before = processor_time(os.getpid())
        answer = driver.ask(lead=lead, seconds=seconds)
        used = {"rates": answer["rate"], "cpu": answer["cpu"] / answer["batches"]}
        used["costs"] = (processor_time(os.getpid()) - before) / answer["batches"]
        for name, figure in used.items():
            getattr(self, name).setdefault(driver.engine, []).append(figure)
        return float(answer["rate"])


def measure(workload: Workload, folder: Path, sittings: int) -> Row:
    row = Row()
    for sitting in range(sittings):
        engines = ["penstock", "penstock_ray"][:: -1 if sitting % 2 else 1]
        drivers = {engine: Driver(engine, workload, folder) for engine in engines}
        ours = []
        try:
            for driver in drivers.values():
                driver.answer()
                driver.ask(lead=0.0, seconds=WARM)
            for pair in range(PAIRS):
                rate = {
                    engine: row.ask(drivers[engine], LEAD, SECONDS) for engine in engines[:: -1 if pair % 2 else 1]
                }
                row.ratios.setdefault("penstock", []).append(rate["penstock_ray"] / rate["penstock"])
                ours.append(rate["penstock_ray"])
            row.waits += drivers["penstock_ray"].ask(busy=BUSY, batches=WAITS)["waits"][WAITS // 3 :]
        finally:
            for driver in drivers.values():
                driver.close()
        for engine in PEERS:
            with closing(Driver(engine, workload, folder)) as driver:
                driver.answer()
                rate_of_peer = row.ask(driver, WARM_RAY_DATA, SECONDS_RAY_DATA)
            row.ratios.setdefault(engine, []).append(statistics.median(ours) / rate_of_peer)
    return row


def shown(name: str, row: Row) -> tuple[str, list[str]]:
    """A line of the table, and what of it is missed."""
    missed = []
    cells = [name]
    for engine, least in zip(("penstock", *PEERS), (*REQUIRED[name], None), strict=True):
        ratio = statistics.median(row.ratios[engine])
        cells.append(f"{ratio:.2f} ({min(row.ratios[engine]):.2f}-{max(row.ratios[engine]):.2f})")
        if least is not None and ratio < least:
            missed.append(f"{name}: {ratio:.2f} times {engine}, required {least:g}")
    engines = ("penstock", "penstock_ray", *PEERS)
    rates = [statistics.median(row.rates[engine]) for engine in engines]
    costs = [1e6 * statistics.median(row.costs[engine]) for engine in engines]
    driver = 1e6 * statistics.median(row.cpu["penstock_ray"])
    wait = statistics.median(row.waits)
    if wait > LONGEST_WAIT:
        missed.append(f"{name}: next() waits {1e3 * wait:.2f} ms, at most {1e3 * LONGEST_WAIT:g} ms")
    cells += [f"{figure:,.0f}" for figure in (*rates, *costs, driver)] + [f"{1e3 * wait:.2f}"]
    return f"| {' | '.join(cells)} |", missed


HEAD = (
    "| row | of processes | of Ray Data | of Ray Data, tuned | process /s | ray /s | Ray Data /s | tuned /s "
    "| process µs | ray µs | Ray Data µs | tuned µs | ray's driver µs | next() ms |\n" + "|---" * 14 + "|"
)


class Spins:
    """Sample i costs 5 ms of processor time, however busy the machine is."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, key: int) -> int:
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return int(key)


def scaling(rounds: int) -> list[float]:
    """Two nodes of one core each, against one of them: the ratios of their rates, pair by pair."""
    import ray

    cores = sorted(os.sched_getaffinity(0))
    assert len(cores) > 1, "one core for each node: this machine has only one"
    first, second = ({"num_cpus": 2, "cores": {core}} for core in cores[:2])
    first["resources"], second["resources"] = {"both": 1, "first": 1}, {"both": 1}
    with cluster({"num_cpus": 0}, first, {"node_ip_address": SECOND, **second}) as address:
        ray.init(address=address, log_to_driver=False, logging_level="error")
        try:
            return _scaling(rounds)
        finally:
            ray.shutdown()


def _scaling(rounds: int) -> list[float]:
    def loader(workers: int, place: str) -> Any:
        given = {"backend": "ray", "ray_options": {"patience": 60, "resources": {place: 1}}}
        return penstock.DataLoader(Spins(), batch_size=4, num_workers=workers, seed=0, **given)

    with closing(loader(1, "first")) as one, closing(loader(2, "both")) as two:
        streams = {1: iter(one), 2: iter(two)}
        for stream in streams.values():
            consume(stream, 2.0)
        ratios = []
        for number in range(rounds):
            rate = {}
            for workers in (1, 2)[:: -1 if number % 2 else 1]:
                consume(streams[workers], 0.3, batches=8)  # those that were prefetched
                rate[workers] = consume(streams[workers], 1.5)
            ratios.append(rate[2] / rate[1])
        return ratios


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.ray", description=__doc__)
    options.add_argument("--only", default=",".join(REQUIRED), help=f"comma separated, of: {', '.join(REQUIRED)}")
    options.add_argument("--sittings", type=int, default=SITTINGS)
    options.add_argument("--no-scaling", action="store_true")
    options.add_argument("--data", type=Path, help="keep and reuse the 1.1 GB of files in this folder")
    args = options.parse_args()
    import ray

    print("\n".join([*machine(), f"ray {ray.__version__}"]), flush=True)
    names = [name for name in args.only.split(",") if name]
    missed: list[str] = []
    lines = [HEAD]
    node = {"num_cpus": 2, "resources": {PLACE: 1}}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = args.data or Path(temporary)
        folder.mkdir(exist_ok=True)
        write_files(folder, set(names))
        with cluster(node, {"node_ip_address": SECOND, **node}) as address:
            os.environ["RAY_ADDRESS"] = address  # for the drivers
            for name in names:
                line, less = shown(name, measure(WORKLOADS[name], folder, args.sittings))
                print(f"load {os.getloadavg()[0]:.1f}: {line}", flush=True)
                lines.append(line)
                missed += less
            del os.environ["RAY_ADDRESS"]
    print("\n" + "\n".join(lines))
    if not args.no_scaling:
        found = scaling(3 * args.sittings)
        print(f"a second node of one core: {statistics.median(found):.2f} times ({min(found):.2f}-{max(found):.2f})")
    print("missed: " + ("; ".join(missed) or "none"))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
