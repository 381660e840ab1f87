"""tensordict: a memory-mapped TensorDict as a dataset that is read by whole batches."""

from __future__ import annotations

from pathlib import Path

import torch
from tensordict import TensorDict, tensorclass
from torch.utils.data import DataLoader
from wild.tape import Tape


@tensorclass
class Rows:
    images: torch.Tensor
    targets: torch.Tensor


def collate_fn(batch):
    return batch


def program(tape: Tape, workers: int, folder: Path) -> None:
    columns = {"x": torch.rand(400, 8), "nested": {"y": torch.arange(400)}}
    mapped = TensorDict(columns, batch_size=[400]).memmap(str(folder / "mapped"))
    rows = Rows(images=torch.rand(400, 4), targets=torch.arange(400), batch_size=[400])
    stacked = [row.to_dict() for row in TensorDict(columns, batch_size=[400])]
    for data, collate in ((mapped, collate_fn), (rows, collate_fn), (stacked, None)):
        loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=workers, collate_fn=collate)
        for _ in tape.epochs():
            for batch in loader:
                tape.saw(show(batch))


def show(batch):
    if isinstance(batch, dict):
        return batch
    return type(batch).__name__, batch.batch_size, batch.to_dict()
