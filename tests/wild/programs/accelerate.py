"""accelerate: `prepare`, and `skip_first_batches` to resume."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from wild.tape import Tape


def program(tape: Tape, workers: int, folder: Path) -> None:
    accelerator = Accelerator(cpu=True)
    x = torch.rand(400, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True, num_workers=workers)
    model = torch.nn.Linear(4, 1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for _ in tape.epochs():
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            tape.saw((inputs, targets, loss))
    for batch in accelerator.skip_first_batches(loader, 10):
        tape.saw(batch)
