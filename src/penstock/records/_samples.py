"""The base of datasets that read one file: a transform turns the stored data into images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from operator import index as as_int
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex

from numpy.typing import NDArray

from penstock.source._dataset import Dataset

if TYPE_CHECKING:
    from penstock.image import Images, Transform

FilePath = str | os.PathLike[str]
StoredImage = tuple[bytes | NDArray[Any], Any, str]


class Stored(Protocol):
    """The samples of a file by position; negative positions count from the end."""

    def __len__(self) -> int: ...
    def sample(self, at: int) -> Any: ...
    def image(self, at: int) -> StoredImage:
        """The image, encoded or as RGB pixels, its label, and its name for errors."""
        ...


class Samples(Dataset[Any]):
    """The samples of a file: as stored or, with a transform, `(image, label)` as in ImageFolder."""

    def __init__(self, stored: Stored, transform: Transform | None, labels: bool) -> None:
        self._stored = stored
        self.transform = transform
        self.labels = labels
        check_transform(transform, labels)

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, key: Any) -> Any:
        return self._stored.sample(key) if self.transform is None else self._images()[key]

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    @property
    def __gather__(self) -> Callable[[Any, Any], Any]:
        """The method of `Images`; missing without a transform."""
        if self.transform is None:
            raise AttributeError(f"a {type(self).__name__} without a transform has no __gather__")
        return lambda keys, empty: self._images().__gather__(keys, empty)

    def _images(self) -> Images:
        # Imported late: reading the stored data does not need its libraries. Made for each call, so that
        # `loader.update(transform=...)` has an effect.
        from penstock.records._images import StoredImages

        return StoredImages(self._stored, self.transform, self.labels)


def position(at: SupportsIndex, n: int, path: str) -> int:
    found = as_int(at)
    if not -n <= found < n:
        raise IndexError(f"sample {found} is not in {path}, which has {n:,} samples.")
    return found % n


def check_transform(transform: Transform | None, labels: bool) -> None:
    if transform is not None:
        from penstock.image import Images  # late: see _images()

        Images(transform, labels)
