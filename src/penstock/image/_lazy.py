"""PIL images that decode a JPEG when their pixels are first used, and then only what is needed."""

from __future__ import annotations

import io
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
from PIL import Image

from penstock._pixels import GetScratch, Jpeg, Pixels, formats
from penstock.image._transform import decoder_scratch

Corners = tuple[float, float, float, float]
"""The left, upper, right and lower edge of a part of an image, in pixels."""

GAP = 2
"""How many times larger than wanted an image must be after it was decoded at a reduced size."""


def rgb_by_pillow(file: Any) -> Image.Image:
    """Returns what torchvision's default loader does, except that Ghostscript is never started."""
    with Image.open(file, formats=formats()) as image:
        return image.convert("RGB")


class JpegFile:
    """The bytes of a JPEG, of which parts are decoded. Raises ValueError for a JPEG that is left to Pillow."""

    def __init__(self, data: bytes, name: object, shrink: bool) -> None:
        self._jpeg = Jpeg(data, "rgb", name, None)
        self.height, self.width = self._jpeg.stored
        if Image.MAX_IMAGE_PIXELS is not None and self.height * self.width > Image.MAX_IMAGE_PIXELS:
            raise ValueError("left to Pillow, which warns of such images, or refuses them")
        self._name, self._shrink = name, shrink

    @cached_property
    def info(self) -> dict[Any, Any]:
        with Image.open(io.BytesIO(self._jpeg.data), formats=("JPEG",)) as image:
            return image.info

    def pixels(self, part: Corners, memory: GetScratch = decoder_scratch) -> Pixels:
        """Decodes a part, whose edges are whole numbers. A damaged file is left to Pillow."""
        left, upper, right, lower = map(int, part)
        try:
            decoded = self._jpeg.decode(lower, 1, "rgb", memory)
        except ValueError:
            try:
                decoded = np.array(rgb_by_pillow(io.BytesIO(self._jpeg.data)))
            except Exception as error:
                error.add_note(f"While decoding {self._name}.")
                raise
        return decoded[upper:lower, left:right]

    def shrunk(self, part: Corners, size: tuple[int, int]) -> tuple[Pixels, Corners] | None:
        """Decodes, at a reduced size, a part that will be resized to `size`. Returns pixels, and the part's edges.

        Returns None if too few pixels would be left, or if the file is damaged.
        """
        left, upper, right, lower = part
        most = min((right - left) / (GAP * size[0]), (lower - upper) / (GAP * size[1]))
        times = next((times for times in (8, 4, 2) if times <= most), 1)
        if not self._shrink or times == 1:
            return None
        try:
            decoded = self._jpeg.decode(ceil(lower), times, "rgb", decoder_scratch)
        except ValueError:
            return None
        x, y = int(left / times), int(upper / times)
        edges = left / times - x, upper / times - y, right / times - x, lower / times - y
        return decoded[y : ceil(lower / times), x : ceil(right / times)], edges


class LazyImage(Image.Image):
    """An RGB image that is part of a JPEG file, or was made from one. Pixels and `info` are read when first used.

    As long as `_im` is None, its pixels are those of the part `_part` of `_file`.
    """

    _file: JpegFile | None = None
    _part: Corners = (0, 0, 0, 0)
    _pixels: Pixels | None = None
    _info: dict[Any, Any] | None

    @classmethod
    def part(cls, file: JpegFile, part: Corners) -> LazyImage:
        new = cls()
        new._file, new._part, new._info = file, part, None
        new._mode, new._size = "RGB", (int(part[2] - part[0]), int(part[3] - part[1]))
        return new

    def _new(self, im: Any) -> Image.Image:
        if self._file is None or self._info is not None or im.mode in ("P", "PA"):
            return super()._new(im)
        new = type(self)()
        new._file, new._info, new._im = self._file, None, im
        new._mode, new._size = im.mode, im.size
        return new

    # What Pillow's methods use.

    def load(self) -> Any:
        if self._im is None and self._file is not None:
            pixels = self._file.pixels(self._part) if self._pixels is None else self._pixels
            self._im = image_of(pixels).im
            self._pixels = None
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
        if self._im is not None or self._file is None:
            return super().__array_interface__
        if self._pixels is None:
            self._pixels = np.ascontiguousarray(self._file.pixels(self._part, lambda n: np.empty(n, np.uint8)))
            self._pixels.flags.writeable = False  # as of every PIL image
        shape, data = self._pixels.shape, self._pixels.data
        return {"version": 3, "shape": shape, "typestr": "|u1", "data": data}

    # What need not decode the whole image.

    def copy(self) -> Image.Image:
        return super().copy() if self._im is not None else self.crop((0, 0, *self.size))

    __copy__ = copy

    def convert(self, mode: str | None = None, *args: Any, **options: Any) -> Image.Image:
        is_same = mode in (None, self.mode) and not args and not options
        return self.copy() if is_same else super().convert(mode, *args, **options)

    def crop(self, box: Any = None) -> Image.Image:
        if box is not None and self._im is None and self._file is not None:
            left, upper, right, lower = map(round, box)
            if 0 <= left < right <= self.width and 0 <= upper < lower <= self.height:
                x, y, _, _ = self._part
                cropped = LazyImage.part(self._file, (x + left, y + upper, x + right, y + lower))
                cropped._info = None if self._info is None else self._info.copy()
                return cropped
        return super().crop(box)

    def resize(self, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Image.Image:
        if self._im is None and self._file is not None and resample != Image.Resampling.NEAREST:
            left, upper, right, lower = box or (0, 0, *self.size)
            x, y, _, _ = self._part
            found = self._file.shrunk((x + left, y + upper, x + right, y + lower), size)
            if found is not None:
                return self._new(image_of(found[0]).resize(size, resample, found[1], reducing_gap).im)
        return super().resize(size, resample, box, reducing_gap)


def image_of(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels))
