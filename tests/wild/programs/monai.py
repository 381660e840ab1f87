"""MONAI: dictionaries of MetaTensors with random transforms, from its DataLoader and its ThreadDataLoader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from monai.data import CacheDataset, DataLoader, ThreadDataLoader, list_data_collate
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    RandFlipd,
    RandGaussianNoised,
    RandSpatialCropSamplesd,
)
from monai.utils import set_determinism
from wild.tape import Tape


def without_ids(batch):
    """A transform records `id(transform)` in what it returns."""

    def forget(record):
        record.pop("id", None)
        for part in record.values():
            if isinstance(part, dict):
                forget(part)

    for record in (record for records in batch["image"].applied_operations for record in records):
        forget(record)
    return batch


def program(tape: Tape, workers: int, folder: Path) -> None:
    set_determinism(seed=0)
    random = np.random.default_rng(1)
    data = [{"image": random.random((24, 24, 24), np.float32), "name": f"scan {i}"} for i in range(24)]
    transform = Compose(
        [
            EnsureChannelFirstd("image", channel_dim="no_channel"),
            RandFlipd("image", prob=0.5, spatial_axis=0),
            RandGaussianNoised("image", prob=0.5),
            RandSpatialCropSamplesd("image", roi_size=(16, 16, 16), num_samples=2, random_size=False),
        ]
    )
    dataset = CacheDataset(data, transform, cache_rate=1.0, num_workers=0, progress=False)
    loaders = [
        DataLoader(dataset, batch_size=4, shuffle=True, num_workers=workers, collate_fn=list_data_collate),
        ThreadDataLoader(dataset, batch_size=4, shuffle=True, num_workers=workers, buffer_size=1),
    ]
    for loader in loaders:
        for _ in tape.epochs():
            for batch in loader:
                tape.saw(without_ids(batch))
