"""`penstock demo`: a real little job that checks itself.

Two epochs of random crops from a memory-mapped file, read by two workers, hashed batch by batch and compared
with the plain loop; then the same job by torch's DataLoader, where torch is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.loader import DataLoader

SAMPLES, SIDE, CROP = 4_000, 48, 40
BATCH, WORKERS, EPOCHS, SEED = 64, 2, 2, 0

Sample = tuple[np.ndarray[Any, np.dtype[np.float32]], np.int64]


class Pictures:
    """Memory-mapped pictures and their labels: a random crop of each, at times mirrored, from -1 to 1."""

    def __init__(self, folder: Path) -> None:
        self.pixels = np.load(folder / "pixels.npy", mmap_mode="r")
        self.labels = np.load(folder / "labels.npy")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: int) -> Sample:
        # penstock seeds numpy's global generator for each step, so the crop does not depend on the worker.
        top, left = np.random.randint(0, SIDE - CROP + 1, 2)
        crop = self.pixels[key, top : top + CROP, left : left + CROP]
        if np.random.random() < 0.5:
            crop = crop[:, ::-1]
        scaled = crop.transpose(2, 0, 1).astype(np.float32, order="C")
        scaled /= 127.5
        scaled -= 1
        return scaled, self.labels[key]


@dataclass(slots=True)
class Tally:
    """What one stream came to."""

    digest: str = ""
    batches: int = 0
    delivered: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    @property
    def rate(self) -> float:
        return self.batches / self.seconds


def run() -> int:
    """Run the demo and return 0 if everything it shows is true, else 1."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name:
        folder = Path(name)
        _write_pictures(folder)
        dataset = Pictures(folder)
        size = sum(file.stat().st_size for file in folder.iterdir())
        console.print(f"{SAMPLES:,} pictures, {size / 1e6:.0f} MB, {EPOCHS} epochs in batches of {BATCH}")
        # The workers start before the bar, which has a thread: a process with threads is not forked.
        with _loader(dataset, WORKERS) as loader:
            piped = _stream(console, f"penstock, {WORKERS} workers", loader)
        with _loader(dataset, 0) as loader:
            inline = _stream(console, "penstock, inline", loader)
        tallies = {f"penstock, {WORKERS} workers": piped, "penstock, inline": inline}
        if importlib.util.find_spec("torch") is not None:
            tallies[f"torch DataLoader, {WORKERS} workers"] = _torch_tally(console, dataset)
    return _report(console, piped, inline, tallies)


def _write_pictures(folder: Path) -> None:
    """Smooth random pictures: noise of 6 x 6 blown up to the full side, plus a little grain."""
    rng = np.random.default_rng(SEED)
    shape = (SAMPLES, SIDE, SIDE, 3)
    pixels = np.lib.format.open_memmap(folder / "pixels.npy", mode="w+", dtype=np.uint8, shape=shape)
    for start in range(0, SAMPLES, 500):
        coarse = rng.integers(0, 224, (500, 6, 6, 3), dtype=np.uint8)
        grain = rng.integers(0, 32, (500, SIDE, SIDE, 3), dtype=np.uint8)
        pixels[start : start + 500] = coarse.repeat(SIDE // 6, 1).repeat(SIDE // 6, 2) + grain
    pixels.flush()
    np.save(folder / "labels.npy", rng.integers(0, 10, SAMPLES))


def _loader(dataset: Pictures, workers: int) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers, seed=SEED)


def _stream(console: Console, name: str, loader: Iterable[Any]) -> Tally:
    """Read the epochs to their end behind a progress bar; hashing stands in for the training step."""
    tally, hashed = Tally(), hashlib.sha256()
    steps = EPOCHS * -(-SAMPLES // BATCH)
    start = time.perf_counter()
    with closing(_epochs(loader)) as batches:
        batch = next(batches)
        tally.waited = time.perf_counter() - start
        with _bar(console) as bar:
            task = bar.add_task(name, total=steps)
            while batch is not None:
                for leaf in batch:
                    array = np.asarray(leaf)
                    hashed.update(array.data)
                    tally.delivered += array.nbytes
                tally.batches += 1
                bar.advance(task)
                asked = time.perf_counter()
                batch = next(batches, None)
                tally.waited += time.perf_counter() - asked
            tally.seconds = time.perf_counter() - start
    tally.digest = hashed.hexdigest()
    return tally


def _epochs(loader: Iterable[Any]) -> Generator[Any, None, None]:
    for _ in range(EPOCHS):
        yield from loader


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _torch_tally(console: Console, dataset: Pictures) -> Tally:
    """The one place where penstock's demo meets torch."""
    from torch.utils.data import DataLoader as TorchLoader

    pictures: Any = dataset  # torch's annotation asks for its own Dataset class; its code does not
    loader: TorchLoader[Any] = TorchLoader(
        pictures, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return _stream(console, f"torch DataLoader, {WORKERS} workers", loader)


def _report(console: Console, piped: Tally, inline: Tally, tallies: dict[str, Tally]) -> int:
    table = Table("", "batches/s", "waited s", "delivered MB", "batches")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, tally in tallies.items():
        megabytes = f"{tally.delivered / 1e6:,.1f}"
        table.add_row(name, f"{tally.rate:,.0f}", f"{tally.waited:.2f}", megabytes, str(tally.batches))
    console.print(table)

    wrong = _untrue(piped, inline, tallies)
    for line in wrong:
        console.print(f"[bold red]not true:[/] {line}", highlight=False)
    if not wrong:
        console.print(
            f"all {piped.batches} batches equal the inline ones, byte for byte: {piped.digest[:16]}"
        )
    return 1 if wrong else 0


def _untrue(piped: Tally, inline: Tally, tallies: dict[str, Tally]) -> list[str]:
    """What the table claims and the run does not bear out."""
    steps, wrong = EPOCHS * -(-SAMPLES // BATCH), []
    if piped.digest != inline.digest:
        wrong.append(f"the streams differ: {piped.digest[:16]} with workers, {inline.digest[:16]} inline")
    expected = EPOCHS * SAMPLES * (3 * CROP * CROP * 4 + 8)
    for name, tally in tallies.items():
        if (tally.batches, tally.delivered) != (steps, expected):
            wrong.append(
                f"{name} delivered {tally.batches} batches of {tally.delivered} bytes in all, "
                f"not {steps} of {expected}"
            )
    return wrong
