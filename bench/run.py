"""Measures penstock and its peers in one run: `python -m bench.run [--only ints,rows] [--quick]`.

All loaders of a row are running before its first round, and their rounds alternate, so that a change in the
machine's load affects all of them. The table goes to the terminal and to bench/results/<date>.md and .json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.limit import limit_first_batch, limit_rate
from bench.peers import ENGINES, JPEG_ENGINES, TENSOR_ENGINES, installed, interpreter
from bench.workloads import WORKLOADS, Workload, write_files

ROOT = Path(__file__).parent.parent
PATIENCE = 60.0  # seconds that a loader may take to answer before it is left out of the row


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int
    seconds: float
    lead: float
    warm: float
    epochs: int


USUAL = Effort(rounds=5, seconds=0.8, lead=0.2, warm=0.8, epochs=6)
QUICK = Effort(rounds=2, seconds=0.4, lead=0.1, warm=0.3, epochs=3)
QUICK_ENGINES = ["penstock", "torch", "grain", "spdl", *TENSOR_ENGINES]  # the others start too slowly


def _environment() -> dict[str, str]:
    # Installed peers have .pyc files; penstock in its source tree may write them too, whatever the shell has set.
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Driver:
    """A process that runs one loader (bench/driver.py) and answers one line for each request."""

    def __init__(self, engine: str, workload: Workload, folder: Path, tree: Path = ROOT) -> None:
        self.engine = engine
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the driver
        self._process = subprocess.Popen(
            [interpreter(engine), "-m", "bench.driver", engine, workload.name, str(workload.workers), str(folder)],
            cwd=ROOT,  # the same driver for every tree
            env={**_environment(), "PYTHONPATH": str(tree / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, **request: float) -> Any:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise DriverFailed(f"{self.engine}: {self._why(bool(ready))}")
        return json.loads(line)

    def _why(self, ended: bool) -> str:
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return (lines[-1] if lines else "ended without a message") if ended else f"no answer for {PATIENCE:g} s"

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


class DriverFailed(Exception):
    """A loader could not run a row; the row goes on without it."""


def measure(workload: Workload, engines: list[str], folder: Path, effort: Effort) -> dict[str, list[float]]:
    """Every round's figure for each engine, and for the limit under "limit"."""
    if workload.kind == "first":
        return measure_first(workload, engines, folder, effort)
    drivers = {engine: Driver(engine, workload, folder) for engine in engines}
    found: dict[str, list[float]] = {engine: [] for engine in ["limit", *engines]}
    try:
        for engine in engines:
            _or_leave_out(drivers, engine, lambda driver: driver.answer())
        if workload.kind == "rate":
            for engine in list(drivers):
                _or_leave_out(drivers, engine, lambda driver: driver.ask(lead=0.0, seconds=effort.warm))
        for _ in range(effort.rounds):
            for engine in list(drivers):
                found[engine] += _or_leave_out(drivers, engine, lambda d: one_round(d, workload, effort))
            if workload.kind == "rate" and not workload.tensors:
                found["limit"].append(limit_rate(workload, folder, workload.longer * effort.seconds, effort.warm))
    finally:
        for driver in drivers.values():
            driver.close()
    return {engine: figures for engine, figures in found.items() if figures}


def one_round(driver: Driver, workload: Workload, effort: Effort) -> list[float]:
    if workload.kind == "boundary":
        return [1e3 * wait for wait in driver.ask(epochs=effort.epochs)["waits"]]
    return [driver.ask(lead=effort.lead, seconds=workload.longer * effort.seconds)["rate"]]


def _or_leave_out(drivers: dict[str, Driver], engine: str, act: Any) -> Any:
    try:
        return act(drivers[engine])
    except (DriverFailed, BrokenPipeError) as error:
        print(f"  left out: {error}", flush=True)
        drivers.pop(engine).close()
        return []


def measure_first(workload: Workload, engines: list[str], folder: Path, effort: Effort) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {engine: [] for engine in ["limit", *engines]}
    for _ in range(effort.rounds):
        if not workload.tensors:
            found["limit"].append(1e3 * limit_first_batch(workload, folder))
        for engine in engines:
            driver = Driver(engine, workload, folder)
            try:
                found[engine].append(1e3 * driver.answer()["seconds"])
            except DriverFailed as error:
                print(f"  left out: {error}", flush=True)
            finally:
                driver.close()
    return {engine: figures for engine, figures in found.items() if figures}


def machine() -> list[str]:
    """What a reader must know to compare these figures with others."""
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if "model name" in line]
    model = models[0] if models else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    variants = ("torch_own_collate", *TENSOR_ENGINES)
    peers = [engine for engine in ENGINES if engine not in variants and installed(engine)]
    versions = ", ".join(f"{engine} {installed(engine)}" for engine in peers)
    import numpy

    return [
        f"machine: {model}, {cores} cores, {memory:.0f} GB, {platform.system()} {platform.release()}",
        f"load: {os.getloadavg()[0]:.2f} at the start",
        f"versions: Python {platform.python_version()}, numpy {numpy.__version__}, {versions}",
        f"commit: {_commit()}",
    ]


def _commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def row(workload: Workload, found: dict[str, list[float]], peers: list[str], own: str = "penstock") -> list[str]:
    """The cells of one row; a ratio above 1 always means that `own`, penstock's engine, is the faster."""
    medians = {engine: statistics.median(found[engine]) for engine in [own, *peers, "limit"] if engine in found}
    ours = medians.get(own)
    cells = [workload.name + TENSOR_ENGINES.get(own, ""), _figure(found.get(own))]
    for engine in peers:
        median = medians.get(engine)
        cells.append(f"{median:,.4g}{_times(workload, ours, median)}" if median else "-")
    limit = medians.get("limit")
    share = f"{_ratio(workload, ours, limit):.2f}" if ours and limit else "-"
    cells += [f"{limit:,.4g}" if limit else "-", share, _verdict(workload, medians, own, share)]
    return cells


def _figure(figures: list[float] | None) -> str:
    if not figures:
        return "-"
    return f"{statistics.median(figures):,.4g} ({min(figures):,.4g}-{max(figures):,.4g})"


def _ratio(workload: Workload, ours: float, other: float) -> float:
    return ours / other if workload.kind == "rate" else other / ours


def _times(workload: Workload, ours: float | None, other: float) -> str:
    return f" ({_ratio(workload, ours, other):.3g}x)" if ours else ""


def _verdict(workload: Workload, medians: dict[str, float], own: str, share: str) -> str:
    ours = medians.get(own)
    if ours is None:
        return "-"
    missed = []
    if workload.required and "torch" in medians:
        reached = _ratio(workload, ours, medians["torch"])
        if reached < workload.required:
            missed.append(f"torch {reached:.3g}x of {workload.required:g}x")
    missed += [
        f"slower than {engine}"
        for engine, median in medians.items()
        if engine not in (own, "limit")
        and _ratio(workload, ours, median) < 1.0
        and not (engine == "torch" and workload.required)
    ]
    if workload.share and share != "-" and float(share) < workload.share:
        missed.append(f"share below the aim of {workload.share:g}")
    return "; ".join(missed) or "met"


def tables(chosen: list[Workload], results: dict[str, Any], engines: list[str]) -> str:
    """The table of arrays with all peers, then the table of tensors with torch."""
    peers = [engine for engine in engines if engine not in ("penstock", *TENSOR_ENGINES)]
    arrays = [row(w, results[w.name], peers) for w in chosen if not w.tensors]
    ours = [engine for engine in TENSOR_ENGINES if engine in engines]
    tensors = [row(w, results[w.name], ["torch"], own) for w in chosen if w.tensors for own in ours]
    parts = [(arrays, peers), (tensors, ["torch"])]
    return "\n\n".join(table(rows, beside) for rows, beside in parts if rows)


def table(rows: list[list[str]], peers: list[str]) -> str:
    head = ["row", "penstock (min-max)", *peers, "limit", "share", "required"]
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    options.add_argument("--only", metavar="ROWS", help=f"comma separated, of: {', '.join(WORKLOADS)}")
    options.add_argument("--engines", metavar="NAMES", help=f"comma separated, of: {', '.join(ENGINES)}")
    options.add_argument("--quick", action="store_true", help="a third of the time, and noisier")
    options.add_argument("--data", type=Path, help="keep and reuse the 1.1 GB of files in this folder")
    options.add_argument("--no-save", action="store_true", help="print only")
    options.add_argument(
        "--readme", action="store_true", help="put the ratios into README.md and docs/benchmarks.md too"
    )
    args = options.parse_args()
    chosen = [WORKLOADS[name] for name in (args.only.split(",") if args.only else WORKLOADS)]
    usual = QUICK_ENGINES if args.quick else list(ENGINES)
    wanted = args.engines.split(",") if args.engines else usual
    effort = QUICK if args.quick else USUAL

    header = machine()
    print("\n".join(header), flush=True)
    for engine in wanted:
        if installed(engine) is None and engine not in TENSOR_ENGINES:
            print(f"skipped: {engine} is not installed")
    engines = [engine for engine in wanted if installed(engine)]
    if any(workload.tensors for workload in chosen) and not set(engines) & set(TENSOR_ENGINES):
        print("skipped: the rows of tensors, because penstock.torch is not installed or not requested")
        chosen = [workload for workload in chosen if not workload.tensors]
    if not chosen:
        return 1

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = args.data or Path(temporary)
        folder.mkdir(exist_ok=True)
        write_files(folder, {workload.name for workload in chosen})
        results: dict[str, dict[str, list[float]]] = {}
        for workload in chosen:
            print(f"{workload.name}: {workload.what}", flush=True)
            able = [engine for engine in engines if _can_run(engine, workload)]
            results[workload.name] = measure(workload, able, folder, effort)
            figures = [f"{engine} {_figure(found)}" for engine, found in results[workload.name].items()]
            print("  " + ", ".join(figures), flush=True)

    text = tables(chosen, results, engines)
    print("\n" + text)
    if not args.no_save:
        save(header, chosen, text, results, effort)
    if args.readme:
        fill_readme(header, chosen, results, engines)
    return 0


def _can_run(engine: str, workload: Workload) -> bool:
    if workload.tensors:
        return engine == "torch" or engine in TENSOR_ENGINES
    if engine in JPEG_ENGINES:
        return workload.jpegs
    return engine not in TENSOR_ENGINES and (engine != "torch_own_collate" or workload.many)


def save(header: list[str], chosen: list[Workload], text: str, results: dict[str, Any], effort: Effort) -> None:
    day = datetime.date.today().isoformat()
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    lines = [
        f"# {day}",
        "",
        f"`python -m bench.run`: {effort.rounds} rounds of {effort.seconds:g} s for each loader, in turn.",
        "Figures are medians of batches a second (first batch, epoch boundary: ms); in brackets: how",
        "many times faster penstock is.",
        "",
        *(f"- {line}" for line in header),
        *(
            f"- {workload.name}: batch {workload.batch_size}, {workload.workers} workers, {workload.what}"
            for workload in chosen
        ),
        "",
        text,
        "",
    ]
    (folder / f"{day}.md").write_text("\n".join(lines))
    (folder / f"{day}.json").write_text(json.dumps({"header": header, "results": results}, indent=1) + "\n")
    print(f"\nwritten: {(folder / day).relative_to(ROOT)}.md and .json")


def fill_readme(header: list[str], chosen: list[Workload], results: dict[str, Any], engines: list[str]) -> None:
    """Put this run's ratios between the marks of README.md and docs/benchmarks.md, with a link to the results."""
    medians = {
        name: {engine: statistics.median(figures) for engine, figures in found.items()}
        for name, found in results.items()
    }
    day = datetime.date.today().isoformat()
    source = ["", f"[{day}]({{root}}bench/results/{day}.md), {header[0].removeprefix('machine: ')}."]

    def ratio(workload: Workload, ours: str, other: str, digits: str) -> str:
        found = medians[workload.name]
        both = ours in found and other in found
        return format(_ratio(workload, found[ours], found[other]), digits) if both else "-"

    peers = [e for e in engines if e not in ("penstock", "torch_own_collate", *TENSOR_ENGINES)]
    lines = [f"| row | {' | '.join(peers)} | share of the limit |", "|---" * (len(peers) + 2) + "|"]
    for workload in chosen:
        if "penstock" in medians[workload.name]:
            cells = [ratio(workload, "penstock", peer, ".3g") for peer in peers]
            cells.append(ratio(workload, "penstock", "limit", ".2f"))
            lines.append(f"| {workload.name} | {' | '.join(cells)} |")
    if len(lines) > 2:
        fill("bench", lines + source)

    lines = ["| row | torch's semantics | with `seed=` |", "|---|---|---|"]
    for workload in chosen:
        if workload.tensors:
            cells = [ratio(workload, ours, "torch", ".3g") for ours in TENSOR_ENGINES]
            lines.append(f"| {workload.name} | {' | '.join(cells)} |")
    if len(lines) > 2:
        fill("bench-torch", lines + source)


PAGES = {"README.md": "", "docs/benchmarks.md": "../"}  # with the way from there to the root


def fill(mark: str, lines: list[str]) -> None:
    """Replace what each page has between `<!-- mark:begin ... -->` and `<!-- mark:end -->`."""
    begin, end = f"<!-- {mark}:begin", f"<!-- {mark}:end -->"
    for page, root in PAGES.items():
        before, found, rest = (ROOT / page).read_text().partition(begin)
        comment, _, rest = rest.partition("-->")
        _, ended, after = rest.partition(end)
        if not ended:
            print(f"{page} has no {begin} ... {end}")
            continue
        text = "\n".join(lines).replace("{root}", root)
        (ROOT / page).write_text(f"{before}{found}{comment}-->\n{text}\n{end}{after}")


if __name__ == "__main__":
    sys.exit(main())
