"""Datasets that the laws of a backend are checked with. They can be sent anywhere."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock import Dataset, IterableDataset, rng


class Numbers(Dataset[Any]):
    """Sample i is i, with attributes for `update`: how often the dataset was changed, and to what."""

    def __init__(self, n: int = 40) -> None:
        self.n = n
        self.size = 1
        self.times = 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        return key, self.size, self.times

    def double(self) -> None:
        self.times *= 2


class Rich(Dataset[Any]):
    """Samples with every kind of content: arrays, numbers, text, bytes, nested."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, key: int) -> Any:
        return {
            "array": np.full((3, 2), key, np.float32),
            "number": key / 2,
            "flag": key % 2 == 0,
            "text": "x" * (key * 37 % 400),
            "raw": bytes([key]) * key,
            "nested": [(np.arange(4) + key, {"deep": np.int16(key)}), key],
            "empty": np.zeros((0, 2)),
        }


class Ragged(Dataset[Any]):
    """Sample i is an array of `sizes[i]` numbers, all i."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, key: int) -> Any:
        return np.full(self.sizes[key], key)


class Drawn(Dataset[Any]):
    """Samples that draw from `penstock.rng()`, and from the global generators too if `everywhere`."""

    def __init__(self, everywhere: bool) -> None:
        self.everywhere = everywhere

    def __len__(self) -> int:
        return 20

    def __getitem__(self, key: int) -> Any:
        more = (random.random(), np.random.random()) if self.everywhere else (0.0, 0.0)
        return np.array([key, rng().random(), *more])


class Echo(Dataset[Any]):
    """Gives back the type and the value of the key that it is asked for."""

    def __getitem__(self, key: Any) -> Any:
        return type(key).__name__, key


class Countdown(IterableDataset[Any]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        return iter(range(self.n, 0, -1))


class Light(Countdown):
    """A stream of light items, which workers load."""

    size = 1

    def load(self, item: int) -> Any:
        return item * 3, self.size


class Stateful(IterableDataset[Any]):
    """A stream that can be continued: it has a state, and counts its epochs."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.at = self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.n:
            self.at += 1
            yield self.at, self.epoch, rng().random()
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Gated(Dataset[Any]):
    """Sample `key` waits until there is a file at `gate`."""

    def __init__(self, gate: str, key: int, n: int = 6) -> None:
        self.gate, self.key, self.n = gate, key, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        while key == self.key and not os.path.exists(self.gate):
            time.sleep(0.001)
        return key


class Unsendable:
    """A key, or a change, that cannot be sent to a worker."""

    def __call__(self, dataset: Any) -> None:
        dataset.size = -1

    def __reduce__(self) -> Any:
        raise LookupError("not to be sent")


def once_more(dataset: Any) -> None:
    """A change that is noticed if it is made twice."""
    dataset.times += 1
