"""Lightning: the Trainer, with a validation loader."""

from __future__ import annotations

import logging
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset
from wild.tape import Tape


class Module(lightning.LightningModule):
    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.layer, self.tape = torch.nn.Linear(4, 1), tape

    def training_step(self, batch, number):
        self.tape.saw((number, batch))
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def validation_step(self, batch, number):
        self.tape.saw((number, batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def program(tape: Tape, workers: int, folder: Path) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(5, workers=True, verbose=False)
    x = torch.rand(400, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    options = {"batch_size": 16, "num_workers": workers, "persistent_workers": bool(workers)}
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=3, default_root_dir=folder, **quiet)
    with tape.timed():
        trainer.fit(Module(tape), DataLoader(data, shuffle=True, **options), DataLoader(data, **options))
