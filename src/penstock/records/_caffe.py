"""Caffe's LMDB of Datum."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import RecordError
from penstock.records._datum import Datum, DatumError, parse
from penstock.records._lmdbfile import LMDBFile
from penstock.records._samples import Path, Picture, Samples, position
from penstock.source._packed import PackedList

if TYPE_CHECKING:
    from penstock.image import Transform

Color = Literal["bgr", "rgb"]


class CaffeLMDB(Samples):
    """Caffe's LMDB of Datum, in the order of the keys: `(array, label)`, with the axes (channels, height, width).

    Raw data is uint8 and `float_data` float32. Encoded images are decoded (which needs the extra "image"), gray ones
    to one channel. Three channels of uint8 are in Caffe's order, BGR; `color="rgb"` turns them around.

    With a `transform` of `penstock.image` a sample is `(image, label)` as the transform makes it, in its order of
    channels: say `Transform(color="bgr")` for a network that Caffe trained. `labels=False` leaves the labels out.

    It needs no LMDB library. Any number of threads and processes may read at once, while nobody writes. `path` is the
    folder, or the file in it; `keys` has the keys. LMDB has no checksums, so a wrong byte inside of a value may not
    be noticed; all other damage is a `RecordError`.
    """

    def __init__(
        self, path: Path, transform: Transform | None = None, labels: bool = True, color: Color = "bgr"
    ) -> None:
        if color not in ("bgr", "rgb"):
            raise ValueError(f"color must be 'bgr' or 'rgb', but it is {color!r}.")
        if transform is not None and color != "bgr":
            raise ValueError(
                f"color={color!r} is for arrays. With a transform its own color counts: {transform.color!r}."
            )
        self.path = os.fspath(path)
        stored = Stored(self.path, color, labels)
        self.keys: PackedList[bytes] = stored.file.keys
        super().__init__(stored, transform, labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {len(self)} samples)"


class Stored:
    """The Datums of a file."""

    def __init__(self, path: str, color: Color, labels: bool) -> None:
        self.file = LMDBFile(os.path.join(path, "data.mdb") if os.path.isdir(path) else path)
        self._color, self._labels = color, labels

    def __len__(self) -> int:
        return len(self.file)

    def sample(self, at: int) -> Any:
        datum, name = self._datum(at)
        array: NDArray[Any] = _decoded(bytes(datum.data), name) if datum.encoded else datum.array()
        if self._color == "rgb" and array.dtype == np.uint8 and len(array) == 3:
            array = array[::-1]
        array = array.copy()  # its own, and not a view of the bytes that were read
        return (array, datum.label) if self._labels else array

    def picture(self, at: int) -> Picture:
        datum, name = self._datum(at)
        if datum.encoded:
            return bytes(datum.data), datum.label, name
        array = datum.array()
        return (array[::-1] if len(array) == 3 else array).transpose(1, 2, 0), datum.label, name

    def _datum(self, at: int) -> tuple[Datum, str]:
        at = position(at, len(self), self.file.path)
        name = f"{self.file.path}, key {self.file.keys[at]!r}, byte {self.file.place(at):,}"
        try:
            return parse(self.file.value(at)), name
        except DatumError as error:
            raise RecordError(
                f"{name}: this is not a Datum of Caffe's: {error}. The file is damaged, or of another kind."
            ) from None


def _decoded(data: bytes, name: str) -> NDArray[np.uint8]:
    """Channels first, BGR; of a gray image one channel, as Caffe decodes it."""
    from penstock.image._decode import decode  # late: libraries that raw data does without

    gray = _is_gray(data)
    pixels = decode(data, "gray" if gray else "bgr", name)
    return pixels[np.newaxis] if gray else pixels.transpose(2, 0, 1)


def _is_gray(data: bytes) -> bool:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return Image.getmodebase(image.mode) == "L"
    except Exception:
        return False  # whoever decodes it says what is wrong with it
