"""Compares loaders over the same files: each in a process of its own, checked, then measured in turn.

The process of a loader reads two epochs, which are timed, the first from the making of the dataset on. In a third
epoch it adds up a hash of every sample: all loaders must deliver the same samples. Then rounds of all loaders
alternate, with all workers up; only one loader is read at a time. A ratio is the median over rounds of penstock's
rate by that of the peer in the same round. The processor time is that of all processes of a loader for each sample:
it depends less on the load of the machine than the rate.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.run import machine
from bench.steady import family

LEAD = 0.5  # seconds of reading before each round: what was prefetched while others were read took no time then
ROUNDS, SECONDS = 5, 2.0

Batch = tuple[Any, ...]  # arrays or tensors of equal length


@dataclass(frozen=True)
class Contender:
    """A loader: `open(folder)` returns what gives the batches of an epoch each time it is iterated over."""

    open: Callable[[Path], Iterable[Batch]]
    package: str = "penstock"
    least: float | None = None
    """How many times its rate penstock must have."""
    early: bool = False
    """True if penstock must be ahead in the first epoch and in the second, too."""
    epochs: bool = True
    """False if whole epochs would take too long: the loader is then not checked."""


class Comparison:
    """Contenders over the files that `write(folder)` makes. The first contender is penstock's."""

    def __init__(
        self, module: str, unit: str, write: Callable[[Path], None], contenders: dict[str, Contender]
    ) -> None:
        self.module, self.unit, self.write, self.contenders = module, unit, write, contenders
        self.ours = next(iter(contenders))

    def main(self, description: str | None) -> int:
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=description)
        parser.add_argument("--rounds", type=int, default=ROUNDS)
        parser.add_argument("--seconds", type=float, default=SECONDS, help="of each round")
        parser.add_argument("--only", help="names of peers, or parts of them, separated by semicolons")
        parser.add_argument("--data", type=Path, help="keep and reuse the files in this folder")
        parser.add_argument("--serve", help=argparse.SUPPRESS)
        args = parser.parse_args()
        if args.serve:
            serve(self.contenders[args.serve], args.data)
        names = [name for name in self.contenders if self._is_wanted(name, args.only)]
        print("\n".join(self._header(names)), flush=True)
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
            folder = args.data or Path(temporary)
            folder.mkdir(exist_ok=True)
            self.write(folder)
            found = self._measure(names, folder, args.rounds, args.seconds)
        print(self._table(found))
        print(f"load: {os.getloadavg()[0]:.2f} at the end")
        missed = self._missed(found)
        print("missed: " + ("; ".join(missed) or "none"))
        return bool(missed)

    def _is_wanted(self, name: str, only: str | None) -> bool:
        if importlib.util.find_spec(self.contenders[name].package) is None:
            print(f"skipped: {name}, {self.contenders[name].package} is not installed (make bench-formats)")
            return False
        return only is None or name == self.ours or any(part in name for part in only.split(";"))

    def _header(self, names: list[str]) -> list[str]:
        hardware, load, _, commit = machine()
        homes = packages_distributions()
        packages = {self.contenders[name].package for name in names} - {"penstock"}
        versions = {home: version(home) for package in packages for home in homes[package]}
        named = ", ".join(f"{home} {number}" for home, number in sorted(versions.items()))
        return [hardware, load, f"versions: Python {sys.version.split()[0]}, numpy {np.__version__}, {named}", commit]

    def _measure(self, names: list[str], folder: Path, rounds: int, seconds: float) -> dict[str, Figures]:
        with ExitStack() as stack:
            served = {}
            for name in names:
                try:
                    served[name] = stack.enter_context(closing(Served(self.module, name, folder)))
                except LoaderFailed as error:
                    print(f"left out: {error}")
                    continue
                figures = served[name].figures
                print(f"{name}: {figures.epochs_text()} {self.unit}/s", flush=True)
                expected = served[self.ours].figures.samples
                if figures.samples and figures.samples != expected:
                    raise RuntimeError(f"{name} has samples {figures.samples}, {self.ours} has {expected}")
            for number in range(rounds):
                for each in list(served.values())[:: 1 if number % 2 else -1]:
                    each.measure(seconds)
            return {name: each.figures for name, each in served.items()}

    def _table(self, found: dict[str, Figures]) -> str:
        ours = found[self.ours]
        head = [
            "loader",
            f"{self.unit}/s (min-max)",
            "CPU µs each",
            "penstock's rate, times",
            "CPU, times",
            "required",
            f"1st, 2nd epoch, {self.unit}/s",
        ]
        lines = [head, ["---"] * len(head)]
        for name, figures in found.items():
            spread = f"{min(figures.rates):,.0f}-{max(figures.rates):,.0f}"
            times = f"{statistics.median(figures.costs) / statistics.median(ours.costs):.2f}"
            least = self.contenders[name].least
            lines.append(
                [
                    name,
                    f"{statistics.median(figures.rates):,.0f} ({spread})",
                    f"{1e6 * statistics.median(figures.costs):,.2f}",
                    f"{figures.ratio(ours):.2f}",
                    times,
                    "" if least is None else f"{least:g}",
                    figures.epochs_text(),
                ]
            )
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _missed(self, found: dict[str, Figures]) -> list[str]:
        ours, missed = found[self.ours], []
        for name, figures in found.items():
            least = self.contenders[name].least
            if least is None:
                continue
            if figures.ratio(ours) < least:
                missed.append(f"{name}: {figures.ratio(ours):.2f} times, required {least:g}")
            for number, (mine, its) in enumerate(zip(ours.epochs, figures.epochs, strict=True), 1):
                if self.contenders[name].early and mine < its:
                    missed.append(f"{name}: epoch {number} is faster")
        return missed


@dataclass
class Figures:
    """What was measured of a loader. Rates are samples a second, costs seconds of processor time for a sample."""

    epochs: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    """Number and hash of the samples of an epoch; nothing if they were not read."""
    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def epochs_text(self) -> str:
        return ", ".join(f"{rate:,.0f}" for rate in self.epochs) or "-"

    def ratio(self, ours: Figures) -> float:
        """How many times as fast penstock is."""
        return statistics.median(mine / its for mine, its in zip(ours.rates, self.rates, strict=True))


class LoaderFailed(Exception):
    """The process of a loader has ended; the others are compared without it."""


class Served:
    """A loader in a process of its own, which is ready to be measured."""

    def __init__(self, module: str, name: str, folder: Path) -> None:
        self._name = name
        command = [sys.executable, "-m", module, "--serve", name, "--data", str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self.figures = Figures(**self._answer())
        except BaseException:
            self.close()
            raise

    def measure(self, seconds: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.figures.rates.append(answer["rate"])
        self.figures.costs.append(answer["cost"])

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise LoaderFailed(f"the process of {self._name} has ended: its error is above")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process and those that it has started: workers of a fork server do not end with their parent."""
        assert self._process.stdin is not None
        _, *others = family(self._process.pid)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def processor_time(pid: int) -> float:
    """Seconds that a process and its descendants have used so far, those that have ended included."""
    ticks = 0
    for one in family(pid):
        with suppress(OSError):  # it has ended
            ticks += sum(map(int, Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


# In the process of a loader.


def serve(contender: Contender, folder: Path) -> None:
    """Answers the figures of the first epochs, and then a rate for each line of standard input, in seconds."""
    replies = os.fdopen(os.dup(1), "w")  # a peer may print: it goes to stderr
    os.dup2(2, 1)

    def reply(value: Any) -> None:
        print(json.dumps(value), file=replies, flush=True)

    begun = time.perf_counter()
    loader = contender.open(folder)
    figures: dict[str, Any] = {"epochs": [], "samples": []}
    for _ in range(2 if contender.epochs else 0):
        samples = sum(len(batch[0]) for batch in loader)
        now = time.perf_counter()
        figures["epochs"].append(samples / (now - begun))
        begun = now
    if contender.epochs:
        figures["samples"] = digest(loader)
    stream = endless(loader)
    read(stream, 1.0)
    reply(figures)
    for line in sys.stdin:
        read(stream, LEAD)
        before = processor_time(os.getpid())
        samples, taken = read(stream, float(line))
        cost = (processor_time(os.getpid()) - before) / samples
        reply({"rate": samples / taken, "cost": cost})
    os._exit(0)


def endless(loader: Iterable[Batch]) -> Iterator[Batch]:
    while True:
        yield from loader


def read(stream: Iterator[Batch], seconds: float) -> tuple[int, float]:
    """Reads for some seconds: the number of samples, and the seconds."""
    samples, begun = 0, time.perf_counter()
    while (taken := time.perf_counter() - begun) < seconds:
        samples += len(next(stream)[0])
    return samples, taken


def digest(loader: Iterable[Batch]) -> list[int]:
    """The number of samples in an epoch, and the sum of their hashes, which does not depend on the order."""
    count = total = 0
    for batch in loader:
        for sample in zip(*map(_plain, batch), strict=True):
            check = 0
            for part in sample:
                check = zlib.crc32(np.ascontiguousarray(part), check)
            count, total = count + 1, total + check * check  # the square: checksums of parts cannot cancel out
    return [count, total]


def _plain(array: Any) -> NDArray[Any]:
    """An array or tensor as an array; integers as int64, since some peers have no other type."""
    found = np.asarray(array)
    if found.dtype.hasobject:
        raise TypeError(f"a batch must be an array of numbers, but it has {type(found[0])} inside")
    return found.astype(np.int64) if found.dtype.kind in "iu" and found.itemsize > 1 else found
