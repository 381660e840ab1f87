"""`Transform` turns an encoded image into the input of a network, as Caffe's data transformer does."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock._at_work import at_work, is_worker_process
from penstock._files.too_large import LIMIT, checked_limit
from penstock._pixels import Color, Pixels, open_image
from penstock.errors import ImageError
from penstock.image._cut import TRIES, Box, Cut, Size, centre_box, covering, crop_box, fitting, random_box
from penstock.random import rng

Array = NDArray[Any]

_DTYPES = ("uint8", "float16", "float32", "float64")


@dataclass(frozen=True, eq=False)
class Transform:
    """Resizes, crops and mirrors an image, then computes `(pixel - mean) * scale / std`.

    The result has the layout and dtype of the batch.

    - `resize` is an int for the shorter side, or (height, width). `crop` is an int, or (height, width).
    - In training (`train=True`), the position of the crop is random, and `mirror=True` mirrors half of the images.
      Otherwise the crop is at the centre, and nothing is mirrored. Random numbers come from `penstock.rng()`, so they
      depend on the sample, not on the worker.
    - With `area=(0.08, 1)`, a random window is resized to `crop` in training (a random resized crop). `area` has the
      minimum and maximum share of the image that the window covers. `ratio` has the minimum and maximum of the
      window's width divided by its height.
      `resize` is then used only in evaluation. If there is no `resize`, the image is resized in evaluation so that
      the crop just fits into it.
    - `mean` is a number, one number per channel, or a whole image in the same layout. A mean image has either the
      size of the image before cropping (it is then cropped in the same way) or the size of the crop. `mean` and `std`
      are in pixel values, 0 to 255.
    - With dtype "uint8", the pixel values are not normalised.
    - If the decoded pixels would take more than `max_sample_bytes` bytes, an error is raised before the image is
      decoded (docs/images.md).

    For evaluation, use `dataclasses.replace(transform, train=False)`. `shape` is the shape of every result, or None
    if it depends on the image.

    >>> transform = Transform(resize=256, crop=224, mean=(120, 110, 100), scale=0.5, train=False)
    >>> transform(np.full((300, 400, 3), 128, np.uint8))[:, 0, 0].tolist()
    [4.0, 9.0, 14.0]
    """

    resize: int | Size | None = None
    crop: int | Size | None = None
    mirror: bool = False
    mean: ArrayLike | None = None
    scale: float = 1.0
    color: Color = "rgb"
    dtype: Any = "float32"
    layout: Literal["CHW", "HWC"] = "CHW"
    train: bool = True
    area: tuple[float, float] | None = field(default=None, kw_only=True)
    ratio: tuple[float, float] = field(default=(3 / 4, 4 / 3), kw_only=True)
    std: float | Sequence[float] | None = field(default=None, kw_only=True)
    max_sample_bytes: int | None = field(default=LIMIT, kw_only=True)
    shape: tuple[int, ...] | None = field(init=False, repr=False)
    _crop: Size | None = field(init=False, repr=False)
    _normalizer: Normalizer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checked_limit(self.max_sample_bytes)
        _one_of("color", self.color, "rgb", "bgr", "gray")
        _one_of("layout", self.layout, "CHW", "HWC")
        _one_of("mirror", self.mirror, True, False)
        _one_of("train", self.train, True, False)
        crop, resize = _size_of("crop", self.crop), _size_of("resize", self.resize)
        fixed = None if isinstance(self.resize, Integral) else resize
        least = crop if fixed or not crop else (min(crop), min(crop))
        if least and resize and (least[0] > resize[0] or least[1] > resize[1]):
            raise ValueError(f"crop={self.crop} is larger than resize={self.resize}, and fits into no image.")
        if self.area is not None:
            if crop is None:
                raise ValueError("area= draws windows of many sizes: it needs crop=, the size they get.")
            _range("area", self.area, 1.0)
            _range("ratio", self.ratio, float("inf"))
        normalizer = _normalizer(self)
        if normalizer.mean_image is not None:
            normalizer.check_mean([crop] if self.area else [fixed, crop] if fixed else [])
        shape = (size := crop or fixed) and normalizer.shape(size)
        derived = {"_crop": crop, "_normalizer": normalizer, "dtype": normalizer.dtype, "shape": shape}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __call__(
        self, image: bytes | NDArray[np.uint8], out: NDArray[Any] | None = None, *, name: str = "the image"
    ) -> NDArray[Any]:
        """Transforms an image, given as the bytes of a file or as pixels.

        Pixels have the shape (height, width, 3 or 1), and are RGB or gray. If `out` is given, the result is written
        into `out`. `name` is the image's name in error messages.
        """
        if not isinstance(image, (bytes, np.ndarray, bytearray, memoryview)):
            raise TypeError(
                f"{name}: a transform takes the bytes of a file or pixels, uint8 of shape (height, width, 3 or 1), "
                f"but it is of type {type(image).__name__}. For a file pass its bytes; for a PIL image, "
                'numpy.asarray(image.convert("RGB")).'
            )
        _limit_threads(os.getpid())
        picture, normalizer = open_image(image, self.color, name, self.max_sample_bytes), self._normalizer
        cut, mirror = self._cut((picture.height, picture.width), name)
        region, to, inside = cut.region, cut.to, cut.inside
        mean = None if normalizer.mean_image is None else normalizer.mean_of(cut.before, cut.crop, name)
        pixels, times = picture.pixels(region.top + region.height, region.shrinking(to), decoder_scratch)
        box, extent = region.shrunk(times)
        pixels = _resized(pixels[box.slices()], extent, to)[inside.slices()]
        shape, dtype = normalizer.shape((inside.height, inside.width)), normalizer.dtype
        if out is None:
            out = np.empty(shape, dtype)
        elif out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
            raise ValueError(
                f"{type(self).__name__}: out must be contiguous {dtype} of shape {shape}, but it is {out.dtype} of "
                f"shape {out.shape} with strides {out.strides}. Leave out= away, and copy the result."
            )
        normalizer.write(pixels, mirror, mean, out)
        return out

    def _cut(self, image: Size, name: str) -> tuple[Cut, bool]:
        """Returns how to cut an image, and whether to mirror it. Raises ImageError if the image is too small."""
        crop, train = self._crop, self.train
        drawn: list[float] = []
        if train and (crop or self.mirror):
            # Always draw all numbers, so that one setting does not change the numbers of another.
            drawn = _draw(3 + (2 * TRIES if self.area else 0), name)
        mirror = train and self.mirror and drawn[0] < 0.5
        if self.area and train:
            assert crop is not None
            whole = Box(0, 0, *crop)
            return Cut(random_box(image, self.area, self.ratio, drawn[1:]), crop, whole, whole, crop), mirror
        to = self._resized(image)
        if crop is None:
            box = Box(0, 0, *to)
        elif crop[0] > to[0] or crop[1] > to[1]:
            resized = f", {_text_of(to)} after resize={self.resize}" if to != image else ""
            raise ImageError(
                f"{name}: the image is {_text_of(image)}{resized}, which is too small for the crop of "
                f"{_text_of(crop)}. Pass resize={max(crop)} or more."
            )
        else:
            box = crop_box(to, crop, drawn[1], drawn[2]) if train else centre_box(to, crop)
        if to == image:  # not resized: only the pixels of the crop are needed
            return Cut(box, box[2:], Box(0, 0, *box[2:]), box, to), mirror
        return Cut(Box(0, 0, *image), to, box, box, to), mirror

    def _resized(self, image: Size) -> Size:
        match self.resize:
            case None:
                return covering(image, self._crop) if self.area and self._crop else image
            case (height, width):
                return height, width
            case shorter:
                return fitting(image, int(shorter))


@cache
def _limit_threads(pid: int) -> None:
    """Limits OpenCV to one thread in a worker: other cores are busy, and OpenCV's threads do not survive a fork."""
    if is_worker_process():
        cv2.setNumThreads(0)  # not 1, which crashes if the threads of the parent are missing


def _draw(count: int, name: str) -> list[float]:
    if at_work.source is None:
        raise RuntimeError(
            f"{name}: a transform with train=True draws random numbers for the sample that a loader is fetching, but "
            "no loader is fetching one in this thread. Pass train=False, or read the samples with a DataLoader of "
            "penstock (one of penstock.torch needs seed=)."
        )
    drawn: list[float] = rng().random(count).tolist()
    return drawn


def _resized(pixels: Pixels, extent: tuple[float, float], to: Size) -> Pixels:
    """Scales the pixels by the factors that turn the size `extent` into the size `to`."""
    # Bilinear interpolation uses 4 pixels for one: an axis that shrinks to less than half is averaged first.
    height, width = extent
    down, right = to[0] / height, to[1] / width
    if down < 0.5 or right < 0.5:
        first = down if down < 0.5 else 1.0, right if right < 0.5 else 1.0
        pixels = _scaled(pixels, extent, first, cv2.INTER_AREA)
        down, right = down / first[0], right / first[1]
        extent = height * first[0], width * first[1]
    return _scaled(pixels, extent, (down, right), cv2.INTER_LINEAR)


def _scaled(pixels: Pixels, extent: tuple[float, float], by: tuple[float, float], how: int) -> Pixels:
    if by == (1.0, 1.0):
        return pixels
    if pixels.shape[:2] == extent:
        size = round(extent[0] * by[0]), round(extent[1] * by[1])
        return cv2.resize(pixels, size[::-1], interpolation=how)  # type: ignore[return-value]
    # Given factors and no size, OpenCV uses exactly these factors, and rounds the size.
    return cv2.resize(pixels, None, fx=by[1], fy=by[0], interpolation=how)  # type: ignore[return-value]


def _normalizer(transform: Transform) -> Normalizer:
    try:
        dtype = np.dtype(transform.dtype)
    except TypeError:
        dtype = np.dtype(object)
    _require(dtype.name in _DTYPES, "dtype", f"one of {', '.join(_DTYPES)}", transform.dtype)
    channels = 1 if transform.color == "gray" else 3
    planar = transform.layout == "CHW"
    mean = _numbers("mean", 0.0 if transform.mean is None else transform.mean, channels, ", or an image")
    std = _numbers("std", 1.0 if transform.std is None else transform.std, channels)
    scale = transform.scale
    _require(isinstance(scale, Real) and bool(np.isfinite(scale)), "scale", "a number", scale)
    if transform.std is not None and (std < 1).any():
        raise ValueError(
            f"std is in pixel values, 0 to 255, but it is {transform.std}. If it is for pixels from 0 to 1, multiply "
            "std and mean by 255."
        )
    changes = transform.mean is not None or transform.std is not None or scale != 1
    if changes and dtype == np.uint8:
        raise ValueError("dtype='uint8' gives the pixels unchanged: mean, scale and std need a float dtype.")
    factor = np.broadcast_to(scale / std, (channels,))
    if mean.ndim < 3:
        table = (np.arange(256) - np.broadcast_to(mean, (channels,))[:, None]) * factor[:, None]
        return Normalizer(dtype, planar, channels, table.astype(dtype) if changes else None, None, factor)
    working = np.promote_types(dtype, np.float32)
    spread = factor[:, None, None] if planar and channels > 1 else factor
    return Normalizer(dtype, planar, channels, None, mean.astype(working), spread.astype(working))


def _numbers(name: str, given: Any, channels: int, images: str = "") -> NDArray[np.float64]:
    either = "," if images else " or"
    wanted = f"{name} must be a number{either} one for each channel ({channels}){images}, but"
    try:
        value = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        is_path = images and isinstance(given, (str, os.PathLike))
        hint = " Caffe's mean_file is read by penstock.records.read_caffe_mean(path)." if is_path else ""
        raise ValueError(f"{wanted} it is {given!r}.{hint}") from None
    if value.shape not in ((), (channels,)) and not (images and value.ndim == 3):
        raise ValueError(f"{wanted} its shape is {value.shape}.")
    if not np.isfinite(value).all():
        raise ValueError(f"{name} must be finite, but it contains {value[~np.isfinite(value)][0]}.")
    return value


def _require(good: bool, name: str, what: str, value: object) -> None:
    if not good:
        raise ValueError(f"{name} must be {what}, but it is {value!r}.")


def _one_of(name: str, value: object, *allowed: object) -> None:
    good = any(value is one or (isinstance(one, str) and value == one) for one in allowed)
    _require(good, name, f"one of {', '.join(map(repr, allowed))}", value)


def _size_of(name: str, value: Any) -> Size | None:
    if value is None:
        return None
    pair = (value, value) if isinstance(value, Integral) else value
    lengths = isinstance(pair, (tuple, list)) and all(isinstance(n, Integral) and int(n) > 0 for n in pair)
    good = lengths and len(pair) == 2 and not isinstance(value, bool)
    _require(good, name, "a positive int or a pair of them, (height, width)", value)
    return int(pair[0]), int(pair[1])


def _range(name: str, value: Any, most: float) -> None:
    pair = isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(n, Real) for n in value)
    good = pair and 0 < value[0] <= value[1] <= most and value[1] < float("inf")
    upto = f"up to {most:g}" if most < float("inf") else "above 0, and finite"
    _require(good, name, f"a pair (least, most) of numbers {upto}", value)


# ---- the last step: pixels are mirrored, normalized and written into the batch --------------------------
#
# Times are for 224x224x3 on one core of the bench machine: mirror 8 µs, planes 9 µs, float32 18 µs, or 54 µs with
# mean and scale. Decoding takes 1,000 µs.

_KEPT = 1 << 25  # bytes: larger memory is freed after use


class _Scratch(threading.local):
    """Memory that each thread reuses for every sample, to avoid page faults."""

    memory: Pixels = np.empty(0, np.uint8)

    def __call__(self, nbytes: int) -> Pixels:
        memory = self.memory
        if memory.nbytes < nbytes:
            memory = np.empty(nbytes, np.uint8)
            if nbytes <= _KEPT:
                self.memory = memory
        return memory[:nbytes]


decoder_scratch, plane_scratch = _Scratch(), _Scratch()


class Normalizer(NamedTuple):
    """Computes `(pixel - mean) * factor` in the given layout and dtype."""

    dtype: np.dtype[Any]
    planar: bool
    channels: int
    table: Array | None  # results by channel and pixel; None if there are none to compute, or with a mean image
    mean_image: Array | None
    factor: Array

    def shape(self, size: tuple[Any, Any]) -> tuple[Any, ...]:
        return (self.channels, *size) if self.planar else (*size, self.channels)

    def write(self, pixels: Pixels, mirror: bool, mean: Array | None, out: Array) -> None:
        """Writes the normalised pixels into `out`. `mean` is the part of the mean image for these pixels."""
        if mirror:
            pixels = cv2.flip(pixels, 1)  # type: ignore[assignment]
            if mean is not None:
                mean = mean[..., ::-1] if self.planar else mean[:, ::-1]
        if self.channels == 1:
            out = out.reshape(pixels.shape)
            mean = None if mean is None else mean.reshape(pixels.shape)
        elif self.planar:
            planes = out if out.dtype == np.uint8 else plane_scratch(pixels.size).reshape(out.shape)
            cv2.split(pixels, list(planes))
            pixels = planes
        if mean is not None:
            np.subtract(pixels, mean, out=out, casting="same_kind")
            np.multiply(out, self.factor, out=out, casting="same_kind")
        elif self.table is None:
            if pixels is not out:
                np.copyto(out, pixels)
        elif self.channels == 1:
            cv2.LUT(pixels, self.table[0], dst=out)
        elif self.planar:
            for plane, of_channel, target in zip(pixels, self.table, out, strict=True):
                cv2.LUT(plane, of_channel, dst=target)
        else:
            cv2.LUT(pixels, np.ascontiguousarray(self.table.T)[None], dst=out)

    def check_mean(self, sizes: list[Size | None]) -> None:
        """Raises ValueError if the mean image has the wrong number of channels, or a size that is not in `sizes`.

        If `sizes` is empty or contains only None, any size is allowed.
        """
        assert self.mean_image is not None
        mean, allowed = self.mean_image.shape, [self.shape(size) for size in sizes if size]
        if (allowed and mean not in allowed) or mean[0 if self.planar else 2] != self.channels:
            wanted = " or ".join(map(str, allowed)) or self.shape(("height", "width"))
            raise ValueError(f"the mean image must be of shape {wanted}, but its shape is {mean}.")

    def mean_of(self, before: Size, crop: Box, name: str) -> Array:
        """Returns the part of the mean image for this crop. `before` is the size of the image before cropping."""
        mean = self.mean_image
        assert mean is not None
        size = mean.shape[1:] if self.planar else mean.shape[:2]
        if size == (crop.height, crop.width):
            return mean
        if size != before:
            raise ImageError(
                f"{name}: the image is {_text_of(before)} before the crop, but the mean image is {_text_of(size)}. "
                "It must have that size or the crop's: pass resize=(height, width), or a mean for each channel."
            )
        return mean[(..., *crop.slices())] if self.planar else mean[crop.slices()]


def _text_of(size: Sequence[int]) -> str:
    return f"{size[0]} x {size[1]} (height x width)"
