"""`loader` reads images for the datasets of other libraries, such as torchvision's `ImageFolder`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Literal, get_args

import numpy as np
from PIL import Image

from penstock._memory.guests import as_tensor
from penstock._pixels import Pixels
from penstock.image._lazy import JpegFile, LazyImage, rgb_by_pillow

Kind = Literal["pil", "numpy", "tensor", "tv_tensor"]
Encoded = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes]


def loader(kind: Kind = "pil", *, shrink: bool = False) -> Callable[[Encoded], Any]:
    """Returns a function that reads an image, for `loader=` of torchvision's `ImageFolder` and of similar datasets.

    The function takes the path, the bytes or an open binary file of an image. It replaces torchvision's default
    loader, `Image.open(path).convert("RGB")`: the image has the same size, the same pixels and the same `info`, and
    EXIF's orientation is not applied. JPEGs are decoded by libjpeg-turbo; Pillow reads CMYK, damaged files and all
    other formats.

    - `kind="pil"` gives a PIL image that decodes the JPEG when its pixels are needed. An image that is cropped first
      decodes no rows below the crop. Damage is therefore reported when the image is used.
    - With `kind="numpy"`, the result is an array of shape (height, width, 3); with "tensor", a torch tensor of shape
      (3, height, width); with "tv_tensor", an `Image` of `torchvision.tv_tensors`. All have dtype uint8.
    - With `shrink=True`, a PIL image that is resized before its pixels were used is decoded at 1/2, 1/4 or 1/8 of its
      size, as long as this is at least twice the wanted size. This is faster for large photographs, and changes
      pixels slightly (docs/images.md).

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (500, 375), "orange").save(file, "JPEG")
    >>> load = loader()
    >>> load(file.getvalue()).crop((100, 100, 400, 300)).resize((224, 224)).getpixel((0, 0))
    (255, 165, 0)
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be one of {', '.join(map(repr, get_args(Kind)))}, but it is {kind!r}.")
    if shrink not in (True, False):
        raise ValueError(f"shrink must be True or False, but it is {shrink!r}.")
    if shrink and kind != "pil":
        raise ValueError(
            f"shrink=True needs kind='pil', but kind is {kind!r}: only a PIL image waits until it is resized. With "
            "torchvision, make the tensor after the resize: ToTensor(), PILToTensor() or v2.ToImage()."
        )
    return _Loader(kind, bool(shrink))


@dataclass(frozen=True)
class _Loader:
    kind: Kind
    shrink: bool

    def __call__(self, image: Encoded) -> Any:
        data, name = _read(image)
        if self.kind == "pil":
            return _pil_image(data, name, self.shrink)
        pixels = _pixels(data, name)
        if self.kind == "numpy":
            return pixels
        tensor = as_tensor(pixels).permute(2, 0, 1)
        if self.kind == "tensor":
            return tensor
        from torchvision import tv_tensors

        return tv_tensors.Image(tensor)

    def __repr__(self) -> str:
        return f"penstock.image.loader({self.kind!r}{', shrink=True' if self.shrink else ''})"


def _read(image: Encoded) -> tuple[bytes, object]:
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image), "the image"
    if isinstance(image, (str, os.PathLike)):
        with open(image, "rb") as file:
            return file.read(), image
    if hasattr(image, "read"):
        return image.read(), getattr(image, "name", "the image")
    raise TypeError(
        f"a loader of penstock.image takes the path, the bytes or an open file of an image, but got a "
        f"{type(image).__name__}."
    )


def _pil_image(data: bytes, name: object, shrink: bool) -> Image.Image:
    file = _jpeg(data, name, shrink)
    if file is None:
        return _by_pillow(data, name)
    return LazyImage.part(file, (0, 0, file.width, file.height))


def _pixels(data: bytes, name: object) -> Pixels:
    file = _jpeg(data, name, False)
    if file is None:
        return np.array(_by_pillow(data, name))
    return file.pixels((0, 0, file.width, file.height), lambda nbytes: np.empty(nbytes, np.uint8))


def _jpeg(data: bytes, name: object, shrink: bool) -> JpegFile | None:
    if data[:3] == b"\xff\xd8\xff":
        try:
            return JpegFile(data, name, shrink)
        except ValueError:
            pass
    return None


def _by_pillow(data: bytes, name: object) -> Image.Image:
    try:
        return rgb_by_pillow(io.BytesIO(data))
    except Exception as error:
        error.add_note(f"While decoding {name}.")
        raise
