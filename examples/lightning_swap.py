"""Lightning with penstock's loader: one import is swapped, and a run that is stopped in an epoch resumes exactly.

    python examples/lightning_swap.py

It needs `pip install "penstock[torch]" lightning`, and takes about 20 seconds. A small network learns to tell two
spirals apart. It is trained three times: with torch's loader; with penstock's, which gives the same losses; and with
penstock's and a seed, stopped in the middle of the second epoch and resumed from Lightning's checkpoint, with another
number of workers. The losses after the stop are those of a run without a stop.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import lightning
import numpy as np
import torch
import torch.utils.data
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import TensorDataset

import penstock.torch  # was: from torch.utils.data import DataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
warnings.filterwarnings("ignore", ".*LeafSpec.*")

BATCH, EPOCHS, STOP = 50, 3, 30  # an epoch has 20 steps


def spirals() -> TensorDataset:
    """1,000 points on two spirals, with some noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(1_000) % 2
    angles = 6 * torch.rand(1_000, generator=generator) + 0.5
    points = torch.stack([angles.cos(), angles.sin()], 1) * angles[:, None] * (1 - 2 * labels[:, None])
    return TensorDataset(points + 0.1 * torch.randn(1_000, 2, generator=generator), labels)


class Spirals(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.losses: dict[int, float] = {}

    def training_step(self, batch: Any) -> torch.Tensor:
        points, labels = batch
        loss = nn.functional.cross_entropy(self.layers(points), labels)
        self.losses[self.global_step] = loss.item()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def fit(loader: Any, max_steps: int = -1, folder: str | None = None, resume: bool = False) -> dict[int, float]:
    """Trains, and returns the losses by step. With a folder, the last step is saved there."""
    lightning.seed_everything(0, verbose=False)
    module = Spirals()
    saving = [ModelCheckpoint(folder, "stopped", every_n_train_steps=STOP)] if folder else []
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        max_steps=max_steps,
        callbacks=saving,
        logger=False,
        enable_checkpointing=bool(saving),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, ckpt_path=f"{folder}/stopped.ckpt" if resume else None)
    return module.losses


def show(title: str, losses: dict[int, float]) -> None:
    steps = [min(losses), max(losses)]
    print(f"{title:44} steps {steps[0]:2} to {steps[1]}   loss {losses[steps[0]]:.6f} -> {losses[steps[1]]:.6f}")


def main() -> None:
    torch.set_num_threads(1)
    dataset = spirals()
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": 2}

    before = fit(torch.utils.data.DataLoader(dataset, **options))
    show("torch's loader", before)
    after = fit(penstock.torch.DataLoader(dataset, **options))
    show("penstock.torch.DataLoader", after)
    print(f"Every loss is the same: {before == after}\n")

    with tempfile.TemporaryDirectory() as folder:
        whole = fit(penstock.torch.DataLoader(dataset, seed=7, **options))
        show("with seed=7, without a stop", whole)
        first = fit(penstock.torch.DataLoader(dataset, seed=7, **options), STOP, folder)
        show("stopped in the second epoch", first)
        options["num_workers"] = 1
        rest = fit(penstock.torch.DataLoader(dataset, seed=7, **options), -1, folder, resume=True)
        show("resumed from the checkpoint, with 1 worker", rest)
    same = np.allclose(list({**first, **rest}.values()), list(whole.values()), rtol=0, atol=0)
    print(f"Every loss is that of the run without a stop: {same and {**first, **rest}.keys() == whole.keys()}")


if __name__ == "__main__":
    main()
