"""The command `penstock demo`: a small job that checks its own results.

Three runs load the same two epochs of random resized crops from a memory-mapped file. The first run has no workers,
and the second has two. In the third, a worker is killed, and later the loader is stopped and resumed with fewer
workers. The batches of all three runs are hashed and must be equal. If torch is installed, torch's DataLoader also
loads two epochs, for comparison. On a system without worker processes, the workers are threads, and none is killed.
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

from penstock._at_work import at_work
from penstock._measure.gauges import delay_ns
from penstock._system.platform import HAS_PROCESSES
from penstock.backends._base import DEFAULT
from penstock.loader import DataLoader
from penstock.random import rng
from penstock.stats._units import share

SAMPLES, SIDE, SMALLEST, CROP = 2_000, 48, 24, 40
BATCH, WORKERS, EPOCHS, SEED = 64, 2, 2, 0
INLINE = "penstock, inline"
KIND = "workers" if HAS_PROCESSES else "threads"
CONTENDED = 0.1  # the share of the time spent waiting for a processor; it is below 0.03 on a quiet machine
KILL_AFTER, STOP_AFTER, WORKERS_AFTERWARDS = 10, 20, 1

Floats = np.ndarray[Any, np.dtype[np.float32]]
Sample = tuple[Floats, np.int64]


class Pictures:
    """Random resized crops of pictures, with labels. The crops are computed in numpy, to keep the workers busy."""

    def __init__(self, folder: Path) -> None:
        self.pixels = np.load(folder / "pixels.npy", mmap_mode="r")
        self.labels = np.load(folder / "labels.npy")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: int) -> Sample:
        draw = _generator()
        side = int(draw.integers(SMALLEST, SIDE + 1))
        top, left = draw.integers(0, SIDE - side + 1, 2)
        crop = self.pixels[key, top : top + side, left : left + side].astype(np.float32)
        if draw.random() < 0.5:
            crop = crop[:, ::-1]
        scaled = _resized(_resized(crop, 0), 1).transpose(2, 0, 1)
        contrast, mean = draw.uniform(0.8, 1.2), scaled.mean()
        scaled = np.clip((scaled - mean) * np.float32(contrast) + mean, 0, 255)
        return np.ascontiguousarray(scaled / np.float32(127.5) - 1), self.labels[key]


def _generator() -> np.random.Generator:
    """Returns penstock's generator for the sample. With torch's loader, whose batches are not compared, a new one."""
    return rng() if at_work.source is not None else np.random.default_rng()


def _resized(picture: Floats, axis: int) -> Floats:
    position = np.linspace(0, picture.shape[axis] - 1, CROP, dtype=np.float32)
    before = position.astype(np.intp)
    after = np.minimum(before + 1, picture.shape[axis] - 1)
    share = (position - before.astype(np.float32)).reshape((-1, 1, 1) if axis == 0 else (-1, 1))
    resized: Floats = picture.take(before, axis) * (1 - share) + picture.take(after, axis) * share
    return resized


@dataclass(slots=True)
class Tally:
    digest: str = ""
    batches: int = 0
    delivered: int = 0
    seconds: float = 0.0
    waited: float = 0.0


def run() -> int:
    console, had_no_processor, begun = Console(), delay_ns(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name:
        tallies = _tallies(console, Path(name))
    code = _report(console, tallies)
    contended = (delay_ns() - had_no_processor) * 1e-9 / (time.perf_counter() - begun)
    if contended > CONTENDED:
        console.print(
            f"Other programs used the processors: this one waited for a processor {share(contended)} of its time, so "
            "the times above say little. Run the demo again when the machine is quiet.",
            highlight=False,
        )
    return code


def _tallies(console: Console, folder: Path) -> dict[str, Tally]:
    _write_pictures(folder)
    dataset = Pictures(folder)
    size = sum(file.stat().st_size for file in folder.iterdir())
    console.print(f"{SAMPLES:,} pictures, {size / 1e6:.0f} MB, {EPOCHS} epochs in batches of {BATCH}")
    troubled = "killed and resumed" if HAS_PROCESSES else "resumed"
    streams = {
        INLINE: _epochs(_loader(dataset, 0)),
        f"penstock, {WORKERS} {KIND}": _epochs(_loader(dataset, WORKERS)),
        f"penstock, {troubled}": _troubled(console, dataset),
    }
    if importlib.util.find_spec("torch") is not None:
        streams[f"torch DataLoader, {WORKERS} workers"] = _epochs(_torch_loader(dataset))
    else:
        console.print("torch is not installed, so its loader is left out")
    return {name: _stream(console, name, batches) for name, batches in streams.items()}


def _write_pictures(folder: Path) -> None:
    """Writes random pictures: 6 x 6 pixels of noise, enlarged to full size, with some grain added."""
    noise = np.random.default_rng(SEED)
    shape = (SAMPLES, SIDE, SIDE, 3)
    pixels = np.lib.format.open_memmap(folder / "pixels.npy", mode="w+", dtype=np.uint8, shape=shape)
    for start in range(0, SAMPLES, 500):
        coarse = noise.integers(0, 224, (500, 6, 6, 3), dtype=np.uint8)
        grain = noise.integers(0, 32, (500, SIDE, SIDE, 3), dtype=np.uint8)
        pixels[start : start + 500] = coarse.repeat(SIDE // 6, 1).repeat(SIDE // 6, 2) + grain
    pixels.flush()
    np.save(folder / "labels.npy", noise.integers(0, 10, SAMPLES))


def _loader(dataset: Pictures, workers: int) -> DataLoader[Any]:
    backend = DEFAULT if workers else None
    return DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers, backend=backend, seed=SEED)


def _troubled(console: Console, dataset: Pictures) -> Generator[Any, None, None]:
    """Yields the batches of all epochs. Kills a worker, and later stops and resumes with fewer workers."""
    with _loader(dataset, WORKERS) as loader:
        for batches, batch in enumerate(loader, 1):
            yield batch
            if batches == KILL_AFTER and HAS_PROCESSES:
                pid = loader.workers[0].pid
                os.kill(pid, signal.SIGKILL)
                console.print(f"  worker {pid} is killed after {batches} batches")
            if batches == STOP_AFTER:
                break
        state = json.dumps(loader.state_dict())
    console.print(f"  stopped after {batches} batches with a state of {len(state)} bytes")
    with _loader(dataset, WORKERS_AFTERWARDS) as loader:
        loader.load_state_dict(json.loads(state))
        console.print(f"  resumed in a new loader with {WORKERS_AFTERWARDS} {KIND[:-1]}")
        yield from _epochs(loader)


def _stream(console: Console, name: str, batches: Generator[Any, None, None]) -> Tally:
    """Reads all epochs and shows a progress bar. Each batch is hashed, in place of a training step."""
    tally, hashed = Tally(), hashlib.sha256()
    start = time.perf_counter()
    with closing(batches):
        batch = next(batches)
        tally.waited = time.perf_counter() - start
        columns = TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(name, total=EPOCHS * -(-SAMPLES // BATCH))
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


def _torch_loader(dataset: Any) -> Iterable[Any]:
    from torch.utils.data import DataLoader as TorchLoader

    return TorchLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)


def _report(console: Console, tallies: dict[str, Tally]) -> int:
    table = Table("", "batches/s", "waited s", "delivered MB", "batches")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, tally in tallies.items():
        rate, megabytes = f"{tally.batches / tally.seconds:,.0f}", f"{tally.delivered / 1e6:,.1f}"
        table.add_row(name, rate, f"{tally.waited:.2f}", megabytes, str(tally.batches))
    console.print(table)
    console.print("waited s: how long the loop waited for a batch (its training step is hashing the batch)")

    wrong = _failures(tallies)
    for line in wrong:
        console.print(f"[bold red]failed:[/] {line}", highlight=False)
    if not wrong:
        digest = tallies[INLINE].digest[:16]
        console.print(f"penstock's three runs gave the same bytes, batch for batch: {digest}")
    return 1 if wrong else 0


def _failures(tallies: dict[str, Tally]) -> list[str]:
    steps, wrong = EPOCHS * -(-SAMPLES // BATCH), []
    expected = EPOCHS * SAMPLES * (3 * CROP * CROP * 4 + 8)
    inline = tallies[INLINE]
    for name, tally in tallies.items():
        if name.startswith("penstock") and tally.digest != inline.digest:
            wrong.append(f"the batches differ: {tally.digest[:16]} {name}, {inline.digest[:16]} inline")
        if (tally.batches, tally.delivered) != (steps, expected):
            got = f"{tally.batches} batches of {tally.delivered} bytes in total"
            wrong.append(f"{name} delivered {got}, not {steps} of {expected}")
    return wrong
