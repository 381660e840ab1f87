"""MMEngine: the Runner builds its loaders from dictionaries."""

from __future__ import annotations

from pathlib import Path

import torch
from mmengine.dataset import BaseDataset
from mmengine.model import BaseModel
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from wild.tape import Tape


@DATASETS.register_module(force=True)
class Rows(BaseDataset):
    def load_data_list(self):
        return [{"number": i} for i in range(300)]

    def prepare_data(self, idx):
        row = self.get_data_info(idx)
        return {"x": torch.rand(4) + row["number"], "y": torch.tensor([float(row["sample_idx"])])}


class Model(BaseModel):
    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.layer, self.tape = torch.nn.Linear(4, 1), tape

    def forward(self, x, y, mode):
        self.tape.saw((mode, x, y))
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), y)}


def program(tape: Tape, workers: int, folder: Path) -> None:
    runner = Runner(
        model=Model(tape),
        work_dir=str(folder),
        train_dataloader={
            "dataset": {"type": "Rows"},
            "sampler": {"type": "DefaultSampler", "shuffle": True},
            "collate_fn": {"type": "default_collate"},
            "batch_size": 16,
            "num_workers": workers,
            "persistent_workers": bool(workers),
        },
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 1e-6}},
        train_cfg={"by_epoch": True, "max_epochs": 3},
        default_hooks={"checkpoint": None, "logger": None},
        log_level="ERROR",
        randomness={"seed": 6},
        experiment_name=f"{folder.name}",
    )
    with tape.timed():
        runner.train()
