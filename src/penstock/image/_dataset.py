"""`Images`, the base of datasets of images: final pixels are written straight into the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from penstock._fill.cast import Empty, Into
from penstock._fill.collate import collate
from penstock.errors import CollateError
from penstock.image._transform import Transform
from penstock.random import each
from penstock.source._dataset import Dataset

Source = Callable[[Any], tuple[bytes | NDArray[Any], Any, str]]


class Images(Dataset[Any]):
    """Images with labels: a sample is `(image, label)`, or the image alone with `labels=False`.

    A subclass defines `__len__` and `_source(key)`: the encoded image (or its pixels, uint8 of shape (height,
    width, 3 or 1)), its label, and a name for errors. If all images have one shape, the last step of
    the transform writes them straight into the batch.
    """

    def __init__(self, transform: Transform | None = None, labels: bool = True) -> None:
        if transform is not None and not isinstance(transform, Transform):
            raise TypeError(
                f"transform must be a penstock.image.Transform, but it is a {type(transform).__name__}. To "
                "use a function of your own, derive a dataset and define __getitem__."
            )
        self.transform = Transform() if transform is None else transform
        self.labels = labels

    def _source(self, key: Any) -> tuple[bytes | NDArray[Any], Any, str]:
        raise NotImplementedError(
            f"{type(self).__name__} must define _source, which returns the image, its label and its name."
        )

    def __getitem__(self, key: Any) -> Any:
        return self._made(*self._source(key))

    def _made(self, data: bytes | NDArray[Any], label: Any, name: str) -> Any:
        image = self.transform(data, name=name)
        return (image, label) if self.labels else image

    def __gather__(self, keys: Any, empty: Empty) -> Any:
        """The batch of these keys, equal to the collated samples; `empty(shape, dtype)` allocates its memory."""
        return self._gathered(self._source, keys, empty)

    def _gathered(self, source: Source, keys: Any, empty: Empty) -> Any:
        if type(empty) is Into:  # dtype= is applied later, to the fields of the whole batch
            empty = empty.empty
        transform = self.transform
        fixed = None if transform.shape is None else empty((len(keys), *transform.shape), transform.dtype)
        images, names, labels = [], [], []
        for row, key in enumerate(each(keys)):
            data, label, name = source(key)
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
        named.rows = error.rows
        raise named from None
