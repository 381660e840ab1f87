"""Kornia: augmentations that draw from torch's generator, in the workers and on the batch."""

from __future__ import annotations

from pathlib import Path

import kornia.augmentation as K
import torch
from torch.utils.data import DataLoader, Dataset
from wild.tape import Tape


class Pictures(Dataset):
    def __init__(self) -> None:
        self.pictures = torch.rand(120, 3, 32, 32)
        self.augment = torch.nn.Sequential(K.RandomHorizontalFlip(p=0.5), K.RandomAffine(20.0))

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, key: int):
        return self.augment(self.pictures[key])[0], key


def program(tape: Tape, workers: int, folder: Path) -> None:
    loader = DataLoader(Pictures(), batch_size=16, shuffle=True, num_workers=workers)
    on_batch = K.AugmentationSequential(K.ColorJitter(0.1, 0.1, 0.1, 0.1), data_keys=["input"])
    for _ in tape.epochs():
        for pictures, keys in loader:
            tape.saw((on_batch(pictures), keys))
