"""PIL images that decode a JPEG only when pixels are needed, and only the part that is needed."""

from __future__ import annotations

import io
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple

import cv2
import numpy as np
from PIL import Image

from penstock._memory.guests import tensor_functions
from penstock._pixels import GetScratch, Jpeg, Pixels, formats
from penstock.image._transform import decoder_scratch

_MODES = {Image.Resampling.BILINEAR: "bilinear", Image.Resampling.BICUBIC: "bicubic"}


def rgb_by_pillow(file: Any) -> Image.Image:
    """Reads an image as torchvision's default loader does, but never starts Ghostscript."""
    with Image.open(file, formats=formats()) as image:
        return image.convert("RGB")


def fresh(nbytes: int) -> Pixels:
    return np.empty(nbytes, np.uint8)


class JpegFile:
    """An encoded JPEG. Any part of it can be decoded.

    The constructor raises ValueError for a JPEG that must be left to Pillow. If `exact` is False, a part may be
    decoded at a reduced size, and then resized by torch.
    """

    def __init__(self, data: bytes, name: object, exact: bool) -> None:
        self._jpeg = Jpeg(data, "rgb", name, None)
        self.height, self.width = self._jpeg.stored
        if Image.MAX_IMAGE_PIXELS is not None and self.height * self.width > Image.MAX_IMAGE_PIXELS:
            raise ValueError("left to Pillow, which warns of such images, or refuses them")
        self._name, self._exact = name, exact

    @cached_property
    def info(self) -> dict[Any, Any]:
        with Image.open(io.BytesIO(self._jpeg.data), formats=("JPEG",)) as image:
            return image.info

    def pixels(self, part: Excerpt, memory: GetScratch) -> Pixels:
        """Decodes a part of the image. Damaged files are decoded by Pillow."""
        try:
            decoded = self._jpeg.decode(part.lower, 1, "rgb", memory)
        except ValueError:
            try:
                decoded = np.array(rgb_by_pillow(io.BytesIO(self._jpeg.data)))
            except Exception as error:
                error.add_note(f"While decoding {self._name}.")
                raise
        return decoded[part.upper : part.lower, part.left : part.right]

    def resized(self, part: Excerpt, size: tuple[int, int], resample: Any) -> Pixels | None:
        """Decodes and resizes a part of the image, faster than Pillow.

        Returns None if pixels must be exact, if `resample` is not supported, or if the file is damaged. A large part
        is decoded at 1/2, 1/4 or 1/8 of its size, but not smaller than `size`.
        """
        mode = _MODES.get(Image.Resampling.BICUBIC if resample is None else resample)
        if self._exact or mode is None:
            return None
        left, upper, right, lower = part
        times = next((n for n in (8, 4, 2) if right - left >= n * size[0] and lower - upper >= n * size[1]), 1)
        try:
            decoded = self._jpeg.decode(lower, times, "rgb", decoder_scratch)
        except ValueError:
            return None
        x, y = left // times, upper // times
        found = decoded[y : ceil(lower / times), x : ceil(right / times)]
        if left % times or upper % times:  # torch's function begins at the edge of a pixel
            edges = left / times - x, upper / times - y, right / times - x, lower / times - y
            return np.asarray(image_of(found).resize(size, resample, edges))
        extent = (lower - upper) / times, (right - left) / times
        made: Pixels = tensor_functions().resized(found, extent, size[::-1], mode)
        return made


class Excerpt(NamedTuple):
    """A part of a JPEG, given by its edges."""

    left: int
    upper: int
    right: int
    lower: int


class LazyImage(Image.Image):
    """A PIL image that is a part of a JPEG, or is derived from such a part. Pixels and `info` are read on first use.

    As long as Pillow does not have the pixels (`_im` is None), `_stored` is either an array of pixels, or the part of
    the file to decode.
    """

    _file: JpegFile | None = None
    _stored: Excerpt | Pixels | None = None
    _info: dict[Any, Any] | None

    @classmethod
    def of(cls, file: JpegFile, stored: Excerpt | Pixels) -> LazyImage:
        new = cls()
        new._file, new._stored, new._info = file, stored, None
        if isinstance(stored, Excerpt):
            new._size = stored.right - stored.left, stored.lower - stored.upper
        else:
            new._size = stored.shape[1], stored.shape[0]
        new._mode = "RGB"
        return new

    # What Pillow's methods use.

    def _new(self, im: Any) -> Image.Image:
        if self._file is None or self._info is not None or im.mode in ("P", "PA"):
            return super()._new(im)
        new = type(self)()
        new._file, new._info, new._im = self._file, None, im
        new._mode, new._size = im.mode, im.size
        return new

    def load(self) -> Any:
        if self._im is None and self._stored is not None:
            self._im = image_of(self._decoded(decoder_scratch)).im
            self._stored = None
        return super().load()

    @property
    def im(self) -> Any:
        if self._im is None:
            self.load()
        return self._im

    @im.setter
    def im(self, im: Any) -> None:
        self._im = im

    @property
    def info(self) -> dict[Any, Any]:
        if self._info is None:
            assert self._file is not None
            self._info = self._file.info.copy()
        return self._info

    @info.setter
    def info(self, info: dict[Any, Any] | None) -> None:
        self._info = info

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self._im is not None or self._stored is None:
            return super().__array_interface__
        self._stored = np.ascontiguousarray(self._decoded(fresh))
        data = self._stored.data.toreadonly()  # as of every PIL image
        return {"version": 3, "shape": self._stored.shape, "typestr": "|u1", "data": data}

    # What Pillow would do with all pixels.

    def copy(self) -> Image.Image:
        return super().copy() if self._stored is None else self.crop((0, 0, *self.size))

    __copy__ = copy

    def convert(self, mode: str | None = None, *args: Any, **options: Any) -> Image.Image:
        is_same = mode in (None, self.mode) and not args and not options
        return self.copy() if is_same else super().convert(mode, *args, **options)

    def crop(self, box: Any = None) -> Image.Image:
        if box is not None and self._stored is not None:
            left, upper, right, lower = map(round, box)
            if 0 <= left < right <= self.width and 0 <= upper < lower <= self.height:
                return self._made(self._cropped(left, upper, right, lower))
        return super().crop(box)

    def transpose(self, method: Image.Transpose) -> Image.Image:
        if method == Image.Transpose.FLIP_LEFT_RIGHT and isinstance(self._stored, np.ndarray):
            return self._made(cv2.flip(self._stored, 1))  # type: ignore[arg-type]
        return super().transpose(method)

    def resize(self, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Image.Image:
        if isinstance(self._stored, Excerpt) and box is None and reducing_gap is None and min(size) > 0:
            assert self._file is not None
            pixels = self._file.resized(self._stored, tuple(size), resample)
            if pixels is not None:
                return self._made(pixels)
        return super().resize(size, resample, box, reducing_gap)

    def _made(self, stored: Excerpt | Pixels) -> LazyImage:
        assert self._file is not None
        new = type(self).of(self._file, stored)
        new._info = None if self._info is None else self._info.copy()
        return new

    def _cropped(self, left: int, upper: int, right: int, lower: int) -> Excerpt | Pixels:
        if isinstance(self._stored, Excerpt):
            x, y = self._stored.left, self._stored.upper
            return Excerpt(x + left, y + upper, x + right, y + lower)
        assert self._stored is not None
        return self._stored[upper:lower, left:right]

    def _decoded(self, memory: GetScratch) -> Pixels:
        if isinstance(self._stored, Excerpt):
            assert self._file is not None
            return self._file.pixels(self._stored, memory)
        assert self._stored is not None
        return self._stored


def image_of(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels))
