"""Encoded images become pixels: upright, in the colour that is wanted, and no larger than needed.

An image is opened first, which tells its size, and decoded when it is known which of its pixels are wanted.
Pixels are uint8, (height, width, 3) or, of a gray image, (height, width).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, Protocol

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from penstock.errors import ImageError

Pixels = NDArray[np.uint8]
Color = Literal["rgb", "bgr", "gray"]
Scratch = Callable[[int], Pixels]
Size = tuple[int, int]  # height, width


class Picture(Protocol):
    """An image that is still to be decoded; `height` and `width` are those of the upright image."""

    height: int
    width: int

    def pixels(self, rows: int, shrink: int, scratch: Scratch) -> tuple[Pixels, int]:
        """At least the first `rows` of its rows, and how many times fewer pixels there are along each axis.

        That is at most `shrink`: 1, 2, 4 or 8. The last pixels of an axis may be partly padding. `scratch(n)` lends n
        bytes.
        """
        ...


def open_image(data: Any, color: Color, name: str) -> Picture:
    """An image from its file's bytes, or from its pixels: an array of uint8, RGB or gray."""
    if isinstance(data, np.ndarray):
        return Decoded(_from_array(data, color, name))
    if data[:3] == b"\xff\xd8\xff":
        try:
            return Jpeg(data, color, name)
        except ValueError:  # a kind of JPEG that simplejpeg does not know, or none
            pass
    return Decoded(_by_pillow(data, color, name))


def decode(data: bytes, color: Color = "rgb", name: str = "the image") -> Pixels:
    """All pixels of an image, in memory of their own."""
    picture = open_image(data, color, name)
    return picture.pixels(picture.height, 1, lambda nbytes: np.empty(nbytes, np.uint8))[0]


class Decoded:
    """Pixels that are there already."""

    def __init__(self, pixels: Pixels) -> None:
        self._pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def pixels(self, rows: int, shrink: int, scratch: Scratch) -> tuple[Pixels, int]:
        return self._pixels, 1


_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive
_FRAME = struct.Struct(">BHHB")  # bits, height, width, channels


class Jpeg:
    """A JPEG with one or three channels, for libjpeg-turbo."""

    def __init__(self, data: bytes, color: Color, name: str) -> None:
        self._data, self._color, self._name = data, color, name
        self._orientation, self._frame = survey(data)
        precision, height, width, channels = _FRAME.unpack_from(data, self._frame)
        if precision != 8 or channels not in (1, 3) or not height or not width:
            raise ValueError("only Pillow knows CMYK, which Adobe stores inverted; nobody knows the others")
        most = Image.MAX_IMAGE_PIXELS
        if most is not None and height * width > 2 * most:
            raise ValueError("Pillow refuses it too, and says why")
        self._size: Size = height, width
        self.height, self.width = (width, height) if self._orientation > 4 else (height, width)

    def pixels(self, rows: int, shrink: int, scratch: Scratch) -> tuple[Pixels, int]:
        data: bytes | bytearray = self._data
        height, width = self._size
        # Without its last bytes it was cut off. With them, Pillow and OpenCV take what can be decoded, and so do we.
        whole = data[-2:] == b"\xff\xd9"
        # The colours of a row need those of the row below, which may be twice as far away.
        enough = -(-(rows + 2 * shrink) // 16) * 16
        if whole and self._orientation == 1 and enough < height:
            # Rows that the header does not tell of are not decoded: what is left of each scan is skipped.
            data, height = bytearray(data), enough
            data[self._frame + 1 : self._frame + 3] = height.to_bytes(2, "big")
        while self._orientation > 1 and (height % shrink or width % shrink):
            shrink //= 2  # the padding might come first when it is turned
        channels = 1 if self._color == "gray" else 3
        # Decoding a half, a quarter or an eighth takes less time than the whole; other parts take more.
        tall, wide = -(-height // shrink), -(-width // shrink)
        buffer = scratch(tall * wide * channels)
        try:
            decoded: Pixels = simplejpeg.decode_jpeg(
                data, self._color, min_height=tall, min_width=wide, buffer=buffer, strict=not whole
            )
        except ValueError:
            return _by_pillow(self._data, self._color, self._name), 1
        upright = turned(decoded, self._orientation)
        return upright[:, :, 0] if channels == 1 else upright, shrink


def turned(pixels: Pixels, orientation: int) -> Pixels:
    """The upright image of one that is stored in one of EXIF's 8 orientations; a view."""
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def survey(data: bytes) -> tuple[int, int]:
    """EXIF's orientation of a JPEG, 1 to 8, and where its frame header is.

    The orientation is 1, upright, where there is none that can be read. Without a frame header, a ValueError.
    """
    at, orientation = 2, 1
    while data[at : at + 1] == b"\xff" and at + 10 <= len(data):
        marker, size = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in _FRAMES and size >= 8:
            return orientation, at + 4
        if marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _orientation_of_tiff(data[at + 10 : at + 2 + size])
        if marker == 0xDA or size < 2:  # the pixels begin
            break
        at += 2 + size
    raise ValueError("there is no frame header, or one of a kind that nobody uses")


def _orientation_of_tiff(tiff: bytes) -> int:
    order: Literal["little", "big"] = "little" if tiff[:2] == b"II" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)

    first = number(4, 4)
    for entry in range(first + 2, min(first + 2 + 12 * number(first, 2), len(tiff) - 11), 12):
        if number(entry, 2) == 0x0112:
            found = number(entry + 8, 2)
            return found if 1 <= found <= 8 else 1
    return 1


def _by_pillow(data: bytes, color: Color, name: str) -> Pixels:
    try:
        with Image.open(io.BytesIO(data), formats=_formats()) as image:
            return _from_pillow(ImageOps.exif_transpose(image), image.format, color, name)
    except (ImageError, MemoryError):
        raise
    except Exception as error:
        why = str(error).rstrip(".")
        if isinstance(error, UnidentifiedImageError):  # whose text is the address of the bytes
            why = "they begin like no format that Pillow reads"
        raise ImageError(f"{name}: {len(data)} bytes that cannot be decoded as an image: {why}.") from error


@cache
def _formats() -> tuple[str, ...]:
    """Images only: among all that Pillow opens are programs for Ghostscript."""
    Image.init()
    wanted = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "MPO", "JPEG2000", "AVIF", "TGA")
    return tuple(name for name in wanted if name in Image.OPEN)


def _from_pillow(image: Image.Image, kind: str | None, color: Color, name: str) -> Pixels:
    mode = image.mode
    # A PNG or PGM has at most 16 bits; Pillow's mode for some of them is that of 32.
    if mode.startswith("I;16") or (mode == "I" and kind in ("PNG", "PPM")):
        # The upper 8 bits, as of colour images with 16 bits. Pillow would cut everything above 255.
        return _from_array((np.asarray(image) >> 8).astype(np.uint8), color, name)
    if mode in ("I", "F"):
        raise ImageError(
            f"{name}: its pixels are {'32-bit integers' if mode == 'I' else 'floats'}, which have no meaning as 8 "
            "bits. Convert the file, or decode it in a dataset of your own."
        )
    if "transparency" in image.info and mode in ("P", "PA"):
        image = image.convert("RGBA")
    # Transparency is left out, as every other reader does it: the colours stay.
    pixels: Pixels = np.asarray(image.convert("L" if color == "gray" else "RGB"))
    return pixels[:, :, ::-1] if color == "bgr" else pixels


def _from_array(array: NDArray[Any], color: Color, name: str) -> Pixels:
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in (1, 3) or not array.size:
        raise ImageError(
            f"{name}: pixels must be uint8 of shape (height, width), (height, width, 1) or (height, width, 3), "
            f"but they are {array.dtype} of shape {array.shape}."
        )
    if channels == 1:
        gray = array.reshape(array.shape[:2])
        return gray if color == "gray" else cv2.cvtColor(gray, cv2.COLOR_GRAY2RGB)  # type: ignore[return-value]
    if color == "gray":
        return cv2.cvtColor(array, cv2.COLOR_RGB2GRAY)  # type: ignore[return-value]
    return array[:, :, ::-1] if color == "bgr" else array
