"""Rows of 1,024 token ids from Parquet, shuffled: `python -m bench.tables` beside Hugging Face's readers.

Each loader has a process of its own and 2 workers. All are read once before, so that files, caches and mapped tables
are warm; then they are measured in turn, several rounds, and the medians are compared. A batch has 64 rows: a numpy
array, or a tensor for the peers. Exits with 1 if penstock's Parquet has less than 3 times the rate of a map-style
dataset in torch's DataLoader, or less than 2 times that of streaming. Needs `datasets`.

The rows marked "small keep" show the worst case: a random order over row groups that are not kept, so that nearly
every row costs the decoding of its whole row group. With `shuffle="blocks"` and a window that fits, each worker
decodes a row group once in an epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROWS, LENGTH, BATCH, WORKERS, FILES = 40_000, 1024, 64, 2, 4
BUFFER = 10_000  # rows in the shuffle buffer of the stream
KEEP_LITTLE = 16 << 20


def write(folder: Path, row_group: int) -> None:
    """The files: 156 MB of ids, as Snappy-compressed Parquet."""
    import pyarrow as pa
    import pyarrow.parquet

    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(FILES):
        ids = rng.integers(0, 50_000, (ROWS // FILES, LENGTH), np.int32)
        edges = np.arange(0, ids.size + 1, LENGTH, np.int32)
        table = pa.table({"ids": pa.ListArray.from_arrays(edges, ids.reshape(-1))})
        path = folder / f"{number}.parquet"
        pa.parquet.write_table(table, path, row_group_size=row_group, use_dictionary=False)


# The loaders: each returns an endless iterator over arrays or tensors of 64 rows.


def endless(loader: Any) -> Iterator[Any]:
    while True:
        for batch in loader:
            yield batch["ids"]


def parquet(folder: Path, shuffle: bool | str = True, window: int | None = None, **options: Any) -> Iterator[Any]:
    from penstock import DataLoader
    from penstock.formats import Parquet

    data = Parquet(folder, **options)
    order = {"shuffle": shuffle, "window": window, "seed": 0}
    return endless(DataLoader(data, BATCH, **order, num_workers=WORKERS, last_batch="drop"))


def parquet_as_tensors(folder: Path) -> Iterator[Any]:
    from penstock.formats import Parquet
    from penstock.torch import DataLoader

    # Workers that end with the epoch would take the row groups that they keep with them.
    options: dict[str, Any] = {"seed": 0, "num_workers": WORKERS, "drop_last": True, "persistent_workers": True}
    return endless(DataLoader(Parquet(folder), BATCH, shuffle=True, **options))


def map_style(folder: Path) -> Any:
    import datasets

    datasets.disable_progress_bars()
    files = sorted(map(str, folder.glob("*.parquet")))
    return datasets.Dataset.from_parquet(files, cache_dir=str(folder.parent / "cache"))


def hugging_face(folder: Path) -> Iterator[Any]:
    from penstock import DataLoader
    from penstock.formats import HuggingFace

    data = HuggingFace(map_style(folder))
    return endless(DataLoader(data, BATCH, shuffle=True, seed=0, num_workers=WORKERS, last_batch="drop"))


def peer_map_style(folder: Path, form: str = "torch") -> Iterator[Any]:
    from torch.utils.data import DataLoader

    data: Any = map_style(folder).with_format(form)
    return endless(
        DataLoader(
            data, BATCH, shuffle=True, num_workers=WORKERS, drop_last=True, persistent_workers=True
        )
    )


def peer_stream(folder: Path, form: str = "torch") -> Iterator[Any]:
    import datasets
    from torch.utils.data import DataLoader

    files = sorted(map(str, folder.glob("*.parquet")))
    stream: Any = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    stream = stream.shuffle(seed=0, buffer_size=BUFFER).with_format(form)
    return endless(DataLoader(stream, BATCH, num_workers=WORKERS, drop_last=True, persistent_workers=True))


Loader = Callable[[Path], Iterator[Any]]
LOADERS: dict[str, tuple[str, Loader]] = {
    "penstock Parquet": ("1000", parquet),
    "penstock Parquet, tensors": ("1000", parquet_as_tensors),
    "penstock HuggingFace": ("1000", hugging_face),
    "datasets map-style, torch": ("1000", peer_map_style),
    "datasets map-style, numpy": ("1000", partial(peer_map_style, form="numpy")),
    "datasets streaming, torch": ("1000", peer_stream),
    "datasets streaming, numpy": ("1000", partial(peer_stream, form="numpy")),
    "penstock Parquet in sequence": ("1000", partial(parquet, shuffle=False)),
    "penstock, small keep, groups of 1000": ("1000", partial(parquet, keep=KEEP_LITTLE)),
    "penstock, small keep, groups of 100": ("100", partial(parquet, keep=KEEP_LITTLE)),
    "by blocks, small keep, groups of 1000": ("1000", partial(parquet, shuffle="blocks", window=3, keep=KEEP_LITTLE)),
    "by blocks, small keep, groups of 100": ("100", partial(parquet, shuffle="blocks", window=16, keep=KEEP_LITTLE)),
}
OURS = "penstock Parquet"
PEERS = {"datasets map-style": 3.0, "datasets streaming": 2.0}  # how many times as fast penstock must be


def serve(name: str, folder: Path, warm: float) -> None:
    """Reads for as many seconds as each line of standard input says, and prints the rows a second."""
    group, load = LOADERS[name]
    stream = load(folder / group)
    batch = next(stream)
    assert tuple(batch.shape) == (BATCH, LENGTH), batch.shape
    begun = time.perf_counter()
    for count, _ in enumerate(stream):  # two epochs: until each worker has read all that it keeps
        if count * BATCH > 2 * ROWS or time.perf_counter() - begun > warm:
            break
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, count, begun = float(line), 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            next(stream)
            count += 1
        print(count * BATCH / (time.perf_counter() - begun), flush=True)
    os._exit(0)  # the workers end with their parent


class Served:
    """A loader in a process of its own."""

    def __init__(self, name: str, folder: Path, warm: float) -> None:
        command = [sys.executable, "-m", "bench.tables", "--serve", name, "--folder", str(folder)]
        command += ["--warm", str(warm)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def rate(self, seconds: float) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the loader's process has ended: its error is above")
        return line.strip()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(names: list[str], folder: Path, rounds: int, seconds: float, warm: float) -> dict[str, list[float]]:
    """Only one loader is measured at a time; the others wait, with their workers."""
    served = {name: Served(name, folder, warm) for name in names}
    found: dict[str, list[float]] = {name: [] for name in names}
    try:
        for number in range(rounds):
            for name in names[:: 1 if number % 2 else -1]:
                served[name].rate(0.2)  # batches that were made while others were measured
                found[name].append(served[name].rate(seconds))
    finally:
        for each in served.values():
            each.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tables", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warm", type=float, default=30.0, help="seconds of reading beforehand, at most")
    parser.add_argument("--only", help="names of loaders, separated by semicolons")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.folder, args.warm)
    names = [OURS, *args.only.split(";")] if args.only else list(LOADERS)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = Path(temporary)
        for group in {LOADERS[name][0] for name in names}:
            write(folder / group, int(group))
        found = measure(names, folder, args.rounds, args.seconds, args.warm)
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    for name in names:
        spread = f"{min(found[name]):>9,.0f} to {max(found[name]):>9,.0f}"
        print(f"{name:<40}{medians[name]:>10,.0f} rows/s   ({spread})   {medians[OURS] / medians[name]:6.2f}x")
    print(json.dumps({name: [round(rate) for rate in rates] for name, rates in found.items()}))
    good = True
    for peer, least in PEERS.items():
        rates = [medians[name] for name in names if name.startswith(peer)]
        if rates:
            ratio = medians[OURS] / max(rates)
            good &= ratio >= least
            print(f"{OURS} / the faster {peer}: {ratio:.2f}, required: {least}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
