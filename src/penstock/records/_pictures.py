"""Stored samples as images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.image._dataset import Images

if TYPE_CHECKING:
    from penstock.image import Transform
    from penstock.records._samples import Picture, Stored


class Pictures(Images):
    """The samples of a file through a transform."""

    def __init__(self, stored: Stored, transform: Transform | None, labels: bool) -> None:
        super().__init__(transform, labels)
        self._stored = stored

    def __len__(self) -> int:
        return len(self._stored)

    def _source(self, key: Any) -> Picture:
        return self._stored.picture(key)
