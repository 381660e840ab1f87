"""timm: `create_loader` with its training transforms, and its MultiEpochsDataLoader, which keeps one iterator."""

from __future__ import annotations

from pathlib import Path

import torch
from timm.data import create_dataset, create_loader
from wild.pictures import folder_of_pictures
from wild.tape import Tape


def program(tape: Tape, workers: int, folder: Path) -> None:
    dataset = create_dataset("", root=str(folder_of_pictures(folder)))
    for keeps in (False, True) if workers else (False,):
        loader = create_loader(
            dataset,
            input_size=(3, 32, 32),
            batch_size=16,
            is_training=True,
            auto_augment="rand-m9-mstd0.5",
            re_prob=0.25,
            num_workers=workers,
            use_prefetcher=False,
            use_multi_epochs_loader=keeps,
            persistent_workers=False,
            device=torch.device("cpu"),
        )
        for _ in tape.epochs():
            for images, labels in loader:
                tape.saw((images, labels))
