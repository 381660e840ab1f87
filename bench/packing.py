"""Packing documents into rows: `python -m bench.packing`, beside the packers of others that are installed.

The lengths are lognormal(5.8, 1.1), at most 4,096, by a seed, and the rows have 4,096 tokens. All runs are in this
process, take turns, and count processor time; the figure is the median.

- "best fit": the assignment of lengths to rows, all documents in one window.
- "windows": the whole plan, as a loader makes it: windows of 100,000 documents in shuffled order, with the tables of
  (document, begin, end) and the rows shuffled.
- TRL's packs an Arrow table, so its time includes gathering the documents, which have one byte for each token.
  Grain's packs views of one array of int8, so its time includes copying tokens. The others only assign.

Grain is measured with the first 10,000 documents, because it takes long. axolotl's is compiled by numba before it is
measured, and packs groups of 100,000.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from statistics import median

import numpy as np
from numpy.typing import NDArray

from penstock.plan import Shuffled
from penstock.plan._budget import LengthTable
from penstock.plan._packing import PackingFigures, PackWindows, best_fit, best_fit_by_kinds

ROW = 4_096

Lengths = NDArray[np.int64]
Pack = Callable[[Lengths], int]
"""Packs these lengths, and returns the number of rows."""


def lengths(n: int, seed: int = 0) -> Lengths:
    drawn = np.random.default_rng(seed).lognormal(5.8, 1.1, n).astype(np.int64)
    return np.clip(drawn, 1, ROW)


def in_windows(of: Lengths) -> int:
    windows = PackWindows(Shuffled(len(of), 1), (LengthTable(of),), (ROW,), seed=1)
    total = PackingFigures()
    for number in range(windows.count(0) or 0):
        total = total.plus(windows.figures(0, number))
    return total.rows


def concat(of: Lengths) -> int:
    return (
        PackWindows(Shuffled(len(of), 1), (LengthTable(of),), (ROW,), "concat", seed=1, window=len(of))
        .figures(0, 0)
        .rows
    )


def by_kinds(of: Lengths) -> int:
    images = np.random.default_rng(1).integers(0, 5, len(of))
    return best_fit_by_kinds(np.stack([of, images], axis=1), (ROW, 40))[1]


def trl() -> Pack:
    import pyarrow as pa
    from trl.data_utils import _pack_bfd  # type: ignore[import-not-found]

    def pack(of: Lengths) -> int:
        offsets = np.concatenate([[0], np.cumsum(of)])
        tokens = pa.array(np.zeros(offsets[-1], np.int8))
        table = pa.table({"tokens": pa.LargeListArray.from_arrays(pa.array(offsets), tokens)})
        return len(_pack_bfd(table, ROW))

    return pack


def olmo_core() -> Pack:
    from olmo_core.data.utils import InstancePacker  # type: ignore[import-not-found]

    def pack(of: Lengths) -> int:
        stops = np.cumsum(of)
        return len(InstancePacker(ROW).pack_documents(np.stack([stops - of, stops], axis=1))[0])

    return pack


def automodel() -> Pack:
    from nemo_automodel.components.datasets.llm.neat_packing import (  # type: ignore[import-not-found]
        greedy_knapsack,
    )

    return lambda of: len(greedy_knapsack(of.tolist(), ROW))


def axolotl() -> Pack:
    from axolotl.utils.samplers.multipack import pack_parallel  # type: ignore[import-not-found]

    pack_parallel(np.array([1, 2, ROW]), ROW, 100_000, 200, 1)
    return lambda of: len(pack_parallel(of, ROW, 100_000, 200, 1))


def _grain(name: str) -> Pack:
    import grain  # type: ignore[import-not-found]
    from grain import experimental

    def pack(of: Lengths) -> int:
        stops, tokens = np.cumsum(of), np.zeros(of.sum(), np.int8)
        documents = [{"tokens": tokens[stop - length : stop]} for stop, length in zip(stops, of, strict=True)]
        parent = grain.MapDataset.source(documents).to_iter_dataset(grain.ReadOptions(num_threads=0))
        packed = getattr(experimental, name)(parent, length_struct={"tokens": ROW}, num_packing_bins=128)
        return sum(1 for _ in packed)

    return pack


def grain_first_fit() -> Pack:
    return _grain("FirstFitPackIterDataset")


def grain_best_fit() -> Pack:
    return _grain("BestFitPackIterDataset")


# The maker of each peer, its package, and the most documents that it is measured with.
PEERS: tuple[tuple[str, Callable[[], Pack], str, str, int], ...] = (
    ("TRL, best fit decreasing", trl, "trl", "trl", 10**6),
    ("OLMo-core, best fit decreasing", olmo_core, "olmo_core", "ai2-olmo-core", 10**6),
    ("Automodel, knapsack", automodel, "nemo_automodel", "nemo-automodel", 10**6),
    ("axolotl, first fit", axolotl, "axolotl", "axolotl", 10**5),
    ("Grain, first fit", grain_first_fit, "grain", "grain", 10**4),
    ("Grain, best fit", grain_best_fit, "grain", "grain", 10**4),
)
OURS: tuple[tuple[str, Pack, int], ...] = (
    ("penstock, best fit", lambda of: best_fit(of, ROW)[1], 10**6),
    ("penstock, windows of 100,000", in_windows, 10**6),
    ("penstock, concat", concat, 10**6),
    ("penstock, two kinds of cost", by_kinds, 10**5),
)


def installed() -> list[tuple[str, Pack, int]]:
    found = []
    for name, make, module, package, most in PEERS:
        if importlib.util.find_spec(module) is None:
            print(f"{name}: {package} is not installed here.")
            continue
        try:
            found.append((f"{name} ({version(package)})", make(), most))
        except Exception as error:
            print(f"{name}: cannot be imported here ({type(error).__name__}: {error}).")
    return found


def measured(packers: list[tuple[str, Pack, int]], n: int, times: int) -> None:
    of = lengths(n)
    took: dict[str, list[float]] = {}
    fill: dict[str, float] = {}
    for _ in range(times):
        for name, pack, most in packers:
            some = of[:most]
            begin = time.process_time()
            rows = pack(some)
            took.setdefault(name, []).append(len(some) / (time.process_time() - begin))
            fill[name] = float(some.sum() / rows / ROW)
    for name, rates in took.items():
        spread = f"{min(rates):12,.0f} to {max(rates):12,.0f}"
        print(f"{n:9,}  {name:50} {median(rates):12,.0f}  {spread}  {fill[name]:.5f}")


def main() -> None:
    print(f"numpy {np.__version__}, Python {sys.version.split()[0]}; rows of {ROW:,} tokens")
    packers: list[tuple[str, Pack, int]] = [*OURS, *installed()]
    print(f"{'documents':>9}  {'packer':50} documents/s{'least and most':>26}      fill")
    for n, times in ((10**5, 5), (10**6, 3)):
        measured([packer for packer in packers if n == 10**5 or packer[2] >= n], n, times)


if __name__ == "__main__":
    main()
