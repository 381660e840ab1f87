"""Images for tests, made by code."""

from __future__ import annotations

import io
from typing import Any

import cv2
import numpy as np
from PIL import Image


def picture(height: int = 60, width: int = 80, seed: int = 0) -> Any:
    """A smooth RGB image: JPEG changes it little, and no two places of it are alike."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3)).astype(np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def encoded(pixels: Any, kind: str = "JPEG", **options: Any) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": 95, "subsampling": 0} if kind == "JPEG" else {}) | options)
    return buffer.getvalue()


def decoded(data: bytes, mode: str = "RGB") -> Any:
    """What Pillow makes of it."""
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


def oriented(pixels: Any, orientation: int, kind: str = "JPEG") -> bytes:
    """A file with EXIF's tag, whose pixels are stored as they are here."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(pixels, kind, exif=exif.tobytes())
