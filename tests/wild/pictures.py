"""Small pictures on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def folder_of_pictures(folder: Path, *, classes: int = 3, each: int = 40, size: int = 48) -> Path:
    """A folder for each class, with PNG files. The pictures are the same in every process."""
    random = np.random.default_rng(5)
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            pixels = random.integers(0, 256, (size, size, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label}" / f"{number:03}.png")
    return folder
