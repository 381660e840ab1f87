"""Guided by coverage: atheris, which is libFuzzer for Python. It keeps what reaches new code, and mutates that.

The corpus stays in build/fuzz, so that the next run begins where this one ends.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz import attacking
from tests.fuzz.mutating import mended, mutated

BUILD = Path(__file__).parents[2] / "build" / "fuzz"
_MOST = 1 << 16  # bytes of data
_MEMORY = 3072  # MB of the process


def run(name: str, minutes: float, folder: Path) -> int:
    """Fuzzes in processes of their own: one that crashes, hangs or takes too much memory is a finding."""
    corpus, crashes = BUILD / "corpus" / name, BUILD / "crashes" / name
    for each in (corpus, crashes):
        each.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(attacking.target(name).seeds()):
        (corpus / f"seed{number}").write_bytes(seed)
    before = {*(folder / name).glob("*.bin")} if (folder / name).exists() else set()
    begun, done, reached, late = time.monotonic(), 0, "?", 0
    while (left := begun + 60 * minutes - time.monotonic()) > 1:
        told = _process(name, left, folder, corpus, crashes)
        counts = [int(number) for number in re.findall(r"^#(\d+)\s", told, re.MULTILINE)]
        done += max(counts, default=0)
        reached, late = _coverage(told) or (reached, late)
        for path in crashes.iterdir():  # the process has ended by it
            data, kind = path.read_bytes(), path.name.partition("-")[0]
            attacking.save(name, attacking.Finding(data, RuntimeError(f"{kind}: {told[-1500:]}")), folder)
            path.unlink()
        if not counts:
            print(told[-3000:], file=sys.stderr)
            break
    found = {*(folder / name).glob("*.bin")} - before if (folder / name).exists() else set()
    took = (time.monotonic() - begun) / 60
    print(
        f"{name}: {done:,} attacks in {took:.1f} minutes ({done / took / 60:,.0f} in a second), by atheris; coverage "
        f"{reached} edges, {late} of them in the second half, corpus {len(list(corpus.iterdir())):,} files; "
        f"{len(found)} findings",
        flush=True,
    )
    return len(found)


def _coverage(told: str) -> tuple[str, int] | None:
    """How many edges a process has reached in the end, and how many of them after half of its attacks."""
    seen = [
        (int(number), int(edges)) for number, edges in re.findall(r"^#(\d+)\s.*cov: (\d+) ft: ", told, re.MULTILINE)
    ]
    if not seen:
        return None
    done, last = seen[-1]
    return str(last), last - max((edges for number, edges in seen if number <= done / 2), default=0)


def _process(name: str, seconds: float, folder: Path, corpus: Path, crashes: Path) -> str:
    begun = [
        sys.executable,
        "-m",
        "tests.fuzz.guided",
        name,
        str(folder),
        str(corpus),
        f"-artifact_prefix={crashes}/",
    ]
    limits = [
        f"-max_total_time={int(seconds)}",
        f"-timeout={int(attacking.SECONDS)}",
        f"-rss_limit_mb={_MEMORY}",
    ]
    more = [f"-max_len={_MOST}", "-print_final_stats=1"]
    ran = subprocess.run([*begun, *limits, *more], capture_output=True, check=False)
    told = ran.stderr.decode(errors="replace")
    for line in told.splitlines():
        if "FOUND" in line:
            print(line, file=sys.stderr, flush=True)
    return told


def fuzz(name: str, folder: Path, arguments: list[str]) -> None:
    """In the process that fuzzes."""
    import atheris

    with atheris.instrument_imports(include=["penstock"]):
        module = attacking.target(name)
    seeds, places = module.seeds(), set[str]()

    def one(data: bytes) -> None:
        try:
            attacking.strike(module, data, timed=False)  # libFuzzer has the timer
        except attacking.Finding as finding:
            if finding.place not in places:
                places.add(finding.place)
                attacking.save(name, finding, folder)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return mutated(rng, module, [data, rng.choice(seeds)] if rng.random() < 0.2 else [data], most)[:most]
        return mended(rng, module, atheris.Mutate(data, most))[:most]

    atheris.Setup([sys.argv[0], *arguments], one, custom_mutator=mutate)
    with attacking.limits(timed=False):
        atheris.Fuzz()


if __name__ == "__main__":
    fuzz(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
