"""MosaicML Streaming: shards on disk, its StreamingDataLoader, and a state in the middle of an epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from wild.tape import Tape


def program(tape: Tape, workers: int, folder: Path) -> None:
    random = np.random.default_rng(1)
    with MDSWriter(out=str(folder), columns={"x": "ndarray:float32:8,8", "y": "int"}, size_limit=4096) as out:
        for number in range(200):
            out.write({"x": random.random((8, 8), np.float32), "y": number})
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=str(folder), shuffle=True, shuffle_seed=9, batch_size=8)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=workers)
    state = None
    for _ in tape.epochs():
        for number, batch in enumerate(loader):
            tape.saw(batch)
            if number == 5:
                state = loader.state_dict()
    tape.saw(state)
    loader.load_state_dict(state)
    for batch in loader:
        tape.saw(batch)
