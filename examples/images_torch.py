"""A torchvision program before and after two lines: penstock's loader, and its decoder of JPEGs.

    python examples/images_torch.py

It needs `pip install "penstock[torch,image]" torchvision`, and takes about half a minute. The program makes 180
photographs of 1024 x 768 (a pattern for each of three classes), and trains a small network on random crops of them.
It does so three times from the same seed: with torch's loader and Pillow; with the two lines, which give the same
losses; and with `exact=False`, which decodes less and changes pixels by about 1 of 255.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from PIL import Image
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToTensor

import penstock.image
import penstock.torch

PER_CLASS, EPOCHS, BATCH, WORKERS = 60, 3, 20, 2


# The photographs.


def write_photographs(folder: Path) -> None:
    """Writes stripes, rings and spots, each with its own scale, angle and colours, and with the grain of a camera."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:768, 0:1024].astype(np.float32)
    grain = rng.normal(0, 6, (768, 1024, 1)).astype(np.float32)
    for number in range(PER_CLASS):
        for name in ("rings", "spots", "stripes"):
            turn, scale = rng.uniform(0, np.pi), rng.uniform(0.04, 0.12)
            across = (x * np.cos(turn) + y * np.sin(turn)) * scale
            along = (y * np.cos(turn) - x * np.sin(turn)) * scale
            pattern = {
                "rings": np.sin(np.hypot(across - rng.uniform(20, 60), along)),
                "spots": np.sin(across) * np.sin(along),
                "stripes": np.sin(across),
            }[name]
            colors = rng.uniform(40, 215, (2, 3)).astype(np.float32)
            share = (pattern[:, :, None] + 1) / 2
            pixels = np.clip(colors[0] * share + colors[1] * (1 - share) + grain, 0, 255)
            path = folder / name / f"{number:03}.jpg"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path, quality=90)


# The program.


def train(title: str, folder: Path, loader_class: Any, **line: Any) -> list[float]:
    torch.manual_seed(0)
    transform = Compose(
        [
            RandomResizedCrop(112),
            RandomHorizontalFlip(),
            ToTensor(),
            Normalize([0.5, 0.5, 0.5], [0.25, 0.25, 0.25]),
        ]
    )
    dataset = ImageFolder(folder, transform, **line)
    loader = loader_class(
        dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True, drop_last=True
    )
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(dataset.classes))),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, begun = [], time.perf_counter()
    for _ in range(EPOCHS):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    seconds = time.perf_counter() - begun
    rate = len(losses) * BATCH / seconds
    print(f"{title:38} {rate:6.0f} images/s   loss {losses[0]:.3f} -> {np.mean(losses[-5:]):.3f}")
    if isinstance(loader, penstock.torch.DataLoader):
        print(f"    {loader.stats().verdict}")
    return losses


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_photographs(folder)
        before = train("torch's loader, Pillow", folder, torch.utils.data.DataLoader)
        train("the first line: penstock.torch", folder, penstock.torch.DataLoader)
        line = {"loader": penstock.image.loader()}
        after = train("both lines: loader=loader()", folder, penstock.torch.DataLoader, **line)
        line = {"loader": penstock.image.loader(exact=False)}
        train("both lines: loader(exact=False)", folder, penstock.torch.DataLoader, **line)
    print(f"With both lines, every loss is the same as before: {before == after}")


if __name__ == "__main__":
    main()
