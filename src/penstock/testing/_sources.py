"""Datasets that the laws of a backend are checked with. They can be sent anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock import Dataset, IterableDataset, rng


class Numbers(Dataset[Any]):
    """Sample i is i, with attributes for `update`: how often the dataset was changed, and to what."""

    size, times = 1, 0

    def __init__(self, n: int = 40) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: Any) -> Any:
        return key, self.size, self.times

    def double(self) -> None:
        self.times *= 2


def once_more(dataset: Any) -> None:
    """A change that is noticed if it is made twice."""
    dataset.times += 1


class Made(Numbers):
    """Sample i is `make(i)`."""

    def __init__(self, n: int, make: Callable[[Any], Any]) -> None:
        self.n, self.make = n, make

    def __getitem__(self, key: Any) -> Any:
        return self.make(key)


def rich(key: int) -> Any:
    """A sample with every kind of content: arrays, numbers, text, bytes, nested."""
    return {
        "array": np.full((3, 2), key, np.float32),
        "number": key / 2,
        "flag": key % 2 == 0,
        "text": "x" * (key * 37 % 400),
        "raw": bytes([key]) * key,
        "nested": [(np.arange(4) + key, {"deep": np.int16(key)}), key],
        "empty": np.zeros((0, 2)),
    }


def drawn(key: int) -> Any:
    return np.array([key, rng().random()])


def drawn_everywhere(key: int) -> Any:
    """Draws from the global generators too."""
    return np.array([key, rng().random(), random.random(), np.random.random()])


def ragged(sizes: list[int]) -> Made:
    """Sample i is an array of `sizes[i]` numbers, all i."""
    return Made(len(sizes), lambda key: np.full(sizes[key], key))


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


class Stateful(Countdown):
    """A stream that can be continued: it has a state, and counts its epochs."""

    at = epoch = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.n:
            self.at += 1
            yield self.at, self.epoch, rng().random()
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Unsendable:
    """A key, or a change, that cannot be sent to a worker."""

    def __call__(self, dataset: Any) -> None:
        dataset.size = -1

    def __reduce__(self) -> Any:
        raise LookupError("not to be sent")
