"""PyTorch Geometric: mini-batches of graphs, from its own DataLoader."""

from __future__ import annotations

from pathlib import Path

import torch_geometric.transforms as T
from torch_geometric.datasets import FakeDataset
from torch_geometric.loader import DataLoader
from wild.tape import Tape


def program(tape: Tape, workers: int, folder: Path) -> None:
    dataset = FakeDataset(num_graphs=200, avg_num_nodes=30, transform=T.AddSelfLoops())
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=workers, follow_batch=["x"])
    for _ in tape.epochs():
        for batch in loader:
            tape.saw((batch, batch.num_graphs, batch.to_dict()))
