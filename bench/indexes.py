"""What opening many files costs: `python -m bench.indexes` exits with 1 if memory or time is above its limit.

100 million rows in 1,000 files, and 10,000 Parquet files, are each opened in a process of its own: seconds, growth
of its resident memory, and seconds to the first shuffled batch of a loader with 2 workers. The files are real, but
hold almost nothing: one number again and again, lines of one digit, a file with a hole. All names are links to one
file, so it is in the page cache, and takes no room. 100 MB are allowed for 100 million rows: one byte for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FILES, ROWS = 1_000, 100_000  # rows of a file
GROUP = 1_000  # rows of a row group
LENGTH = 1025  # ids of a sample
MOST_BYTES, MOST_SECONDS = 100e6, 10.0
BATCH, WORKERS = 64, 2


@dataclass(frozen=True)
class Opened:
    """A dataset that was opened: its length, seconds, growth of memory, and seconds to the first batch."""

    rows: int
    seconds: float
    nbytes: int
    first: float


def write_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(pa.table({"x": pa.repeat(7, ROWS)}), path, row_group_size=GROUP)


def write_lines(path: Path) -> None:
    """Lines, and their index: a name of a file has the index of another name, since size and time are the same."""
    from penstock.formats import JsonLines

    path.write_bytes(b"7\n" * ROWS)
    JsonLines(path)


def write_tokens(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 * ((LENGTH - 1) * ROWS + 1))


def open_parquet(paths: list[Path]) -> Any:
    from penstock.formats import Parquet

    return Parquet(paths)


def open_lines(paths: list[Path]) -> Any:
    from penstock.formats import JsonLines

    return JsonLines(paths)


def open_tokens(paths: list[Path]) -> Any:
    from penstock.formats import Tokens

    return Tokens(paths, "uint16", LENGTH, LENGTH - 1)


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[list[Path]], Any]]] = {
    "parquet": (write_parquet, open_parquet),
    "jsonl": (write_lines, open_lines),
    "bin": (write_tokens, open_tokens),
}


def write(folder: Path, kind: str, files: int) -> None:
    """The first file, and further names of it."""
    first = folder / f"{0:06}.{kind}"
    KINDS[kind][0](first)
    for number in range(1, files):
        for path in folder.glob(f"*{first.name}*"):  # the index of lines, too
            os.link(path, folder / path.name.replace(first.stem, f"{number:06}"))


def opened(kind: str, folder: Path) -> Opened:
    """In a process of its own, with the imports done and one file read before."""
    from penstock import DataLoader

    paths, make = sorted(folder.glob(f"*.{kind}")), KINDS[kind][1]
    make(paths[:1])[0]
    before, begun = resident(), time.perf_counter()
    data = make(paths)
    taken, grown = time.perf_counter() - begun, resident() - before
    begun = time.perf_counter()
    with DataLoader(data, BATCH, shuffle=True, seed=0, num_workers=WORKERS) as loader:
        next(iter(loader))
        first = time.perf_counter() - begun
    return Opened(len(data), taken, grown, first)


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def measure(kind: str, files: int) -> Opened:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = Path(temporary)
        write(folder, kind, files)
        command = [sys.executable, "-m", "bench.indexes", kind, str(folder)]
        ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return Opened(**json.loads(ran.stdout))


def main() -> int:
    if len(sys.argv) > 1:
        found = opened(sys.argv[1], Path(sys.argv[2]))
        print(json.dumps(vars(found)))
        return 0
    good = True
    print("| files | rows | opened, s | memory, MB | first batch, s |\n|---|---|---|---|---|")
    for kind, files in (("parquet", FILES), ("parquet", 10 * FILES), ("jsonl", FILES), ("bin", FILES)):
        found = measure(kind, files)
        cells = f"{found.rows:,} | {found.seconds:.2f} | {found.nbytes / 1e6:.1f} | {found.first:.2f}"
        print(f"| {files:,} .{kind} | {cells} |", flush=True)
        good &= found.nbytes < MOST_BYTES * files / FILES and found.seconds + found.first < MOST_SECONDS
    print("all as required" if good else "above the limit")
    return not good


if __name__ == "__main__":
    sys.exit(main())
