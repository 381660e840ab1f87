"""Two real processes under torchrun, each with `shard="auto"`: together they read every sample once.

torchrun runs this file as its script, so that both halves of the test stand in one place. The ranks do not talk to
each other: there is no process group.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from parity.torchrun import torchrun

RANKS, EPOCHS, SAMPLES = 2, 2, 23

Epoch = list[tuple[list[float], list[int], int]]  # of one rank: the data, index and pad of its batches


class Points(penstock.Dataset[float]):
    """Sample i is i plus what the global generator draws."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, key: int) -> float:
        return key + np.random.random()


def read(workers: int, **settings: Any) -> list[Epoch]:
    with penstock.DataLoader(Points(), batch_size=4, shuffle=True, seed=6, num_workers=workers, **settings) as loader:
        return [
            [(batch.data.tolist(), batch.index.tolist(), batch.pad) for batch in loader.batches()]
            for _ in range(EPOCHS)
        ]


def rank(folder: Path) -> None:
    """What torchrun starts: read, and write down what came."""
    with penstock.DataLoader([], shard="auto", seed=0) as loader:
        number, world = loader.shard
    found = {
        f"{workers} {last_batch}": read(workers, shard="auto", last_batch=last_batch)
        for workers in (0, 2)
        for last_batch in ("pad", "keep", "drop")
    }
    (folder / f"{number}.json").write_text(json.dumps({"world": world, "pid": os.getpid(), "found": found}))


@pytest.fixture(scope="module")
def reports(torch_forge: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each rank wrote."""
    return torchrun(torch_forge, __file__, tmp_path_factory.mktemp("ranks"), RANKS)


def test_each_rank_is_a_process_of_its_own_that_knows_how_many_there_are(reports: list[Any]) -> None:
    assert [report["world"] for report in reports] == [RANKS] * RANKS
    assert len({report["pid"] for report in reports}) == RANKS


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("last_batch", ["pad", "keep"])
def test_the_ranks_together_read_every_sample_once(reports: list[Any], workers: int, last_batch: str) -> None:
    for epoch in range(EPOCHS):
        keys: Counter[int] = Counter()
        for report in reports:
            for _, index, pad in report["found"][f"{workers} {last_batch}"][epoch]:
                keys.update(index[: len(index) - pad])
        assert keys == Counter(range(SAMPLES))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("last_batch", "steps"), [("pad", [3, 3]), ("keep", [3, 3]), ("drop", [2, 2])])
def test_the_ranks_have_the_batches_of_one_process_in_turn(
    reports: list[Any], workers: int, last_batch: str, steps: list[int]
) -> None:
    alone = read(0)
    for number, report in enumerate(reports):
        for epoch, found in enumerate(report["found"][f"{workers} {last_batch}"]):
            assert len(found) == steps[number]
            for step, (data, index, pad) in enumerate(found):
                theirs, their_index, _ = alone[epoch][step * RANKS + number]
                real = len(index) - pad
                assert (data[:real], index[:real]) == (theirs, their_index)


if __name__ == "__main__":
    rank(Path(sys.argv[1]))
