"""Image datasets that write directly into the batch: the base class `Images`, and `ImageFolder` for files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._files.access import Access, RemoteOptions
from penstock._files.local import AnyFile
from penstock._files.remote import THREADS
from penstock._files.too_large import refuse_large
from penstock._fill.cast import Empty, FieldMemory
from penstock._fill.collate import collate
from penstock._remote.parallel import in_parallel
from penstock.errors import CollateError, FormatError
from penstock.formats._format import FileRows, Format
from penstock.image._folders import Files, LocalFolder, RemoteFolder, find_folder
from penstock.image._transform import Transform
from penstock.plan._forecast import Forecast
from penstock.random import each
from penstock.source._dataset import Dataset
from penstock.source._folders import PICTURES
from penstock.source._packed import PackedList

StoredImage = tuple[bytes | NDArray[Any], Any, str]
"""A tuple (encoded image or pixels, label, name for error messages)."""


class Images(Dataset[Any]):
    """Images with labels. A sample is `(image, label)`, or only the image with `labels=False`.

    A subclass defines `__len__` and `read(key)`, which returns the encoded image (or its pixels, as uint8 of shape
    (height, width, 3 or 1)), its label, and a name to use in error messages. If all images have the same shape, the
    last step of the transform writes them directly into the batch.
    """

    def __init__(self, transform: Transform | None = None, labels: bool = True) -> None:
        if transform is not None and not isinstance(transform, Transform):
            raise TypeError(
                f"transform must be a penstock.image.Transform, but it is a {type(transform).__name__}. To "
                "use a function of your own, derive a dataset and define __getitem__."
            )
        self.transform = Transform() if transform is None else transform
        self.labels = labels

    def read(self, key: Any) -> StoredImage:
        """Returns the encoded image or its pixels, its label, and a name for error messages.

        Subclasses define this method.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define read(key), which returns the image, its label and its name."
        )

    def __getitem__(self, key: Any) -> Any:
        return self._made(*self.read(key))

    def _made(self, data: bytes | NDArray[Any], label: Any, name: str) -> Any:
        image = self.transform(data, name=name)
        return (image, label) if self.labels else image

    def __gather__(self, keys: Any, empty: Empty) -> Any:
        """Returns the same batch as collating the samples would. `empty(shape, dtype)` allocates the memory."""
        return self._gathered((self.read(key) for key in each(keys)), len(keys), empty)

    def _gathered(self, stored: Iterable[StoredImage], count: int, empty: Empty) -> Any:
        if type(empty) is FieldMemory:  # dtype= is applied later, to the fields of the whole batch
            empty = empty.empty
        transform = self.transform
        fixed = None if transform.shape is None else empty((count, *transform.shape), transform.dtype)
        images, names, labels = [], [], []
        for row, (data, label, name) in enumerate(stored):
            images.append(transform(data, None if fixed is None else fixed[row], name=name))
            names.append(name)
            labels.append(label)
        batch = _stacked(images, names, empty) if fixed is None else fixed
        return (batch, _labels(labels, empty)) if self.labels else batch


def _stacked(images: list[NDArray[Any]], names: list[str], empty: Empty) -> Any:
    try:
        return collate(images, empty)
    except CollateError as error:
        misfits = [f"{names[row]} is {images[row].shape}" for row in error.rows[:8]]
        raise CollateError(
            f"images of one batch must have the same shape: {names[0]} is {images[0].shape}, but "
            f"{', '.join(misfits)}. Give the transform a crop=, or a resize=(height, width)."
        ) from None


def _labels(labels: list[Any], empty: Empty) -> Any:
    try:
        return collate(labels, empty)
    except CollateError as error:
        # Labels are the second part of a sample.
        named = CollateError(str(error).replace("sample", "sample[1]", 1))
        named.rows, named.reference = error.rows, error.reference
        raise named from None


CHECKED = 8  # at least one of this many files at the beginning of a list must exist


class ImageFolder(Format, Images):
    """The images in a folder.

    Each direct subfolder is a class, which contains all images at any depth below it.

    Classes are numbered in the order of their names. `classes` holds the names, `targets` the label of each image,
    and `paths` its path relative to `root`. With `labels=False`, a sample is only an image, from anywhere below the
    folder.

    If `listing` is given, it is a text file that lists the images, and the folder is not searched. It is in Caffe's
    format, with a path and a label on each line (`cats/tom 1.jpg 0`), or in MXNet's format, with an unused number,
    one or more labels and a path, separated by tabs. Paths are relative to the folder or, if `root` itself is such a
    file, to the folder that contains the file. Labels are ints, or floats if one of them is a float, or arrays if a
    line has several. Images are opened only when they are fetched, so a missing file makes only its own sample fail.

    `root` and `listing` may be URLs. A web server does not list its files, so `listing` is needed there. `storage`,
    `cache`, `cache_bytes` and `cache_shared` are for remote files, and are explained in `penstock.formats`.
    """

    paths: PackedList[str] = PackedList(())  # type: ignore[assignment]

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Transform | None = None,
        labels: bool = True,
        *,
        listing: str | os.PathLike[str] | None = None,
        **files: Unpack[RemoteOptions],
    ) -> None:
        Images.__init__(self, transform, labels)
        access = Access.of("ImageFolder", files)
        access.check()
        self.classes: tuple[str, ...] = ()
        self._folder, file = find_folder(root, listing, access)
        self.root = self._folder.root
        targets: list[Any] = []
        if file is not None:
            paths, targets = _read_list(file, self._folder, labels)
        elif labels:
            paths, targets = self._read_classes()
        else:
            paths = _images(self._folder, "")
        self.paths = self._folder.packed(paths)
        self.targets: NDArray[Any] = np.array(targets)
        if file is not None:
            self._check_root(file.path)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def files(self) -> Sequence[AnyFile]:  # type: ignore[override]
        return Files(self._folder, self.paths)

    @property
    def edges(self) -> NDArray[np.int64]:
        """The index of each file's first row, and the total number of rows. Each image is a file and a block."""
        return np.arange(len(self) + 1)

    blocks = edges

    def locate(self, row: int) -> tuple[int, int]:
        return row, 0

    def file_rows(self, block: int) -> FileRows:
        return FileRows(block, 0, 0, 1)

    def read(self, key: int) -> tuple[bytes, Any, str]:
        file = self._folder.file(self.paths, key)
        limit = self.transform.max_sample_bytes
        if limit is not None and file.size > limit:
            refuse_large(file.path, file.size, limit)
        data = file.read(0, file.size)
        if not self.labels:
            return data, None, file.path
        label = self.targets[key]
        return data, label if label.ndim else label.item(), file.path

    def sample(self, row: int) -> Any:
        return self._made(*self.read(row))

    def samples(self, keys: Sequence[int], rows: NDArray[np.int64]) -> list[Any]:
        return [self._made(*stored) for stored in self._stored(keys, rows)]

    def __gather__(self, keys: Any, empty: Empty) -> Any:
        return self._gathered(self._stored(keys, self.checked(keys)), len(keys), empty)

    def _stored(self, keys: Any, rows: NDArray[np.int64]) -> Iterator[StoredImage]:
        """Yields the stored images of these keys. Remote images are fetched several at a time."""
        is_ours = type(self).read is ImageFolder.read  # that of a subclass may draw random numbers
        threads = THREADS if self._folder.is_remote and is_ours else 1
        found = in_parallel(lambda row, _: self.read(row), rows.tolist(), threads)
        return (next(found) for _ in each(keys))

    def __foresee__(self, forecast: Forecast) -> Any:
        # For local files, the base class would look at every file and find nothing to fetch.
        return super().__foresee__(forecast) if self._folder.is_remote else None

    def __fingerprint__(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        """A digest of the images' paths and labels. The files themselves are not read."""
        # The user may have replaced the paths by a list.
        paths = self.paths if isinstance(self.paths, PackedList) else PackedList(self.paths)
        parts: list[NDArray[Any]] = [paths.data, paths.offsets, np.asarray(self.targets)]
        digest = blake2b(b"".join(part.tobytes() for part in parts), digest_size=8)
        return f"{len(self):,} images, {digest.hexdigest()}"

    def _read_classes(self) -> tuple[list[str], list[int]]:
        self.classes = self._folder.folders()
        if not self.classes:
            raise FileNotFoundError(
                f"ImageFolder: {self.root!r} has no folders, one for each class. For images without labels "
                "pass labels=False; for a list of paths and labels pass listing=."
            )
        paths: list[str] = []
        targets: list[int] = []
        for label, name in enumerate(self.classes):
            found = _images(self._folder, name)
            paths += found
            targets += [label] * len(found)
        return paths, targets

    def _check_root(self, listing: str) -> None:
        """Raises FileNotFoundError if none of the first few files exists: `root` is then probably wrong."""
        first = list(self.paths[:CHECKED])
        if not any(map(self._folder.has, first)):
            lost = os.path.join(self.root, first[0])
            raise FileNotFoundError(
                f"ImageFolder: {listing!r} begins with {first[0]!r}, but there is no file {lost!r}. None of the "
                f"first {len(first)} files exists. Paths are relative to root, or to the folder of the list if "
                "root is the list."
            )

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"{type(self).__name__}({self.root!r}, {len(self)} images{classes})"


def _images(folder: LocalFolder | RemoteFolder, name: str) -> list[str]:
    paths = [path for path in folder.below(name) if os.path.splitext(path)[1].lower() in PICTURES]
    if not paths:
        what, remedy = (f"the class {name!r} in ", "Remove the folder, or name") if name else ("", "Name")
        raise FileNotFoundError(
            f"ImageFolder: {what}{folder.root!r} has no images (files that end in {', '.join(sorted(PICTURES))}). "
            f"{remedy} the images in a list and pass listing=."
        )
    return paths


def _read_list(file: AnyFile, folder: LocalFolder | RemoteFolder, labels: bool) -> tuple[list[str], list[Any]]:
    listing, text = file.path, file.read(0, file.size).decode("utf-8-sig", "surrogateescape")
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise FormatError(f"ImageFolder: the list {listing!r} is empty.")
    if not labels:
        return _without_labels([line for _, line in lines], folder.has), []
    paths: list[str] = []
    targets: list[Any] = []
    for number, line in lines:
        path, label = _read_line(line)
        if label is None or not path:
            raise FormatError(
                f"ImageFolder: line {number} of {listing!r} must be a path and its label, a number, with a space "
                f"between, but it is {line!r}. Without labels pass labels=False."
            )
        if targets and np.shape(label) != np.shape(targets[0]):
            raise FormatError(
                f"ImageFolder: line {number} of {listing!r} has {np.size(label)} labels, but the first has "
                f"{np.size(targets[0])}. All lines must have the same number."
            )
        paths.append(path)
        targets.append(label)
    return paths, targets


def _without_labels(lines: list[str], is_file: Callable[[str], bool]) -> list[str]:
    """Returns the paths in a listing, with any labels removed. A number at a line's end may be part of a path."""
    found = [path if label is not None else "" for path, label in map(_read_line, lines)]
    # Only the first few files are looked up, because a list may have millions of lines.
    if all(found) and not any(map(is_file, lines[:CHECKED])):
        return found
    return [
        path if path and is_file(path) and not is_file(line) else line
        for path, line in zip(found, lines, strict=True)
    ]


def _read_line(line: str) -> tuple[str, Any]:
    """Returns the path and the label in a line. The label is a number, a list of numbers, or None if missing."""
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
