"""Programs beside each other on one Parquet file, in block order: `python -m bench.neighbours`.

276 row groups of 1,000 rows of 64 int32. Each program is a process of its own with 2 workers, and reads an epoch:
alone; two programs with different seeds; three ranks of one order that were resumed at different places, and whose
steps take 0, 1 and 2 ms. "Alone": the programs of the row one after the other; what all of them decode, and the
longest time of one. Exits with 1 if programs decode more at the same time than alone, by more than a tenth.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np

from tests.programs import side_by_side

GROUPS, ROWS, WIDTH, BATCH, WORKERS = 276, 1000, 64, 64, 2
RESUMED = (0, 300, 600)  # steps of three ranks, of 1,438

_ME = "--program"


def write(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    values = np.random.default_rng(0).integers(0, 50_000, GROUPS * ROWS * WIDTH, np.int32)
    table = pa.table({"ids": pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH)})
    pa.parquet.write_table(table, path, row_group_size=ROWS)


def program(path: str, seed: int, rank: int, world: int, done: int, pause: float) -> None:
    """Reads the rest of an epoch when it is told to, and prints the row groups needed and decoded, and the time."""
    import penstock
    from penstock.formats import Parquet

    data, given = Parquet(path), {"shuffle": "blocks", "seed": seed, "shard": (rank, world)}
    loader = penstock.DataLoader(data, BATCH, num_workers=WORKERS, **given)
    if done:
        before = penstock.DataLoader(data, BATCH, **given)
        for _ in islice(before, done):
            pass
        loader.load_state_dict(before.state_dict())
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    for _ in loader:
        time.sleep(pause)
    seconds = time.perf_counter() - start
    cache = loader.stats().life.cache
    assert cache is not None
    print(cache.decoded, seconds)


def run(path: Path, programs: list[tuple[int, int, int, int, float]]) -> tuple[int, float]:
    """Row groups that the programs have decoded, and the time of the slowest."""
    commands = [[sys.executable, "-m", "bench.neighbours", _ME, str(path), *map(str, given)] for given in programs]
    said = side_by_side(commands)
    return sum(int(decoded) for decoded, _ in said), max(float(seconds) for _, seconds in said)


def main() -> int:
    import pyarrow as pa

    print(f"pyarrow {pa.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    print(f"{GROUPS} row groups of {ROWS:,} rows, batches of {BATCH}, {WORKERS} workers for each program\n")
    print("| programs | decoded, alone | decoded, at the same time | s, alone | s, at the same time |")
    print("|---|---|---|---|---|")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "some.parquet"
        write(path)
        ranks = [(0, rank, 3, done, rank / 1000) for rank, done in enumerate(RESUMED)]
        for name, programs in {
            "one": [(0, 0, 1, 0, 0.0)],
            "two, with different seeds": [(seed, 0, 1, 0, 0.0) for seed in (0, 1)],
            "three ranks, resumed at different steps": ranks,
        }.items():
            alone = [run(path, [each]) for each in programs]
            before, slowest = sum(decoded for decoded, _ in alone), max(seconds for _, seconds in alone)
            decoded, seconds = run(path, programs)
            worst = max(worst, decoded / before)
            print(f"| {name} | {before} | {decoded} | {slowest:.1f} | {seconds:.1f} |", flush=True)
    return int(worst > 1.1)


if __name__ == "__main__":
    if sys.argv[1:2] == [_ME]:
        program(sys.argv[2], *map(int, sys.argv[3:7]), float(sys.argv[7]))
    else:
        sys.exit(main())
