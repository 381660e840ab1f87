"""TorchIO: subjects with random transforms, and patches of them from its Queue."""

from __future__ import annotations

from pathlib import Path

import torch
import torchio as tio
from wild.tape import Tape


def program(tape: Tape, workers: int, folder: Path) -> None:
    subjects = [tio.Subject(scan=tio.ScalarImage(tensor=torch.rand(1, 16, 16, 16)), number=i) for i in range(24)]
    transform = tio.Compose([tio.RandomFlip(axes=(0, 1)), tio.RandomNoise(), tio.ZNormalization()])
    dataset = tio.SubjectsDataset(subjects, transform=transform)
    loader = tio.SubjectsLoader(dataset, batch_size=4, shuffle=True, num_workers=workers)
    for _ in tape.epochs():
        for batch in loader:
            tape.saw(batch)
    queue = tio.Queue(
        dataset, max_length=16, samples_per_volume=4, sampler=tio.UniformSampler(8), num_workers=workers
    )
    for _ in tape.epochs():
        for batch in tio.SubjectsLoader(queue, batch_size=8, num_workers=0):
            tape.saw(batch)
