"""`CaffeLMDB`: reads Caffe's LMDB of Datum."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import RecordError
from penstock.records._datum import Datum, DatumError, parse
from penstock.records._lmdbfile import LMDBFile
from penstock.records._samples import FilePath, Samples, StoredImage, position
from penstock.source._packed import PackedList

if TYPE_CHECKING:
    from penstock.image import Transform

Channels = Literal["bgr", "rgb"]


class CaffeLMDB(Samples):
    """Caffe's LMDB of Datum, in key order: samples `(array, label)` with the axes (channels, height, width).

    Raw data is uint8, and `float_data` is float32. Encoded images are decoded (which needs the extra "image"), gray
    ones to one channel. Three channels of uint8 are in Caffe's order, BGR; `color="rgb"` reverses them.

    With a `transform` of `penstock.image` a sample is `(image, label)`, in the transform's own order of channels: use
    `Transform(color="bgr")` for a network that was trained with Caffe. `labels=False` leaves the labels out.

    No LMDB library is needed. Any number of threads and processes may read at once, as long as no program writes.
    `path` is the folder, or the file in it; `keys` has the keys. LMDB has no checksums, so a wrong byte inside a
    value may not be noticed; all other damage raises `RecordError`.
    """

    def __init__(
        self, path: FilePath, transform: Transform | None = None, labels: bool = True, color: Channels = "bgr"
    ) -> None:
        if color not in ("bgr", "rgb"):
            raise ValueError(f"color must be 'bgr' or 'rgb', but it is {color!r}.")
        if transform is not None and color != "bgr":
            raise ValueError(
                f"color={color!r} applies only without a transform, which has its own: {transform.color!r}."
            )
        self.path = os.fspath(path)
        stored = StoredDatums(self.path, color, labels)
        self.keys: PackedList[bytes] = stored.file.keys
        super().__init__(stored, transform, labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {len(self)} samples)"


class StoredDatums:
    """The Datums of an LMDB file, by position."""

    def __init__(self, path: str, color: Channels, labels: bool) -> None:
        self.file = LMDBFile(os.path.join(path, "data.mdb") if os.path.isdir(path) else path)
        self._color, self._labels = color, labels

    def __len__(self) -> int:
        return len(self.file)

    def sample(self, at: int) -> Any:
        datum, name = self._datum(at)
        array: NDArray[Any] = _decoded(bytes(datum.data), name) if datum.encoded else datum.array()
        if self._color == "rgb" and array.dtype == np.uint8 and len(array) == 3:
            array = array[::-1]
        array = array.copy()  # not a view of the bytes that were read
        return (array, datum.label) if self._labels else array

    def image(self, at: int) -> StoredImage:
        datum, name = self._datum(at)
        if datum.encoded:
            return bytes(datum.data), datum.label, name
        array = datum.array()
        return (array[::-1] if len(array) == 3 else array).transpose(1, 2, 0), datum.label, name

    def _datum(self, at: int) -> tuple[Datum, str]:
        at = position(at, len(self), self.file.path)
        name = f"{self.file.path}, key {self.file.keys[at]!r}, byte {self.file.offset(at):,}"
        try:
            return parse(self.file.value(at)), name
        except DatumError as error:
            raise RecordError(
                f"{name}: this is not a Caffe Datum: {error}. The file is damaged, or has another format."
            ) from None


def _decoded(data: bytes, name: str) -> NDArray[np.uint8]:
    """The pixels with channels first, in BGR; one channel for a gray image, as Caffe decodes it."""
    from penstock.image._decode import decode  # late: raw data does not need its libraries

    gray = _is_gray(data)
    pixels = decode(data, "gray" if gray else "bgr", name)
    return pixels[np.newaxis] if gray else pixels.transpose(2, 0, 1)


def _is_gray(data: bytes) -> bool:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return Image.getmodebase(image.mode) == "L"
    except Exception:
        return False  # decoding it raises the error
