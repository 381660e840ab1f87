"""The base class of record formats whose samples become images if a transform is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from penstock._files.access import FileOptions
from penstock._files.paths import Paths
from penstock._fill.cast import Empty
from penstock.formats._extents import Extents

if TYPE_CHECKING:
    from penstock.image import Images, Transform
    from penstock.image._dataset import StoredImage


class RecordSamples(Extents):
    """The samples of record files: as stored or, with a transform, `(image, label)` as in ImageFolder.

    A subclass defines two methods with the same arguments. `stored` returns a sample if there is no transform, and
    `image` returns an image for the transform. `raw` holds the bytes of the sample, `number` is the index of the
    file, and `row` is the index of the sample in the file.
    """

    def __init__(self, paths: Paths, transform: Transform | None, labels: bool, **files: Unpack[FileOptions]) -> None:
        if transform is not None:
            as_images(transform, labels)
        self.transform, self.labels = transform, labels
        super().__init__(paths, **files)

    def stored(self, raw: bytes, number: int, row: int) -> Any:
        raise NotImplementedError

    def image(self, raw: bytes, number: int, row: int) -> StoredImage:
        raise NotImplementedError

    @property
    def path(self) -> str:
        """The path of the file, or of the first file if there are several."""
        return self.files[0].path

    def decoded(self, raw: bytes, number: int, row: int) -> Any:
        if self.transform is None:
            return self.stored(raw, number, row)
        return as_images(self.transform, self.labels)._made(*self.image(raw, number, row))

    @property
    def __gather__(self) -> Callable[[Any, Empty], Any]:
        """A method like `Images.__gather__`. The attribute is missing if there is no transform."""
        if self.transform is None:
            raise AttributeError(f"a {type(self).__name__} without a transform has no __gather__")
        return self._gathered

    def _gathered(self, keys: Any, empty: Empty) -> Any:
        if self.transform is None:  # it was removed in the meantime
            return NotImplemented
        stored = (self.image(*found) for found in self._raw_samples(keys, self.checked(keys)))
        return as_images(self.transform, self.labels)._gathered(stored, len(keys), empty)


def as_images(transform: Transform | None, labels: bool) -> Images:
    from penstock.image import Images  # late: reading the stored data does not need its libraries

    return Images(transform, labels)
