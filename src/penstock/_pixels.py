"""Decodes images to upright uint8 pixels of shape (height, width, 3), or (height, width) for gray.

An image is opened to learn its size, and decoded later, when it is known which pixels are needed. The `image` extra
installs the required libraries.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._files.too_large import LIMIT, refuse_large
from penstock.errors import ImageError

try:
    import cv2
    import simplejpeg
    from PIL import Image, ImageOps, UnidentifiedImageError
except ImportError as error:
    raise ImportError(f'penstock.image needs {error.name}: pip install ".[image]" in a clone of penstock') from error

Pixels = NDArray[np.uint8]
Color = Literal["rgb", "bgr", "gray"]
GetScratch = Callable[[int], Pixels]


def open_image(data: Any, color: Color, name: object, limit: int | None = None) -> Jpeg | Decoded:
    """Opens the content of an image file, or an array of pixels.

    The pixels of a file may take up at most `limit` bytes.
    """
    if isinstance(data, np.ndarray):
        return Decoded(_from_array(data, color, name))
    if data[:3] == b"\xff\xd8\xff":
        try:
            return Jpeg(data, color, name, limit)
        except ImageError:
            raise
        except ValueError:  # not a JPEG, or one that is left to Pillow
            pass
    return Decoded(_by_pillow(data, color, name, limit))


def decode(data: bytes, color: Color = "rgb", name: object = "the image", limit: int | None = LIMIT) -> Pixels:
    picture = open_image(data, color, name, limit)
    return picture.pixels(picture.height, 1, lambda nbytes: np.empty(nbytes, np.uint8))[0]


class Decoded:
    """An image that is already decoded. It has the same interface as `Jpeg`."""

    def __init__(self, pixels: Pixels) -> None:
        self._pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def pixels(self, rows: int, shrink: int, scratch: GetScratch) -> tuple[Pixels, int]:
        return self._pixels, 1


_DENSEST = 1024  # pixels per byte of a JPEG. A block of 64 pixels takes at least one bit, so 512 are possible.
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive
_FRAME = struct.Struct(">BHHB")  # bits, height, width, channels


class Jpeg:
    """A JPEG with 1 or 3 channels, decoded by libjpeg-turbo.

    `height` and `width` are those of the upright image, and `stored` is (height, width) in the file.
    """

    def __init__(self, data: bytes, color: Color, name: object, limit: int | None) -> None:
        self.data, self._color, self._name, self._limit = data, color, name, limit
        self._orientation, self._frame = survey(data)
        precision, height, width, channels = _FRAME.unpack_from(data, self._frame)
        if precision != 8 or channels not in (1, 3) or not height or not width:
            raise ValueError("left to Pillow: CMYK, which Adobe stores inverted, and invalid headers")
        most = Image.MAX_IMAGE_PIXELS
        if most is not None and height * width > 2 * most:
            raise ValueError("left to Pillow, whose error explains the limit")
        if limit is not None and height * width * channels > limit:
            refuse_large(name, height * width * channels, limit)
        _check_density(data, height * width, name)
        self.stored = height, width
        self.height, self.width = (width, height) if self._orientation > 4 else (height, width)

    def pixels(self, rows: int, shrink: int, scratch: GetScratch) -> tuple[Pixels, int]:
        """Decodes the top of an image. Returns the pixels, and the factor by which the image is shrunk.

        `rows` is the least number of rows to decode, counted at full size. `shrink` is the largest allowed factor: 1,
        2, 4 or 8. The last row and the last column may contain padding. `scratch(n)` returns a temporary buffer of n
        bytes.
        """
        height, width = self.stored
        while self._orientation > 1 and (height % shrink or width % shrink):
            shrink //= 2  # turning the image could move the padding to the front
        try:
            decoded = self.decode(height if self._orientation > 1 else rows, shrink, self._color, scratch)
        except ValueError:
            return _by_pillow(self.data, self._color, self._name, self._limit), 1
        upright = turned(decoded, self._orientation)
        return upright[:, :, 0] if self._color == "gray" else upright, shrink

    def decode(self, rows: int, shrink: int, color: Color, scratch: GetScratch) -> Pixels:
        """Works like `pixels`, but returns only the pixels, always with three axes and not turned upright.

        Raises ValueError if the file is truncated or cannot be decoded.
        """
        data: bytes | bytearray = self.data
        height, width = self.stored
        # Without the end marker the file was cut off. With it, damage is tolerated, as in Pillow and OpenCV.
        complete = data[-2:] == b"\xff\xd9"
        # The colours of a row depend on the next row of colours, which may be stored at half the height.
        enough = -(-(rows + 2 * shrink) // 16) * 16
        if complete and enough < height:
            # With a smaller height in the header the decoder skips the rows below it.
            data, height = bytearray(data), enough
            data[self._frame + 1 : self._frame + 3] = height.to_bytes(2, "big")
        # Decoding at 1/2, 1/4 or 1/8 takes less time than at full size; other factors take more.
        tall, wide = -(-height // shrink), -(-width // shrink)
        buffer = scratch(tall * wide * (1 if color == "gray" else 3))
        decoded: Pixels = simplejpeg.decode_jpeg(
            data, color, min_height=tall, min_width=wide, buffer=buffer, strict=not complete
        )
        return decoded


def _check_density(data: bytes, pixels: int, name: object) -> None:
    """Raises ImageError if a JPEG has too few bytes for its pixels. Decoders would make up the missing pixels."""
    if pixels > _DENSEST * len(data):
        raise ImageError(
            f"{name}: it is a JPEG of {pixels:,} pixels, which cannot be in its {len(data):,} bytes. The file is cut "
            "off: copy it or write it again."
        )


def turned(pixels: Pixels, orientation: int) -> Pixels:
    """Returns an upright view of the pixels. `orientation` is one of the 8 EXIF orientations."""
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def survey(data: bytes) -> tuple[int, int]:
    """Returns the EXIF orientation of a JPEG, from 1 (the default) to 8, and the offset of the frame header."""
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
    raise ValueError("no frame header of a kind that is in use")


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


def _by_pillow(data: bytes, color: Color, name: object, limit: int | None = None) -> Pixels:
    try:
        with Image.open(io.BytesIO(data), formats=formats()) as image:  # this reads the header only
            nbytes = image.width * image.height * len(image.getbands()) * (4 if image.mode in ("I", "F") else 1)
            if limit is not None and nbytes > limit:
                refuse_large(name, nbytes, limit)
            if image.format in ("JPEG", "MPO"):
                _check_density(data, image.width * image.height, name)
            return _from_pillow(ImageOps.exif_transpose(image), image.format, color, name)
    except (ImageError, MemoryError):
        raise
    except Exception as error:
        why = str(error).rstrip(".")
        if isinstance(error, UnidentifiedImageError):  # its message is only the address of a buffer
            why = "they are not in a format that Pillow reads"
        raise ImageError(f"{name}: its {len(data)} bytes cannot be decoded as an image: {why}.") from error


@cache
def formats() -> tuple[str, ...]:
    """Returns the formats that Pillow may open. PostScript is excluded: Ghostscript would execute the file."""
    Image.init()
    wanted = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "MPO", "JPEG2000", "AVIF", "TGA")
    return tuple(name for name in wanted if name in Image.OPEN)


def _from_pillow(image: Image.Image, kind: str | None, color: Color, name: object) -> Pixels:
    mode = image.mode
    # PNG and PGM have at most 16 bits; Pillow gives some of them the mode for 32 bits.
    if mode.startswith("I;16") or (mode == "I" and kind in ("PNG", "PPM")):
        # Keep the upper 8 bits, as for colour images with 16 bits. Pillow would clip everything above 255.
        return _from_array((np.asarray(image) >> 8).astype(np.uint8), color, name)
    if mode in ("I", "F"):
        raise ImageError(
            f"{name}: its pixels are {'32-bit integers' if mode == 'I' else 'floats'}, which have no defined "
            "range. Convert the file, or decode it in a dataset of your own."
        )
    if "transparency" in image.info and mode in ("P", "PA"):
        image = image.convert("RGBA")
    # Transparency is dropped and the colours stay, as in every other reader.
    pixels: Pixels = np.asarray(image.convert("L" if color == "gray" else "RGB"))
    return pixels[:, :, ::-1] if color == "bgr" else pixels


def _from_array(array: NDArray[Any], color: Color, name: object) -> Pixels:
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
