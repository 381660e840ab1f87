"""Resume states, as JSON: each is refused, or the loader gives batches that it could have given; and `explain`."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

import penstock
from penstock._tools.explain import explanation
from penstock.errors import StateError
from tests.fuzz import scratch

ALLOWED = (StateError,)
JSON = True


class Counting(penstock.IterableDataset[Any]):
    """A stream with a state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < 40:
            self.at += 1
            yield np.int64(self.at - 1)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        at = state.get("at") if isinstance(state, dict) else None
        if not isinstance(at, int) or not 0 <= at <= 40:
            raise StateError("The state of the user's stream is damaged.")
        self.at = at


def mixture(unit: Any = "samples", **options: Any) -> penstock.MixtureDataset:
    sources = {
        name: penstock.dataset(np.arange(first, first + size)).with_lengths(np.arange(size) % 3 + 1)
        for name, first, size in (("a", 0, 10), ("b", 10, 30))
    }
    return penstock.mix(sources, {"a": 3, "b": 1}, unit=unit, **options)


def loaders() -> list[Any]:
    data, lengths = np.arange(40), np.arange(40) % 7 + 1
    documents = mixture().map(lambda number: np.full(int(number) % 3 + 1, number))
    rows = penstock.pack(documents, 8, lengths=np.concatenate([np.arange(10) % 3 + 1, np.arange(10, 40) % 3 + 1]))
    return [
        penstock.DataLoader(mixture(), 4, seed=3),
        penstock.DataLoader(mixture("tokens", stop="all"), 4, seed=3),
        penstock.DataLoader(rows, 1, seed=3),
        penstock.DataLoader(data, batch_tokens=16, lengths=lengths, shuffle=True, seed=3),
        penstock.DataLoader(data, 4, lengths=lengths, balance="tokens", accumulate=2, shuffle=True, seed=3),
        penstock.DataLoader(data, 4, shuffle=True, seed=3),
        penstock.DataLoader(data, 4, shuffle=True, last_batch="rollover"),
        penstock.DataLoader(data, 4, shard=(1, 2), seed=3, in_order=False),
        penstock.DataLoader(Counting(), 4),
        penstock.DataLoader(data, 4, shuffle=True, seed=3, commit=True),
    ]


@cache
def seeds() -> list[bytes]:
    found = []
    for loader in loaders():
        with loader:
            for steps in (0, 3):
                list(islice(loader.batches(), steps))
                found.append(json.dumps(loader.state_dict()).encode())
                if hasattr(loader.dataset, "__mixture__"):
                    loader.update(weights={"a": 1, "b": 1 + steps})
                    found.append(json.dumps(loader.state_dict()).encode())
                loader.load_state_dict(loader.state_dict())
    with loaders()[-1] as loader:  # two epochs, of which every second batch is committed
        for batch in (*loader.batches(), *islice(loader.batches(), 5)):
            if batch.step % 2:
                loader.commit(batch)
        found.append(json.dumps(loader.state_dict()).encode())
    return found


def explain(data: bytes, state: Any) -> None:
    about = state.get("about") if isinstance(state, dict) else None
    world = about.get("world") if isinstance(about, dict) else None
    if isinstance(world, int) and world > 100:
        return  # each rank is explained, so thousands take seconds
    with scratch.files({"state.json": data}) as folder, suppress(ValueError, IndexError, StateError):
        explanation(f"{folder}/state.json", 2, None, None)


def attack(data: bytes) -> None:
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):  # not ours
        return
    explain(data, state)
    refused, tried = 0, loaders()
    for loader in tried:
        with loader:
            try:
                loader.load_state_dict(state)
                for batch in (*islice(loader.batches(), 12), *islice(loader.batches(), 12)):
                    numbers = batch.data["tokens"] if isinstance(batch.data, dict) else batch.data
                    assert numbers.dtype == np.int64 and ((numbers >= 0) & (numbers < 40)).all()
            except StateError:
                refused += 1
    if refused == len(tried):
        raise StateError("by all loaders")
