"""The base of datasets that read one file: a transform turns the stored data into images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from operator import index as as_int
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

from numpy.typing import NDArray

from penstock._printable import printable
from penstock.source._dataset import Dataset

if TYPE_CHECKING:
    from penstock.image import Images, Transform

FilePath = str | os.PathLike[str]
StoredImage = tuple[bytes | NDArray[Any], Any, str]


class Samples(Dataset[Any]):
    """The samples of a file: as stored or, with a transform, `(image, label)` as in ImageFolder.

    `suffixes`, `companions` and `matches` are those of `penstock.formats.Format`. `_sample` and `_source`, which is
    like `Images.read`, take positions; negative ones count from the end.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    companions: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: str, transform: Transform | None, labels: bool) -> None:
        if transform is not None:
            as_images(transform, labels)
        self.path, self.transform, self.labels = path, transform, labels

    def __len__(self) -> int:
        raise NotImplementedError

    def _sample(self, at: int) -> Any:
        raise NotImplementedError

    def _source(self, at: int) -> StoredImage:
        raise NotImplementedError

    def __getitem__(self, key: Any) -> Any:
        if self.transform is None:
            return self._sample(key)
        return as_images(self.transform, self.labels)._made(*self._source(key))

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    @property
    def __gather__(self) -> Callable[[Any, Any], Any]:
        """The method of `Images`; missing without a transform."""
        if self.transform is None:
            raise AttributeError(f"a {type(self).__name__} without a transform has no __gather__")
        return self._gathered

    def _gathered(self, keys: Any, empty: Any) -> Any:
        if self.transform is None:  # it was taken away meanwhile
            return NotImplemented
        return as_images(self.transform, self.labels)._gathered(self._source, keys, empty)


def position(at: SupportsIndex, n: int, path: str) -> int:
    found = as_int(at)
    if not -n <= found < n:
        raise IndexError(f"sample {found} is not in {printable(path)}, which has {n:,} samples.")
    return found % n


def as_images(transform: Transform | None, labels: bool) -> Images:
    from penstock.image import Images  # late: reading the stored data does not need its libraries

    return Images(transform, labels)
