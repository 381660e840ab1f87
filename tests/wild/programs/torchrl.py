"""TorchRL: an environment that is fed by a loader, and a collate function that makes TensorDicts."""

from __future__ import annotations

from pathlib import Path

import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from wild.tape import Tape


class Transitions(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 300

    def __getitem__(self, key: int) -> TensorDict:
        return TensorDict({"observation": torch.rand(4), "reward": torch.tensor([float(key)])})


def program(tape: Tape, workers: int, folder: Path) -> None:
    loader = DataLoader(Transitions(), batch_size=16, shuffle=True, num_workers=workers, collate_fn=torch.stack)
    for _ in tape.epochs():
        buffer = ReplayBuffer(storage=LazyTensorStorage(300), sampler=SamplerWithoutReplacement(), batch_size=32)
        for batch in loader:
            buffer.extend(batch)
        for sample in buffer:
            tape.saw((type(sample).__name__, sample.to_dict()))
            break
        tape.saw(buffer[:].to_dict())
