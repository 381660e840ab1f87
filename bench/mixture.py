"""Mixtures: `python -m bench.mixture`, beside Grain's mix and Hugging Face's interleave_datasets if installed.

- "start": processor time from the lists of lengths and weights to the first batch, and the memory that it adds.
- "µs": processor time for an index (source, pass and sample), in batches of 512 positions in sequence. Of the peers,
  time to iterate, because they have no keys: their sources are ranges or columns of integers, which cost little.

The sides run in turn, and the median of several is shown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np

BATCH, LENGTH = 512, 100_000

Stream = Callable[[], Iterator[Any]]


def weights(sources: int) -> list[float]:
    return [0.7, 0.3] if sources == 2 else (1 / np.arange(1, sources + 1)).tolist()


def ours(sources: int) -> Iterator[Any]:
    from penstock.plan._mixture import MixtureOrder, Stage, whole_weights

    shares = whole_weights([Fraction(weight) for weight in weights(sources)])
    order = MixtureOrder((LENGTH,) * sources, (Stage(0, 0, shares),), seed=1)
    for first in range(0, 1 << 40, BATCH):
        yield order.at(0, np.arange(first, first + BATCH))


def grain(sources: int) -> Iterator[Any]:
    from grain import MapDataset  # type: ignore[import-not-found]

    parts = [MapDataset.range(LENGTH).shuffle(seed=1).repeat() for _ in range(sources)]
    total = sum(weights(sources))
    mixed = MapDataset.mix(parts, [weight / total for weight in weights(sources)])
    for first in range(0, 1 << 40, BATCH):
        yield [mixed[at] for at in range(first, first + BATCH)]


def huggingface(sources: int) -> Iterator[Any]:
    from datasets import Dataset, interleave_datasets  # type: ignore[import-not-found]

    parts = [
        Dataset.from_dict({"x": np.arange(LENGTH // 10)}).to_iterable_dataset().shuffle(seed=1, buffer_size=1000)
        for _ in range(sources)
    ]
    total = sum(weights(sources))
    shares = [weight / total for weight in weights(sources)]
    mixed = iter(interleave_datasets(parts, shares, seed=1, stopping_strategy="all_exhausted"))
    while True:
        yield list(islice(mixed, BATCH))


def measured(make: Stream, batches: int) -> tuple[float, float]:
    """Returns the processor time of the first batch in ms, and of an index of the next ones in µs."""
    begin = time.process_time()
    stream = make()
    next(stream)
    started = time.process_time()
    for _ in range(batches):
        next(stream)
    return (started - begin) * 1e3, (time.process_time() - started) / batches / BATCH * 1e6


def memory(make: Stream) -> float:
    """Returns the most memory that the first batch took, in MB."""
    tracemalloc.start()
    next(make())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.mixture", description=__doc__)
    options.add_argument("--times", type=int, default=5)
    args = options.parse_args()
    sides: dict[str, tuple[Callable[[int], Iterator[Any]], int]] = {"penstock": (ours, 64)}
    for name, module, run, batches in (("grain", "grain", grain, 4), ("datasets", "datasets", huggingface, 4)):
        if find_spec(module) is None:
            print(f"{name} is not installed here.")
        else:
            sides[f"{name} {version(name)}"] = run, batches
    print("levanter is not measured here: its mixture is of arrays of jax.")
    print(f"numpy {np.__version__}, Python {sys.version.split()[0]}; median of {args.times}, in turn")
    print(f"{'':20} sources  start (ms)       µs")
    for sources in (2, 500):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(args.times):
            for name, (run, batches) in sides.items():
                found[name].append(measured(lambda run=run: run(sources), batches))  # type: ignore[misc]  # noqa: B023
        for name, pairs in found.items():
            start, each = (statistics.median(column) for column in zip(*pairs, strict=True))
            print(f"{name:20} {sources:7}  {start:10.1f}  {each:7.2f}", flush=True)
    print(f"memory of 500 sources, first batch: {memory(lambda: ours(500)):.1f} MB")


if __name__ == "__main__":
    main()
