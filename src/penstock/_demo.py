"""`penstock demo`: a real little job that checks itself.

Two epochs of random resized crops from a memory-mapped file, made by two workers, hashed batch by batch and compared
with the plain loop; the same again with a worker killed on the way, stopped, and resumed with another number of
workers; and the same job by torch's DataLoader, where torch is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
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

SAMPLES, SIDE, SMALLEST, CROP = 2_000, 48, 24, 40
BATCH, WORKERS, EPOCHS, SEED = 64, 2, 2, 0
INLINE = "penstock, inline"
KILL_AFTER, STOP_AFTER, WORKERS_AFTERWARDS = 10, 20, 1

Floats = np.ndarray[Any, np.dtype[np.float32]]
Sample = tuple[Floats, np.int64]


class Pictures:
    """Memory-mapped pictures and their labels: of each a random resized crop, at times mirrored, from -1 to 1.

    All in numpy, as a training set's own code might be, so that there is work for the workers.
    """

    def __init__(self, folder: Path) -> None:
        self.pixels = np.load(folder / "pixels.npy", mmap_mode="r")
        self.labels = np.load(folder / "labels.npy")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: int) -> Sample:
        # penstock seeds numpy's global generator for each step, so the crop does not depend on the worker.
        side = np.random.randint(SMALLEST, SIDE + 1)
        top, left = np.random.randint(0, SIDE - side + 1, 2)
        crop = self.pixels[key, top : top + side, left : left + side].astype(np.float32)
        if np.random.random() < 0.5:
            crop = crop[:, ::-1]
        scaled = _resized(_resized(crop, 0), 1).transpose(2, 0, 1)
        contrast, mean = np.random.uniform(0.8, 1.2), scaled.mean()
        scaled = np.clip((scaled - mean) * np.float32(contrast) + mean, 0, 255)
        return np.ascontiguousarray(scaled / np.float32(127.5) - 1), self.labels[key]


def _resized(picture: Floats, axis: int) -> Floats:
    """One side made CROP pixels long: between two of its own, each is as near to them as it lies."""
    place = np.linspace(0, picture.shape[axis] - 1, CROP, dtype=np.float32)
    before = place.astype(np.intp)
    after = np.minimum(before + 1, picture.shape[axis] - 1)
    share = (place - before.astype(np.float32)).reshape((-1, 1, 1) if axis == 0 else (-1, 1))
    resized: Floats = picture.take(before, axis) * (1 - share) + picture.take(after, axis) * share
    return resized


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
        streams = {
            INLINE: _epochs(_loader(dataset, 0)),
            f"penstock, {WORKERS} workers": _epochs(_loader(dataset, WORKERS)),
            "penstock, killed and resumed": _troubled(console, dataset),
        }
        if importlib.util.find_spec("torch") is not None:
            streams[f"torch DataLoader, {WORKERS} workers"] = _epochs(_torch_loader(dataset))
        else:
            console.print("torch is not installed, so its loader is not shown beside ours")
        tallies = {name: _stream(console, name, batches) for name, batches in streams.items()}
    return _report(console, tallies)


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


def _troubled(console: Console, dataset: Pictures) -> Generator[Any, None, None]:
    """The epochs, although a worker is killed on the way, and the run stopped and begun anew with fewer."""
    with _loader(dataset, WORKERS) as loader:
        for batches, batch in enumerate(loader, 1):
            yield batch
            if batches == KILL_AFTER:
                pid = loader.workers[0].pid
                os.kill(pid, signal.SIGKILL)
                console.print(f"  worker {pid} is killed after {batches} batches")
            if batches == STOP_AFTER:
                break
        state = json.dumps(loader.state_dict())
    console.print(f"  stopped after {batches} batches with a state of {len(state)} bytes")
    with _loader(dataset, WORKERS_AFTERWARDS) as loader:
        loader.load_state_dict(json.loads(state))
        console.print(f"  resumed in a new loader with {WORKERS_AFTERWARDS} worker")
        yield from _epochs(loader)


def _stream(console: Console, name: str, batches: Generator[Any, None, None]) -> Tally:
    """Read the epochs to their end behind a progress bar; hashing stands in for the training step."""
    tally, hashed = Tally(), hashlib.sha256()
    steps = EPOCHS * -(-SAMPLES // BATCH)
    start = time.perf_counter()
    with closing(batches):
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


def _torch_loader(dataset: Pictures) -> Iterable[Any]:
    """The one place where penstock's demo meets torch."""
    from torch.utils.data import DataLoader as TorchLoader

    pictures: Any = dataset  # torch's annotation asks for its own Dataset class; its code does not
    loader: TorchLoader[Any] = TorchLoader(
        pictures, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return loader


def _report(console: Console, tallies: dict[str, Tally]) -> int:
    table = Table("", "batches/s", "waited s", "delivered MB", "batches")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, tally in tallies.items():
        megabytes = f"{tally.delivered / 1e6:,.1f}"
        table.add_row(name, f"{tally.rate:,.0f}", f"{tally.waited:.2f}", megabytes, str(tally.batches))
    console.print(table)
    console.print("waited s: for how long the loop had no batch to hash, which stands for the training step")

    wrong = _untrue(tallies)
    for line in wrong:
        console.print(f"[bold red]not true:[/] {line}", highlight=False)
    if not wrong:
        inline = tallies[INLINE]
        console.print(f"penstock's three runs gave the same bytes, batch for batch: {inline.digest[:16]}")
    return 1 if wrong else 0


def _untrue(tallies: dict[str, Tally]) -> list[str]:
    """What the table claims and the run does not bear out."""
    steps, wrong = EPOCHS * -(-SAMPLES // BATCH), []
    expected = EPOCHS * SAMPLES * (3 * CROP * CROP * 4 + 8)
    inline = tallies[INLINE]
    for name, tally in tallies.items():
        if name.startswith("penstock") and tally.digest != inline.digest:
            wrong.append(f"the streams differ: {tally.digest[:16]} {name}, {inline.digest[:16]} inline")
        if (tally.batches, tally.delivered) != (steps, expected):
            wrong.append(
                f"{name} delivered {tally.batches} batches of {tally.delivered} bytes in all, "
                f"not {steps} of {expected}"
            )
    return wrong
