"""The command `penstock pack`, which packs a folder of images into one `.rec` file."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from penstock._pixels import open_image
from penstock._printable import counted, printable
from penstock._system.limits import usable_cpus
from penstock.backends._base import DEFAULT
from penstock.image import ImageFolder, Transform
from penstock.loader import DataLoader
from penstock.records._recordfile import RecordWriter, idx_path
from penstock.source._dataset import Dataset

# isort: split
import simplejpeg  # after penstock.image, whose error says how to install it

BATCH = 16
QUALITY = 95  # as in MXNet's own tool
MOST_LISTED = 20  # skipped files that are listed


def run(options: argparse.Namespace) -> int:
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        _check(options)
        images = _images(options)
        skipped, size, seconds = _pack(images, options)
    except (OSError, ValueError) as error:
        errors.print(printable(f"penstock pack: {error}", lines=True))
        if hasattr(error, "__notes__"):  # the loader added them: the error came from a sample
            errors.print("Nothing was written. --skip-bad leaves such files out.")
        return 1
    console = Console(soft_wrap=True, highlight=False, markup=False)
    classes = f" of {len(images.classes)} classes" if images.classes else ""
    console.print(f"{len(images) - len(skipped):,} images{classes}, {size / 1e6:,.1f} MB, in {seconds:.1f} s")
    console.print(f"  {printable(options.out)}\n  {printable(idx_path(options.out))}")
    if skipped:
        errors.print(f"{counted(len(skipped), 'file')} {'was' if len(skipped) == 1 else 'were'} left out:")
        for _, why in skipped[:MOST_LISTED]:
            errors.print(f"  {printable(str(why))}")
        if len(skipped) > MOST_LISTED:
            errors.print(f"  and {len(skipped) - MOST_LISTED:,} more")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Checks the options in advance, so that a mistake is reported before hours of work."""
    if not options.out.endswith(".rec"):
        raise ValueError(f"the name of the file to write must end in .rec, but it is {options.out}.")
    if options.quality is not None and options.resize is None:
        raise ValueError("--quality applies to resized images. Without --resize files are packed unchanged.")
    folder = os.path.dirname(options.out)
    if folder and not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder} to write to.")
    for path in (options.out, idx_path(options.out)):
        if os.path.isdir(path):
            raise IsADirectoryError(f"{path} is a folder, not a file to write.")
    existing = [path for path in (options.out, idx_path(options.out)) if os.path.lexists(path)]
    if existing and not options.force:
        raise FileExistsError(f"{' and '.join(existing)} would be replaced. Pass --force to replace them.")


# How the advice in ImageFolder's messages reads on the command line.
ADVICE = (
    ("ImageFolder: ", ""),
    ("For images without labels pass labels=False; for", "For"),
    (" Without labels pass labels=False.", ""),
    ("pass listing=", "pass --list"),
)


def _images(options: argparse.Namespace) -> ImageFolder:
    try:
        return ImageFolder(options.folder, listing=options.list)
    except (OSError, ValueError) as error:
        message = str(error)
        for in_python, in_shell in ADVICE:
            message = message.replace(in_python, in_shell)
        raise ValueError(message) from error


def _pack(images: ImageFolder, options: argparse.Namespace) -> tuple[list[tuple[Any, Exception]], int, float]:
    """Packs the samples. Returns the skipped samples, the file's size in bytes, and the seconds taken."""
    start = time.perf_counter()
    dataset = Encoded(images, options.resize, options.quality or QUALITY)
    workers = usable_cpus() if options.workers is None else options.workers
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=options.shuffle is not None,
        seed=options.shuffle or 0,
        num_workers=workers,
        backend=DEFAULT if workers else None,
        on_error="skip" if options.skip_bad else "raise",
    )
    with RecordWriter(options.out) as writer, loader, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Every sample of epoch")  # the end says so, and lists the files
        batches = loader.batches()
        # The workers start before the bar, which has a thread: with threads, penstock does not fork.
        batch = next(batches, None)
        with _bar() as bar:
            task = bar.add_task("packing", total=len(images))
            while batch is not None:
                assert batch.index is not None
                encoded, labels = batch.data
                for data, label, key in zip(encoded, labels.tolist(), batch.index.tolist(), strict=True):
                    try:
                        writer.write(data, label, key)
                    except ValueError as error:  # too large for the format
                        raise ValueError(f"{os.path.join(images.root, images.paths[key])}: {error}") from error
                batch = next(batches, None)
                bar.update(task, completed=len(writer) + len(loader.skipped))
        if len(writer) == 0:
            raise ValueError(f"none of the {len(images):,} files is an image. The first: {loader.skipped[0][1]}")
    return loader.skipped, os.path.getsize(options.out), time.perf_counter() - start


class Encoded(Dataset[Any]):
    """The images to pack, as file contents. Only images whose shorter side is longer than `resize` are resized."""

    def __init__(self, images: ImageFolder, resize: int | None, quality: int) -> None:
        self._images, self._resize, self._quality = images, resize, quality
        self._shrink = Transform(resize=resize, dtype="uint8", layout="HWC", train=False)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, key: int) -> tuple[bytes, Any]:
        data, label, name = self._images.read(key)
        picture = open_image(data, "rgb", name)
        if self._resize is None or min(picture.height, picture.width) <= self._resize:
            # Stored unchanged. Decoding it, as small as possible, is the only way to know that it is complete.
            picture.pixels(picture.height, 8, lambda size: np.empty(size, np.uint8))
            return data, label
        pixels = self._shrink(data, name=name)
        encoded: bytes = simplejpeg.encode_jpeg(pixels, self._quality, "RGB", "420")
        return encoded, label


def _bar() -> Progress:
    console = Console(stderr=True)
    text, bar = TextColumn("{task.description}"), BarColumn()
    columns = text, bar, MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
