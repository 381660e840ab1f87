"""LitData: chunks on disk, and its StreamingDataLoader. Its iterators of workers are of a class of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.cache import Cache
from wild.tape import Tape

ON_TORCH = {"StreamingDataLoader": "_StreamingMultiProcessingDataLoaderIter"}


def program(tape: Tape, workers: int, folder: Path) -> None:
    random = np.random.default_rng(1)
    cache = Cache(str(folder), chunk_bytes="8KB")
    for number in range(200):
        cache[number] = {"x": random.random((8, 8), np.float32), "y": number}
    cache.done()
    cache.merge()
    dataset = StreamingDataset(str(folder), shuffle=True, seed=3)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=workers)
    for _ in tape.epochs():
        for batch in loader:
            tape.saw(batch)
