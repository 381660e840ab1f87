"""What the three frameworks train here: a line through noisy points, and how a run is compared with another."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

import penstock.torch
from penstock.torch import served

SAMPLES, BATCH = 26, 4  # seven batches, the last one short

# 0 is the plain loop; persistent workers are kept by the loader, and so end when the framework lets go of it.
WORKERS = [
    pytest.param({"num_workers": 0}, id="inline"),
    pytest.param({"num_workers": 2}, id="workers"),
    pytest.param({"num_workers": 2, "persistent_workers": True}, id="persistent"),
]


class NoisyPoints(Dataset[dict[str, Tensor]]):
    """Sample i is a point near i, with noise from each of the generators that torch seeds in a worker.

    So equal batches mean: the same order, the same step on the same worker, the same seeds in it.
    """

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, key: int) -> dict[str, Tensor]:
        noise = torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()])
        return {"x": key / SAMPLES + 0.1 * noise, "labels": torch.tensor([float(key)])}


class Line(torch.nn.Module):
    """A linear model that keeps a copy of every batch that it sees in training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.training:
            self.seen.append(torch.cat([x, labels], dim=1).clone())
        output = self.linear(x)
        return {"loss": torch.nn.functional.mse_loss(output, labels), "logits": output}


@dataclass(frozen=True)
class Run:
    """What a framework fed to the model, what came of it, and how many iterators penstock's engine began."""

    batches: list[Tensor]
    losses: list[float]
    served: int = field(compare=False)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Run)
            and len(self.batches) == len(other.batches)
            and all(torch.equal(ours, theirs) for ours, theirs in zip(self.batches, other.batches, strict=True))
            and self.losses == other.losses
        )

    __hash__ = None  # type: ignore[assignment]


def seeded(train: Callable[..., tuple[list[Tensor], list[float]]], *args: Any, **kwargs: Any) -> Run:
    """Run `train` with every generator of this process in the same state as in any other run."""
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    before = served()
    batches, losses = train(*args, **kwargs)
    return Run(batches, losses, served() - before)


def enabled() -> AbstractContextManager[Any]:
    return penstock.torch.enable()
