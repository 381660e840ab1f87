"""`loader` reads images for the datasets of other libraries, such as torchvision's `ImageFolder`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Literal, get_args

import numpy as np
from PIL import Image

from penstock._memory.guests import tensor_functions
from penstock._pixels import Pixels
from penstock.image._lazy import Excerpt, JpegFile, LazyImage, fresh, rgb_by_pillow

Kind = Literal["pil", "numpy", "tensor", "tv_tensor"]
FileOrBytes = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes]


def loader(kind: Kind = "pil", *, exact: bool = True) -> Callable[[FileOrBytes], Any]:
    """Returns a function that reads an image, for `loader=` of torchvision's `ImageFolder` and of similar datasets.

    The function takes the path, the bytes or an open binary file of an image. It replaces torchvision's default
    loader, `Image.open(path).convert("RGB")`: the image has the same size, the same pixels and the same `info`, and
    EXIF's orientation is not applied. JPEGs are decoded by libjpeg-turbo; Pillow reads CMYK, damaged files and all
    other formats.

    - `kind="pil"` gives a PIL image that decodes the JPEG when its pixels are needed. An image that is cropped first
      decodes no rows below the crop. Damage is therefore reported when the image is used.
    - With `kind="numpy"`, the result is an array of shape (height, width, 3); with "tensor", a torch tensor of shape
      (3, height, width); with "tv_tensor", an `Image` of `torchvision.tv_tensors`. All have dtype uint8.
    - With `exact=False`, a PIL image that is cropped and resized, as in training, is decoded at 1/2, 1/4 or 1/8 of
      its size, as long as it is not smaller than wanted, and resized by torch. This is faster, and changes pixels by
      about 1 of 255 on average (docs/images.md). Needs torch.

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
    if exact not in (True, False):
        raise ValueError(f"exact must be True or False, but it is {exact!r}.")
    if not exact and kind != "pil":
        raise ValueError(
            f"exact=False needs kind='pil', but kind is {kind!r}: only a PIL image waits until it is resized. With "
            "torchvision, make the tensor after the resize: ToTensor(), PILToTensor() or v2.ToImage()."
        )
    if not exact:
        tensor_functions()  # raises ImportError now if torch is not installed
    return _ImageLoader(kind, bool(exact))


@dataclass(frozen=True)
class _ImageLoader:
    kind: Kind
    exact: bool

    def __call__(self, image: FileOrBytes) -> Any:
        data, name = _read(image)
        if self.kind == "pil":
            return _pil_image(data, name, self.exact)
        pixels = _pixels(data, name)
        if self.kind == "numpy":
            return pixels
        tensor = tensor_functions().as_tensor(pixels).permute(2, 0, 1)
        if self.kind == "tensor":
            return tensor
        from torchvision import tv_tensors

        return tv_tensors.Image(tensor)

    def __repr__(self) -> str:
        return f"penstock.image.loader({self.kind!r}{'' if self.exact else ', exact=False'})"


def _read(image: FileOrBytes) -> tuple[bytes, object]:
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


def _pil_image(data: bytes, name: object, exact: bool) -> Image.Image:
    file = _jpeg(data, name, exact)
    if file is None:
        return _by_pillow(data, name)
    return LazyImage.of(file, Excerpt(0, 0, file.width, file.height))


def _pixels(data: bytes, name: object) -> Pixels:
    file = _jpeg(data, name, True)
    if file is None:
        return np.array(_by_pillow(data, name))
    return file.pixels(Excerpt(0, 0, file.width, file.height), fresh)


def _jpeg(data: bytes, name: object, exact: bool) -> JpegFile | None:
    if data[:3] == b"\xff\xd8\xff":
        try:
            return JpegFile(data, name, exact)
        except ValueError:
            pass
    return None


def _by_pillow(data: bytes, name: object) -> Image.Image:
    try:
        return rgb_by_pillow(io.BytesIO(data))
    except Exception as error:
        error.add_note(f"While decoding {name}.")
        raise
