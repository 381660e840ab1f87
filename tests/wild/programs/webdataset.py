"""WebDataset: shards that are shuffled, decoded and batched in the workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import webdataset as wds
from wild.tape import Tape


def program(tape: Tape, workers: int, folder: Path) -> None:
    random = np.random.default_rng(1)
    for shard in range(4):
        with wds.TarWriter(str(folder / f"{shard:04}.tar")) as sink:
            for i in range(60):
                pixels = random.random((16, 16), np.float32)
                sink.write({"__key__": f"{shard}{i:04}", "x.npy": pixels, "y.cls": i % 10})
    dataset = (
        wds.WebDataset(str(folder / "{0000..0003}.tar"), shardshuffle=4, nodesplitter=wds.split_by_node, seed=7)
        .shuffle(20, seed=7)
        .decode()
        .to_tuple("x.npy", "y.cls")
        .batched(8)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers)
    loader = loader.unbatched().shuffle(30, seed=7).batched(16)
    for _ in tape.epochs():
        for x, y in loader:
            tape.saw((x, y))
