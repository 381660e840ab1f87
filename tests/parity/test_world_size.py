"""A run under torchrun is stopped on two ranks, and goes on in real processes on three, and then on one.

torchrun runs this file as its script. Each run reads a few steps, from the state that the one before left in the
folder, and leaves its own. The ranks do not talk to each other.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from parity.torchrun import torchrun

SAMPLES, BATCH = 43, 3
RUNS = ((2, 3), (3, 2), (1, None))  # how many ranks, and after how many steps each of them stops


class Points(penstock.Dataset[float]):
    """Sample i is i plus what belongs to it at random."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, key: int) -> float:
        return key + float(penstock.rng().random())


def open_loader(workers: int, **settings: Any) -> penstock.DataLoader[Any]:
    return penstock.DataLoader(
        Points(), batch_size=BATCH, shuffle=True, seed=4, num_workers=workers, **settings
    )


def rank(folder: Path) -> None:
    """What torchrun starts: go on where the state says, and write down what came and where it stopped."""
    order = json.loads((folder / "order.json").read_text())
    with open_loader(order["workers"], shard="auto", last_batch="pad") as loader:
        number, _ = loader.shard
        if order["state"] is not None:
            loader.load_state_dict(order["state"])
        found, state = [], None
        for batch in loader.batches():
            real = len(batch.index) - batch.pad
            found.append(batch.data[:real].tolist())
            state = loader.state_dict()
            if len(found) == order["steps"]:
                break
        (folder / f"{number}.json").write_text(json.dumps({"found": found, "state": state}))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_with_more_ranks_and_with_fewer(tmp_path: Path, workers: int) -> None:
    with open_loader(0) as loader:
        alone = np.concatenate(list(loader)).tolist()
    together: list[float] = []
    state = None
    for at, (ranks, steps) in enumerate(RUNS):
        folder = tmp_path / str(at)
        folder.mkdir()
        # The state of the last rank: any rank's does for all.
        order = {"state": state, "steps": steps, "workers": workers}
        (folder / "order.json").write_text(json.dumps(order))
        reports = torchrun(__file__, folder, ranks)
        for batches in zip(*(report["found"] for report in reports), strict=True):
            together += [value for batch in batches for value in batch]
        state = reports[-1]["state"]
    assert together == alone
    assert sorted(map(int, together)) == list(range(SAMPLES))


if __name__ == "__main__":
    rank(Path(sys.argv[1]))
