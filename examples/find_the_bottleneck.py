"""A training loop that waits for its data, and the verdicts that make it ten times as fast.

    python examples/find_the_bottleneck.py

It needs only penstock, and takes about 20 seconds. Each run reads the same 4,000 recordings, prints what
`loader.stats()` says, and the next run does what the verdict advised. The last page is in bottleneck.html.
"""

from __future__ import annotations

import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock


class Recordings(penstock.Dataset):
    """Sample i is file i of a slow store. Reading one takes 2 ms, and one in 400 takes a quarter of a second."""

    def __init__(self, folder: Path, count: int) -> None:
        self.paths = [folder / f"{number:04}.npy" for number in range(count)]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: int) -> Any:
        time.sleep(0.25 if key % 400 == 77 else 0.002)  # the store
        return np.load(self.paths[key])


def train(loader: penstock.DataLoader[Any]) -> None:
    """An epoch of a model that takes about 5 ms for each batch."""
    weights = np.zeros(64, np.float32)
    for batch in loader:
        end = time.perf_counter() + 0.005
        while time.perf_counter() < end:
            weights += 1e-3 * batch.mean(axis=(0, 1))


def run(title: str, dataset: Recordings, **settings: Any) -> float:
    begun = time.perf_counter()
    with penstock.DataLoader(dataset, batch_size=16, shuffle=True, seed=0, **settings) as loader:
        train(loader)
        seconds = time.perf_counter() - begun
        stats = loader.stats()
        loader.report("bottleneck.html")
    print(f"{title}: {seconds:.1f} s, of which the loop waited {stats.epoch.waiting:.0%}")
    print(textwrap.indent(textwrap.fill(stats.verdict, 100), "    "), end="\n\n")
    return seconds


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset = Recordings(Path(folder), 4_000)
        for number, path in enumerate(dataset.paths):
            np.save(path, np.full((100, 64), number, np.float32))
        before = run("As it was", dataset)
        # What a verdict says depends on the machine. These runs do what the verdicts said on ours.
        run("With threads", dataset, num_workers=10, backend="thread")
        after = run("With a longer queue", dataset, num_workers=10, backend="thread", prefetch_factor=8)
    print(f"{before / after:.1f} times as fast. bottleneck.html shows the last run.")


if __name__ == "__main__":
    main()
