"""Datasets and functions that the conformance suite sends to workers of every kind."""

from __future__ import annotations

import os
import random
import time
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock import Dataset, IterableDataset, each, get_worker_info, rng
from penstock.testing._sources import Countdown

Pair = namedtuple("Pair", ["image", "label"])


@dataclass
class Sample:
    pixels: Any
    name: str
    score: float


class Squares(Dataset[Any]):
    """Sample i is i squared."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        return key * key


class Rich(Dataset[Any]):
    """A sample with every kind of leaf and container that collate knows."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, key: int) -> Any:
        return {
            "array": np.full((3, 2), key, np.float32),
            "scalar": np.int16(key),
            "int": key,
            "float": key / 2,
            "flag": key % 2 == 0,
            "text": f"sample {key}",
            "raw": bytes([key]),
            "pair": Pair(np.arange(key, key + 4, dtype=np.uint8), key),
            "nested": [{"deep": (np.float64(key), np.zeros((0, 2)))}, key],
            "data": Sample(np.ones((2, 2), np.int32) * key, str(key), 0.5 * key),
            "when": np.datetime64("2026-01-01") + np.timedelta64(key, "D"),
        }


class Batched(Dataset[Any]):
    """Fetches many keys at once."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int) -> Any:
        raise AssertionError("__getitems__ is there for that")

    def __getitems__(self, keys: list[int]) -> Any:
        assert type(keys) is list and all(type(key) is int for key in keys)
        return [self.rows[key] for key in keys]


class Gathered(Batched):
    """Fetches many keys at once, as one array."""

    def __getitems__(self, keys: list[int]) -> Any:
        return self.rows[keys]


class Growing(Dataset[Any]):
    """Batches of different sizes: sample i has i numbers, so batches must have one sample."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, key: int) -> Any:
        return np.arange(self.sizes[key], dtype=np.int64)


class Noisy(Dataset[Any]):
    """Draws from both global generators."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: int) -> Any:
        return np.array([random.random(), np.random.random(), np.random.randint(1 << 30), key])


class Failing(Dataset[Any]):
    """Raises for some keys."""

    def __init__(self, n: int, bad: dict[int, BaseException]) -> None:
        self.n = n
        self.bad = bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        if key in self.bad:
            raise self.bad[key]
        return key


class Odd(Exception):
    """Cannot be made from its args."""

    def __init__(self, first: int, *, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.first = first
        self.second = second


class Oddly(Squares):
    """Raises an exception with an odd constructor."""

    def __init__(self) -> None:
        super().__init__(2)

    def __getitem__(self, key: int) -> Any:
        raise Odd(3, second="four")


class Whereabouts(Dataset[Any]):
    """Says in which worker a sample was fetched."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: int) -> Any:
        info = get_worker_info()
        if info is None:
            return (-1, 0, os.getpid())
        assert info.dataset is not None and info.seed is not None
        return (info.id, info.num_workers, os.getpid())


class Marked(Dataset[Any]):
    """Reports what worker_init_fn left behind."""

    def __init__(self) -> None:
        self.mark = -1

    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: int) -> Any:
        return self.mark

    def set_mark(self, worker: int) -> None:
        self.mark = 100 + worker


class Light(Countdown):
    """A stream of light items, which workers make heavy."""

    def load(self, item: int) -> Any:
        return np.full(3, item, np.int32)


class Shuffling(IterableDataset[Any]):
    """A stream that draws its order, and loads with noise."""

    def __iter__(self) -> Iterator[Any]:
        for item in range(10):
            yield item + random.random()

    def load(self, item: float) -> Any:
        return np.array([item, np.random.random()])


class Breaking(IterableDataset[Any]):
    """A stream that raises in its middle."""

    def __iter__(self) -> Iterator[Any]:
        yield from range(5)
        raise OSError("the pipe burst")


class Barred(Dataset[Any]):
    """Four numbers. The one with key 1 comes when somebody writes to the pipe at `path`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> Any:
        if key == 1:
            self.wait_at_the_bar()
        return key

    def wait_at_the_bar(self) -> None:
        with open(self.path, "rb") as bar:
            bar.read()


class Slow(Dataset[Any]):
    """Some samples take long."""

    def __init__(self, n: int, slow: dict[int, float]) -> None:
        self.n = n
        self.slow = slow

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        time.sleep(self.slow.get(key, 0))
        return key


def total(samples: list[Any]) -> Any:
    """A collate function of the user's own."""
    return {"sum": sum(samples), "all": np.array(samples), "kinds": {type(sample) for sample in samples}}


def broken_init(worker: int) -> None:
    raise LookupError(f"no licence for worker {worker}")


class Drawing(Dataset[Any]):
    """Draws from the sample's own generator, twice."""

    def __init__(self, n: int = 12) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: Any) -> Any:
        return np.array([rng().random(), rng().random()])


class DrawingMany(Drawing):
    """Draws for all keys of a step at once."""

    def __getitems__(self, keys: list[int]) -> Any:
        return list(rng().random((len(keys), 2)))


class DrawingGather(Drawing):
    """Draws for all keys of a step, straight into the batch."""

    def __gather__(self, keys: Any, empty: Any) -> Any:
        out = empty((len(keys), 2), np.dtype(float))
        rng().random(out=out)
        return out


class DrawingEach(Drawing):
    """Draws for each sample of a step, straight into the batch; key `bad` fails."""

    def __init__(self, n: int = 12, bad: int = -1) -> None:
        super().__init__(n)
        self.bad = bad

    def __getitem__(self, key: Any) -> Any:
        sample = super().__getitem__(key)
        if key == self.bad:
            raise ValueError("bad pixels")
        return sample

    def __gather__(self, keys: Any, empty: Any) -> Any:
        out = empty((len(keys), 2), np.dtype(float))
        for row, key in enumerate(each(keys)):
            out[row] = self[key]
        return out


class DrawingStream(IterableDataset[Any]):
    """A stream that draws its items."""

    def __iter__(self) -> Iterator[Any]:
        for item in range(10):
            yield item + rng().random()


class DrawingItems(DrawingStream):
    """The same, and loads with noise."""

    def load(self, item: float) -> Any:
        return np.array([item, rng().random()])


def noisy_total(samples: list[Any]) -> Any:
    """A collate function that draws."""
    return np.stack(samples) + rng().random()


class FailingItems(IterableDataset[Any]):
    """A stream of light items, some of which cannot be loaded."""

    def __init__(self, n: int, bad: frozenset[int]) -> None:
        self.n = n
        self.bad = bad

    def __iter__(self) -> Iterator[Any]:
        return iter(range(100, 100 + self.n))

    def load(self, item: int) -> Any:
        if item - 100 in self.bad:
            raise LookupError(f"item {item}")
        return item


class FailingMany(Failing):
    """Fetches many keys at once, and fails for all of them if one is bad."""

    def __getitems__(self, keys: list[int]) -> Any:
        return [super(FailingMany, self).__getitem__(key) for key in keys]


class FailingGather(Failing):
    """The same, straight into the batch, of which the first half is written before it fails."""

    def __gather__(self, keys: Any, empty: Any) -> Any:
        out = empty((len(keys),), np.dtype(int))
        for row, key in enumerate(keys):
            out[row] = self[int(key)]
        return out
