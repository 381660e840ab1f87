"""PyTorch Metric Learning: a sampler that draws from numpy's global generator, and a trainer."""

from __future__ import annotations

from pathlib import Path

import torch
from pytorch_metric_learning import losses, samplers, trainers
from torch.utils.data import DataLoader, TensorDataset
from wild.tape import Tape


def program(tape: Tape, workers: int, folder: Path) -> None:
    x, labels = torch.rand(200, 8), torch.arange(200) % 10
    sampler = samplers.MPerClassSampler(labels, m=4, length_before_new_iter=200)
    loader = DataLoader(TensorDataset(x, labels), batch_size=20, sampler=sampler, num_workers=workers)
    for _ in tape.epochs():
        for batch in loader:
            tape.saw(batch)
    trunk = torch.nn.Linear(8, 4)
    trainer = trainers.MetricLossOnly(
        models={"trunk": trunk},
        optimizers={"trunk_optimizer": torch.optim.SGD(trunk.parameters(), lr=0.1)},
        batch_size=20,
        loss_funcs={"metric_loss": losses.TripletMarginLoss()},
        dataset=TensorDataset(x, labels),
        sampler=sampler,
        dataloader_num_workers=workers,
        data_device=torch.device("cpu"),
    )
    with tape.timed():
        trainer.train(num_epochs=2)
    tape.saw(trunk.state_dict())
