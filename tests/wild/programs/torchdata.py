"""torchdata: StatefulDataLoader, which has an engine of its own, and nodes that read a torch loader."""

from __future__ import annotations

from pathlib import Path

import torch
import torchdata.nodes as tn
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from wild.tape import Tape

ON_TORCH = {"StatefulDataLoader": "_Stateful"}


def program(tape: Tape, workers: int, folder: Path) -> None:
    x = torch.rand(300, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    loader = StatefulDataLoader(data, batch_size=16, shuffle=True, num_workers=workers)
    for _ in tape.epochs():
        for batch in loader:
            tape.saw(batch)
    plain = DataLoader(data, batch_size=16, shuffle=True, num_workers=workers)
    node = tn.Prefetcher(tn.Mapper(tn.IterableWrapper(plain), lambda batch: batch[0] * 2), prefetch_factor=2)
    nodes = tn.Loader(node)
    for _ in tape.epochs():
        for batch in nodes:
            tape.saw(batch)
