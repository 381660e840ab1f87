"""Ignite: a supervised trainer, and its deterministic engine, which replaces the batch sampler."""

from __future__ import annotations

from pathlib import Path

import torch
from ignite.engine import DeterministicEngine, Events, create_supervised_trainer
from torch.utils.data import DataLoader, TensorDataset
from wild.tape import Tape


def program(tape: Tape, workers: int, folder: Path) -> None:
    x = torch.rand(400, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True, num_workers=workers)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss)
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: tape.saw((trainer.state.batch, trainer.state.output))
    )
    with tape.timed():
        trainer.run(loader, max_epochs=3)
    repeated = DeterministicEngine(lambda _, batch: tape.saw(batch))
    with tape.timed():
        repeated.run(loader, max_epochs=2)
