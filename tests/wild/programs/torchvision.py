"""torchvision: an ImageFolder with random transforms, and CutMix or MixUp in the collate function."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, default_collate
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from wild.pictures import folder_of_pictures
from wild.tape import Tape

mix = v2.RandomChoice([v2.CutMix(num_classes=3), v2.MixUp(num_classes=3)])


def collate_fn(batch):
    return mix(*default_collate(batch))


def program(tape: Tape, workers: int, folder: Path) -> None:
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(32, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.3, 0.3),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    dataset = ImageFolder(folder_of_pictures(folder), transform)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=workers, collate_fn=collate_fn)
    for _ in tape.epochs():
        for images, labels in loader:
            tape.saw((images, labels))
