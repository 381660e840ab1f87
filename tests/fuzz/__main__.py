"""Runs targets for some minutes: `python -m tests.fuzz [TARGET ...] [--minutes N] [--atheris]`."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.fuzz import attacking
from tests.fuzz.mutating import mutated


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: {', '.join(attacking.names())}")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations, without --atheris")
    parser.add_argument("--atheris", action="store_true", help="guided by coverage: needs the package atheris")
    parser.add_argument("--found", type=Path, default=attacking.FOUND, help="where findings are saved")
    given = parser.parse_args()
    wrong = set(given.targets) - {*attacking.names()}
    if wrong:
        parser.error(f"no such target: {', '.join(sorted(wrong))}")
    found = 0
    for name in given.targets or attacking.names():
        if given.atheris:
            from tests.fuzz import guided

            found += guided.run(name, given.minutes, given.found)
        else:
            found += run(name, given.minutes, given.seed, given.found)
    return 1 if found else 0


def run(name: str, minutes: float, seed: int, folder: Path) -> int:
    """Mutates for so many minutes. Returns the number of different findings."""
    module, rng = attacking.target(name), random.Random(seed)
    seeds, places, accepted = module.seeds(), set[str](), 0
    begun, done = time.monotonic(), 0
    with attacking.limits():
        for done in _until(begun + 60 * minutes):
            data = mutated(rng, module, seeds)
            try:
                accepted += attacking.strike(module, data)
            except attacking.Finding as finding:
                if finding.place not in places:
                    places.add(finding.place)
                    attacking.save(name, finding, folder)
            if done % 1000 == 0 and sys.stderr.isatty():
                print(f"\r{name}: {done:,} attacks, {len(places)} findings", end="", file=sys.stderr)
    took = time.monotonic() - begun
    print(
        f"{name}: {done:,} attacks in {took / 60:.1f} minutes ({done / took:,.0f} in a second), {accepted:,} of them "
        f"accepted; {len(places)} findings",
        flush=True,
    )
    return len(places)


def _until(deadline: float) -> Iterator[int]:
    for number in count(1):
        yield number
        if time.monotonic() >= deadline:
            return


if __name__ == "__main__":
    sys.exit(main())
