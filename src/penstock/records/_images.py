"""The stored samples of a file as a dataset of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.image._dataset import Images

if TYPE_CHECKING:
    from penstock.image import Transform
    from penstock.records._samples import Stored, StoredImage


class StoredImages(Images):
    """The samples of a file, transformed to images."""

    def __init__(self, stored: Stored, transform: Transform | None, labels: bool) -> None:
        super().__init__(transform, labels)
        self._stored = stored

    def __len__(self) -> int:
        return len(self._stored)

    def _source(self, key: Any) -> StoredImage:
        return self._stored.image(key)
