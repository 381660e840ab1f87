"""The torch functions that other parts of penstock need. `guests.tensor_functions` returns this module."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array)


def resized(
    pixels: NDArray[np.uint8], extent: tuple[float, float], to: tuple[int, int], mode: Literal["bilinear", "bicubic"]
) -> NDArray[np.uint8]:
    """Resizes pixels as Pillow does, except for rounding.

    `extent` is the height and width of `pixels`, which may be fractions.
    """
    image = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]
    scales = to[0] / extent[0], to[1] / extent[1]
    operators = torch.ops.aten  # torch.nn.functional.interpolate, but with a size and scales
    resize = operators._upsample_bilinear2d_aa if mode == "bilinear" else operators._upsample_bicubic2d_aa
    made: torch.Tensor = resize(image, to, False, *scales)
    found: NDArray[np.uint8] = made[0].permute(1, 2, 0).contiguous().numpy()
    return found
