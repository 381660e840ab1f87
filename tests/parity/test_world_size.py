"""A run under torchrun is stopped on two ranks, and goes on in real processes on three, and then on one.

torchrun runs this file as its script. Each run reads a few steps, from the state that the one before left in the
folder, and leaves its own. The ranks do not talk to each other.
"""

from __future__ import annotations

import json
import socket
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
    return penstock.DataLoader(Points(), batch_size=BATCH, shuffle=True, seed=4, num_workers=workers, **settings)


def rank(folder: Path) -> None:
    """What torchrun starts: go on where the states say, and write down what came and where it stopped."""
    order = json.loads((folder / "order.json").read_text())
    report = {}
    for workers, state in order["states"].items():
        with open_loader(int(workers), shard="auto", last_batch="pad") as loader:
            number, _ = loader.shard
            if state is not None:
                loader.load_state_dict(state)
            found = []
            for batch in loader.batches():
                real = len(batch.index) - batch.pad
                found.append(batch.data[:real].tolist())
                state = loader.state_dict()
                if len(found) == order["steps"]:
                    break
            report[workers] = {"found": found, "state": state}
    (folder / f"{number}.json").write_text(json.dumps(report))


@pytest.fixture(scope="module")
def together(torch_forge: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """What the ranks of all runs have read, by the number of workers that each had: both in the same processes."""
    found: dict[str, list[float]] = {"0": [], "2": []}
    states: dict[str, Any] = dict.fromkeys(found)
    for ranks, steps in RUNS:
        folder = tmp_path_factory.mktemp("run")
        (folder / "order.json").write_text(json.dumps({"states": states, "steps": steps}))
        reports = torchrun(torch_forge, __file__, folder, ranks)
        for workers, values in found.items():
            for batches in zip(*(report[workers]["found"] for report in reports), strict=True):
                values += [value for batch in batches for value in batch]
        # The states of the last rank: any rank's do for all.
        states = {workers: reports[-1][workers]["state"] for workers in found}
    return found


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_goes_on_with_more_ranks_and_with_fewer(together: dict[str, list[float]], workers: str) -> None:
    with open_loader(0) as loader:
        alone = np.concatenate(list(loader)).tolist()
    assert together[workers] == alone
    assert sorted(map(int, together[workers])) == list(range(SAMPLES))


if __name__ == "__main__":
    rank(Path(sys.argv[1]))
