"""Hugging Face datasets: a table with a torch format, and its shards as a stream that is shuffled in a buffer."""

from __future__ import annotations

from pathlib import Path

from datasets import Dataset
from torch.utils.data import DataLoader
from wild.tape import Tape


def program(tape: Tape, workers: int, folder: Path) -> None:
    rows = {
        "x": [[float(i), i / 7] for i in range(400)],
        "y": list(range(400)),
        "text": [f"row {i}" for i in range(400)],
    }
    table = Dataset.from_dict(rows).with_format("torch")
    loader = DataLoader(table, batch_size=16, shuffle=True, num_workers=workers)
    for _ in tape.epochs():
        for batch in loader:
            tape.saw(batch)
    stream = Dataset.from_dict(rows).to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=50)
    loader = DataLoader(stream.with_format("torch"), batch_size=16, num_workers=workers)
    for epoch in tape.epochs():
        stream.set_epoch(epoch)
        for batch in loader:
            tape.saw(batch)
