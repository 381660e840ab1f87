"""`ImageFolder`: images in one folder for each class, or in a list."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.image._dataset import Images
from penstock.image._transform import Transform
from penstock.source._packed import PackedList

_COMMON = {".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp"}
SUFFIXES = frozenset(_COMMON | {".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".avif"})
CHECKED = 8  # first files of a list, of which one must exist


class ImageFolder(Images):
    """The images under a folder; each folder in it is a class, with all images below it.

    Classes are numbered in the order of their names. `classes` has the names, `targets` the label of each image, and
    `paths` its path relative to `root`. With `labels=False` a sample is an image alone, anywhere below the folder.

    `listing` names a text file instead, in Caffe's format, a path and a label on each line (`cats/tom 1.jpg 0`), or
    in MXNet's, a number that is not used, one or more labels and a path, separated by tabs. Paths are relative to the
    folder or, if `root` itself is such a file, to the folder of that file. Labels are ints, floats if one of them is,
    or arrays. Images are opened when they are fetched: a missing file is an error of its sample.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Transform | None = None,
        labels: bool = True,
        *,
        listing: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(transform, labels)
        self.root = os.fspath(root)
        self.classes: tuple[str, ...] = ()
        if listing is None and os.path.isfile(self.root):
            listing, self.root = self.root, os.path.dirname(self.root)
        elif not os.path.isdir(self.root):
            raise FileNotFoundError(f"ImageFolder: there is no folder or list {self.root!r}.")
        paths: Iterable[str]
        if listing is not None:
            paths, targets = _read_list(os.fspath(listing), labels)
        elif labels:
            paths, targets = self._read_classes()
        else:
            paths, targets = list(_images(self.root, "")), []
            if not paths:
                raise FileNotFoundError(f"ImageFolder: {self.root!r} has no images ({_suffixes()}).")
        self.paths: PackedList[str] = PackedList(paths)
        self.targets: NDArray[Any] = np.array(targets)
        if listing is not None:
            self._check_root(os.fspath(listing))

    def __len__(self) -> int:
        return len(self.paths)

    def _source(self, key: int) -> tuple[bytes, Any, str]:
        path = os.path.join(self.root, self.paths[key])
        with open(path, "rb", buffering=0) as file:
            data: bytes = file.read()
        if not self.labels:
            return data, None, path
        label = self.targets[key]
        return data, label if label.ndim else label.item(), path

    def _read_classes(self) -> tuple[list[str], list[int]]:
        with os.scandir(self.root) as entries:
            self.classes = tuple(sorted(e.name for e in entries if e.is_dir() and not e.name.startswith(".")))
        if not self.classes:
            raise FileNotFoundError(
                f"ImageFolder: {self.root!r} has no folders, one for each class. For images without labels "
                "pass labels=False; for a list of paths and labels pass listing=."
            )
        paths: list[str] = []
        targets: list[int] = []
        for label, name in enumerate(self.classes):
            before = len(paths)
            paths += _images(self.root, name)
            if len(paths) == before:
                raise FileNotFoundError(
                    f"ImageFolder: the class {name!r} in {self.root!r} has no images ({_suffixes()}). Remove the "
                    "folder, or name the images in a list and pass listing=."
                )
            targets += [label] * (len(paths) - before)
        return paths, targets

    def _check_root(self, listing: str) -> None:
        """Raises if `root` is the wrong folder: none of the first files is there."""
        first = [os.path.join(self.root, path) for path in self.paths[:CHECKED]]
        if not any(map(os.path.isfile, first)):
            raise FileNotFoundError(
                f"ImageFolder: {listing!r} begins with {self.paths[0]!r}, but there is no file {first[0]!r}, and "
                f"none of the first {len(first)} exists. Paths in a list are relative to root, or to the list's own "
                "folder if the list is given as root."
            )

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"{type(self).__name__}({self.root!r}, {len(self)} images{classes})"


def _images(root: str, folder: str) -> Iterator[str]:
    """The paths, relative to root, of all images below a folder, sorted by name."""
    with os.scandir(os.path.join(root, folder)) as entries:
        found = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    for name, is_folder in found:
        path = os.path.join(folder, name)
        if is_folder:
            yield from _images(root, path)
        elif os.path.splitext(name)[1].lower() in SUFFIXES:
            yield path


def _suffixes() -> str:
    return "files that end in " + ", ".join(sorted(SUFFIXES))


def _read_list(listing: str, labels: bool) -> tuple[list[str], list[Any]]:
    paths: list[str] = []
    targets: list[Any] = []
    text = Path(listing).read_text(encoding="utf-8-sig", errors="surrogateescape")
    for number, line in enumerate(text.split("\n"), 1):
        if not (line := line.strip()):
            continue
        path, label = _read_line(line)
        if label is None or not path:
            if labels:
                raise ValueError(
                    f"ImageFolder: line {number} of {listing!r} must be a path and its label, a number, with a space "
                    f"between, but it is {line!r}. Without labels pass labels=False."
                )
            path = line
        elif labels and targets and np.shape(label) != np.shape(targets[0]):
            raise ValueError(
                f"ImageFolder: line {number} of {listing!r} has {np.size(label)} labels, but the first has "
                f"{np.size(targets[0])}. All lines must have the same number."
            )
        paths.append(path)
        targets.append(label)
    if not paths:
        raise ValueError(f"ImageFolder: the list {listing!r} is empty.")
    return paths, targets if labels else []


def _read_line(line: str) -> tuple[str, Any]:
    """A path and its label, a number or a list of numbers; None if the line has no label."""
    *numbers, path = line.split("\t")
    found = [_number(word) for word in numbers]
    if len(found) >= 2 and None not in found:  # MXNet's format, which begins with an unused number
        return path, found[1] if len(found) == 2 else found[1:]
    *before, word = line.rsplit(maxsplit=1)
    return "".join(before), _number(word)


def _number(word: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return None
