"""The datasets of histories.

Their samples are functions of the key, of attributes that `update()` changes, and of the random numbers that belong
to the sample or to the step; so the model can compute them without a loader.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import penstock

Rng = Callable[[], np.random.Generator]


class Attributes:
    """What all sources have: `scale` and `width` may be changed while a loader runs.

    `draws` says which random numbers a sample has: "sample" for those of `penstock.rng()`, "step" for those of the
    global generators. `bad` samples raise. `slow` samples, every fourth one, take that many seconds.
    """

    def __init__(
        self,
        n: int,
        *,
        bad: Sequence[int] = (),
        draws: Sequence[str] = (),
        width: int = 1,
        slow: float = 0,
    ) -> None:
        self.n = n
        self.bad = frozenset(bad)
        self.draws = frozenset(draws)
        self.width = width
        self.slow = slow
        self.scale = 1

    def sample(self, key: int, rng: Rng) -> dict[str, Any]:
        if self.slow and key % 4 == 0:
            time.sleep(self.slow)
        if key in self.bad:
            raise ValueError(f"sample {key} is bad")
        made: dict[str, Any] = {"key": key, "text": "x" * (key % 5)}
        made["row"] = np.full(self.width, key * self.scale, np.float32)
        if "sample" in self.draws:
            made["own"] = int(rng().integers(1 << 40))
        if "step" in self.draws:
            made["common"] = np.random.random() + random.random()
        return made


class Numbers(Attributes, penstock.Dataset[Any]):
    """Samples by key, one by one."""

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        return self.sample(key, penstock.rng)


class AtOnce(Numbers):
    """Samples by key, all of a step in one call."""

    def __getitems__(self, keys: Sequence[int]) -> Any:
        return [self.sample(key, penstock.rng) for key in penstock.each(keys)]


class Saved(Numbers):
    """Samples by key; the dataset has a state, which is part of the loader's."""

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]


class Items(Attributes, penstock.IterableDataset[Any]):
    """A stream of light items, which workers load."""

    def __iter__(self) -> Iterator[Any]:
        yield from range(self.n)

    def load(self, item: int) -> Any:
        return self.sample(item, penstock.rng)


class SavedItems(Items):
    """A stream of light items whose position can be saved."""

    position = begin = 0

    def __iter__(self) -> Iterator[Any]:
        self.position, self.begin = self.begin, 0
        while self.position < self.n:
            self.position += 1
            yield self.position - 1

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin = state["position"]


class Stream(Attributes, penstock.IterableDataset[Any]):
    """A stream that one worker reads. It cannot be continued in another worker, and an error ends it."""

    def __iter__(self) -> Iterator[Any]:
        for key in range(self.n):
            yield self.sample(key, penstock.rng)


class SavedStream(Attributes, penstock.IterableDataset[Any]):
    """A stream whose iterator has a state: it is continued anywhere, and goes on after an error."""

    def __iter__(self) -> Iterator[Any]:
        return Positions(self)


class Positions:
    def __init__(self, stream: SavedStream) -> None:
        self._stream = stream
        self._position = 0

    def __iter__(self) -> Positions:
        return self

    def __next__(self) -> Any:
        if self._position >= self._stream.n:
            raise StopIteration
        self._position += 1
        return self._stream.sample(self._position - 1, penstock.rng)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._position = state["position"]


class Ticket:
    """A sampler with a state: the keys backwards."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.position = self.begin = 0

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        self.position, self.begin = self.begin, 0
        while self.position < self.n:
            self.position += 1
            yield self.n - self.position

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin = state["position"]


class Jumbled:
    """A sampler without a state that draws its keys from the global generators."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.n):
            yield (random.randrange(self.n) + int(np.random.randint(self.n))) % self.n


def as_rows(samples: Sequence[Any]) -> Any:
    """A collate function whose batches are Python objects."""
    return [(sample["key"], sample["text"], sample["row"].tolist()) for sample in samples]


def triple(source: Any) -> None:
    """A change for `update()`."""
    source.scale = source.scale * 3 % 1009


def widen(source: Any) -> None:
    """A change for `update()`, after which batches need more memory."""
    source.width = source.width * 2 % 4001


def refuse(source: Any) -> None:
    """A change for `update()` that fails."""
    raise ValueError("this change fails")
