"""Albumentations: pictures with random transforms from its own generators."""

from __future__ import annotations

from pathlib import Path

import albumentations as A
import numpy as np
from albumentations.pytorch import ToTensorV2
from torch.utils.data import DataLoader, Dataset
from wild.tape import Tape


class Pictures(Dataset):
    def __init__(self) -> None:
        self.pictures = np.random.default_rng(3).integers(0, 256, (160, 40, 40, 3), np.uint8)
        self.transform = A.Compose(
            [A.RandomCrop(32, 32), A.HorizontalFlip(p=0.5), A.RandomBrightnessContrast(p=0.5), ToTensorV2()],
            seed=7,
        )

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, key: int):
        return self.transform(image=self.pictures[key])["image"], key


def program(tape: Tape, workers: int, folder: Path) -> None:
    loader = DataLoader(Pictures(), batch_size=16, shuffle=True, num_workers=workers)
    for _ in tape.epochs():
        for batch in loader:
            tape.saw(batch)
