"""Runs random histories, and prints the programs of those that fail."""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import sys
import time
from collections import Counter
from pathlib import Path

from tests.histories import running, shrinking, writing


def main() -> int:
    given = _arguments()
    # Before the first program is forked from here: it has these already.
    importlib.import_module("tests.histories.checked" if given.face == "core" else f"tests.histories.on_{given.face}")
    gc.collect()
    gc.freeze()
    running.adopt_orphans()
    if given.show is not None:
        print(writing.program(writing.history(given.show, given.face, frozenset(given.without))))
        return 0
    campaign = Campaign(given)
    try:
        campaign.run()
    except KeyboardInterrupt:
        print("interrupted")
    campaign.report()
    return 1 if campaign.findings else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.histories", description=__doc__)
    parser.add_argument("--operations", type=int, default=10**9, help="stop after so many operations")
    parser.add_argument("--seconds", type=float, default=10**9, help="stop after so many seconds")
    parser.add_argument("--histories", type=int, default=10**9, help="stop after so many histories")
    parser.add_argument("--seed", type=int, default=0, help="the first seed is a million times this number")
    parser.add_argument("--first", type=int, default=0, help="leave out so many seeds")
    parser.add_argument("--face", default="core", choices=["core", "torch"])
    parser.add_argument("--without", nargs="*", default=[], metavar="OPERATION", help="operations to leave out")
    parser.add_argument("--save", type=Path, help="a folder for the programs of findings")
    parser.add_argument("--shrink", type=float, default=120, help="seconds to shorten each finding")
    parser.add_argument("--most", type=int, default=1000, help="stop after so many different findings")
    parser.add_argument("--show", type=int, metavar="SEED", help="print the program of a seed, and run nothing")
    parser.add_argument("--quiet", action="store_true", help="print no progress")
    return parser.parse_args()


class Campaign:
    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._without = frozenset(given.without)
        self._began = time.monotonic()
        self._operations: Counter[str] = Counter()
        self._histories = 0
        self._shown = 0.0
        self.findings: Counter[str] = Counter()

    def run(self) -> None:
        given = self._given
        for seed in itertools.count(given.seed * 10**6 + given.first):
            spent = time.monotonic() - self._began
            if spent > given.seconds or self._operations.total() >= given.operations:
                return
            if self._histories >= given.histories or len(self.findings) >= given.most:
                return
            self._try(seed)
            if not given.quiet and spent > self._shown + 30:
                self._shown = spent
                print(self._progress(), flush=True)

    def _try(self, seed: int) -> None:
        history = writing.history(seed, self._given.face, self._without)
        ran = running.run(writing.program(history))
        self._histories += 1
        self._operations.update(writing.count(history))
        if not ran.finding:
            return
        self.findings[ran.signature] += 1
        print(f"seed {seed} {ran.signature}", flush=True)
        if self.findings[ran.signature] > 1:
            return
        title = f"Seed {seed} of the {self._given.face} histories."
        if self._given.shrink:
            history, often = shrinking.shrunk(history, ran, self._given.shrink)
            title = f"{title} {often}"
        text = writing.program(history, title)
        print(text, ran.output[-6000:], "-" * 80, sep="\n", flush=True)
        if self._given.save is not None:
            self._given.save.mkdir(parents=True, exist_ok=True)
            path = self._given.save / f"{self._given.face}_{seed}.py"
            path.write_text(text + "\n# " + ran.output[-4000:].replace("\n", "\n# ") + "\n")

    def _progress(self) -> str:
        spent, operations = time.monotonic() - self._began, self._operations.total()
        return (
            f"{operations} operations in {self._histories} histories, {spent:.0f} s, "
            f"{self.findings.total()} findings of {len(self.findings)} kinds"
        )

    def report(self) -> None:
        by_kind = ", ".join(f"{name} {number}" for name, number in self._operations.most_common())
        print(f"{self._progress()}\n{by_kind}")
        for signature, number in self.findings.most_common():
            print(f"{number:5} times {signature}")


if __name__ == "__main__":
    sys.exit(main())
