"""Workers are killed at random moments, and nobody can tell by the batches.

Three seconds here; `make soak` takes a minute for each way of starting workers.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import penstock

SECONDS = float(os.environ.get("PENSTOCK_SOAK", "3"))


class Noise(penstock.Dataset[Any]):
    """Random numbers of the sample and of the step, in arrays and in text of many lengths."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, key: int) -> Any:
        numbers = penstock.rng().random(1 + key % 3 * 1000).sum(keepdims=True)
        return {"sample": numbers, "step": np.random.random(64), "text": "x" * random.randrange(50)}


def digest(batches: Any) -> str:
    hashed = hashlib.sha256()
    for batch in batches:
        hashed.update(batch["sample"].data)
        hashed.update(batch["step"].data)
        hashed.update("".join(batch["text"]).encode())
    return hashed.hexdigest()


class Killer:
    """Kills one of the loader's workers some 5 ms after a batch was handed out, wherever the caller is then.

    One for each batch at most: on a busy machine, workers that die as fast as they are born do nothing else.
    """

    def __init__(self, loader: Any, rng: random.Random) -> None:
        self.killed = 0
        self._loader, self._rng = loader, rng

    def __enter__(self) -> Killer:
        self._before = signal.signal(signal.SIGALRM, self._strike)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def watch(self, batches: Any) -> Iterator[Any]:
        for batch in batches:
            signal.setitimer(signal.ITIMER_REAL, self._rng.expovariate(200) + 1e-6)
            yield batch

    def _strike(self, number: int, frame: object) -> None:
        # By pid: the handles take locks, and this may run while the caller has them.
        pids = [worker.pid for worker in self._loader.workers]
        if pids:
            with suppress(ProcessLookupError):
                os.kill(self._rng.choice(pids), signal.SIGKILL)
                self.killed += 1


@pytest.mark.timeout(60 + 3 * SECONDS, method="thread")  # the killer has the alarm
@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("batch_size", [3, 40])
def test_workers_killed_at_random_moments_change_nothing(method: str, batch_size: int) -> None:
    def make(workers: int, **more: Any) -> Any:
        return penstock.DataLoader(Noise(), batch_size, shuffle=True, seed=5, num_workers=workers, **more)

    # Any number of deaths: the killer may meet the same step many times.
    with make(2, multiprocessing_context=method, retries=10**6) as loader, make(0) as inline:
        end, epochs = time.monotonic() + SECONDS / 4, 0
        with Killer(loader, random.Random(batch_size)) as killer:
            while time.monotonic() < end or killer.killed < 3:
                inline.set_epoch(epochs)
                expected = digest(inline)
                assert digest(killer.watch(loader)) == expected, f"epoch {epochs}, {killer.killed} deaths"
                epochs += 1
        print(f"{method}, batches of {batch_size}: {epochs} epochs, {killer.killed} workers killed")
