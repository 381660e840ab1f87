"""`loader=penstock.image.loader()` with torchvision and timm: the same tensors as with their own loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import encoded, oriented, picture

import penstock.image
from images.vision import declare_operators
from penstock.torch import DataLoader

declare_operators()

from torchvision.datasets import ImageFolder  # noqa: E402 - needs the operators
from torchvision.transforms import (  # noqa: E402
    CenterCrop,
    ColorJitter,
    Compose,
    Normalize,
    RandAugment,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
    v2,
)

NORMALIZE = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def timm_training(size: int) -> Any:
    from timm.data import create_transform

    return create_transform(size, is_training=True, auto_augment="rand-m9-mstd0.5", re_prob=0.25)


def timm_evaluation(size: int) -> Any:
    from timm.data import create_transform

    return create_transform(size, crop_pct=0.9)


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "training": lambda: Compose([RandomResizedCrop(64), RandomHorizontalFlip(), ToTensor(), NORMALIZE]),
    "evaluation": lambda: Compose([Resize(80), CenterCrop(64), ToTensor(), NORMALIZE]),
    "augmented": lambda: Compose([RandomResizedCrop(64), RandAugment(), ColorJitter(0.4, 0.4, 0.4), ToTensor()]),
    "flipped first": lambda: Compose([RandomHorizontalFlip(1), RandomResizedCrop(64), ToTensor()]),
    "v2": lambda: v2.Compose(
        [v2.RandomResizedCrop(64), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    ),
    "v2 on tensors": lambda: v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(64), v2.ToDtype(torch.float32, scale=True)]
    ),
    "timm training": lambda: timm_training(64),
    "timm evaluation": lambda: timm_evaluation(64),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of several sizes and kinds in two classes."""
    found = tmp_path_factory.mktemp("pictures")
    for number in range(12):
        path = found / ("cats" if number % 2 else "dogs") / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        pixels = picture(300 + 10 * number, 480 - 20 * number, number)
        path.write_bytes(oriented(pixels, 6) if number == 3 else encoded(pixels, subsampling=2))
    (found / "dogs" / "gray.png").write_bytes(encoded(picture(90, 120)[:, :, 0], "PNG"))
    return found


def batches(folder: Path, transform: Any, **line: Any) -> list[Any]:
    torch.manual_seed(0)
    dataset = ImageFolder(folder, transform, **line)
    with DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2, seed=0) as loader:
        return [(images.clone(), labels.clone()) for images, labels in loader]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_batch_is_as_with_the_default_loader(folder: Path, name: str) -> None:
    expected = batches(folder, TRANSFORMS[name]())
    found = batches(folder, TRANSFORMS[name](), loader=penstock.image.loader())
    assert len(found) == len(expected) == 4
    for one, other in zip(found, expected, strict=True):
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("name", ["training", "evaluation", "v2", "timm evaluation"])
def test_without_exact_pixels_differ_by_little(folder: Path, name: str) -> None:
    expected = batches(folder, TRANSFORMS[name]())
    found = batches(folder, TRANSFORMS[name](), loader=penstock.image.loader(exact=False))
    for (images, labels), (others, same) in zip(found, expected, strict=True):
        assert torch.equal(labels, same)
        assert (images - others).abs().mean() < 2 / 255 / 0.22


def test_tensors_and_tv_tensors_go_through_v2(folder: Path) -> None:
    transform = v2.Compose([v2.Resize((32, 32), antialias=True), v2.ToDtype(torch.float32, scale=True)])
    expected = batches(folder, v2.Compose([v2.ToImage(), transform]))
    for kind in ("tensor", "tv_tensor"):
        found = batches(folder, transform, loader=penstock.image.loader(kind))  # type: ignore[arg-type]
        assert all(torch.equal(one[0], other[0]) for one, other in zip(found, expected, strict=True))


def test_a_tv_tensor_is_an_image(folder: Path) -> None:
    from torchvision import tv_tensors

    image = penstock.image.loader("tv_tensor")(folder / "dogs" / "gray.png")
    assert type(image) is tv_tensors.Image and image.shape == (3, 90, 120)


def test_a_transform_of_penstock_takes_numpy_images(folder: Path) -> None:
    transform = penstock.image.Transform(crop=64, train=False)
    dataset = ImageFolder(folder, transform, loader=penstock.image.loader("numpy"))
    assert np.asarray(dataset[0][0]).shape == (3, 64, 64)
