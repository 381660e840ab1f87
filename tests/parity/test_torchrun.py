"""Two gloo ranks under torchrun, each with a DistributedSampler: the shards are those of torch's own loader.

torchrun runs this file as its script, so that both halves of the test stand in one place.
"""

from __future__ import annotations

import json
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import torch.utils.data
from torch.utils.data import Dataset, DistributedSampler

import penstock.torch
from parity.torchrun import torchrun

RANKS, EPOCHS, SAMPLES = 2, 2, 22

Epoch = list[list[float]]  # of one rank: its batches, a sample is its key plus a random part below one


class Points(Dataset[float]):
    """Sample i is i plus what the worker's generator draws, so that the worker and its seed are compared too."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, key: int) -> float:
        return key + torch.rand((), dtype=torch.float64).item()


def read(loader_class: Any, workers: int) -> list[Epoch]:
    """Every epoch of this rank's shard."""
    torch.manual_seed(torch.distributed.get_rank())
    dataset = Points()
    sampler = DistributedSampler(dataset)
    loader = loader_class(dataset, batch_size=4, sampler=sampler, num_workers=workers)
    epochs = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        epochs.append([batch.tolist() for batch in loader])
    return epochs


def rank(folder: Path) -> None:
    """What torchrun starts: read with both loaders, and write down what came."""
    torch.distributed.init_process_group("gloo")
    found = {
        str(workers): {
            "torch": read(torch.utils.data.DataLoader, workers),
            "penstock": read(penstock.torch.DataLoader, workers),
        }
        for workers in (0, 2)
    }
    report = {"found": found, "served": penstock.torch.served()}
    (folder / f"{torch.distributed.get_rank()}.json").write_text(json.dumps(report))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def reports(torch_forge: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each rank wrote."""
    return torchrun(torch_forge, __file__, tmp_path_factory.mktemp("ranks"), RANKS)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_each_rank_reads_what_torchs_loader_reads(reports: list[Any], workers: str) -> None:
    for report in reports:
        found = report["found"][workers]
        assert found["penstock"] == found["torch"]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_ranks_together_read_every_sample_once(reports: list[Any], workers: str) -> None:
    for epoch in range(EPOCHS):
        shards = [report["found"][workers]["penstock"][epoch] for report in reports]
        keys = Counter(int(value) for shard in shards for batch in shard for value in batch)
        assert keys == Counter(range(SAMPLES))


def test_each_rank_is_on_penstocks_engine(reports: list[Any]) -> None:
    assert [report["served"] for report in reports] == [2 * EPOCHS] * RANKS


if __name__ == "__main__":
    rank(Path(sys.argv[1]))
