"""Datasets, samplers and functions of the parity suite, importable by workers of every start method."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


def noise() -> torch.Tensor:
    """One draw from each generator that torch seeds in its workers."""
    return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)


def whoami() -> int:
    info = get_worker_info()
    return -1 if info is None else info.id


@dataclass
class Noisy(Dataset[Any]):
    """A sample tells its key, who made it, and what the random generators gave there and then."""

    n: int
    bad: frozenset[int] = frozenset()
    tag: int = 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> dict[str, Any]:
        if key in self.bad:
            raise ValueError(f"bad sample {key}")
        return {"key": key, "worker": whoami(), "noise": noise(), "tag": self.tag}

    def tag_myself(self, worker: int) -> None:
        """A worker_init_fn that is a method of the dataset."""
        self.tag = 100 + worker


class NoisyMany(Noisy):
    """The same, many at once."""

    def __getitems__(self, keys: list[int]) -> list[dict[str, Any]]:
        order = list(reversed(keys))  # so that it shows which of the two methods was called
        return list(reversed([self[key] for key in order]))


@dataclass
class NoisyStream(IterableDataset[Any]):
    """Every worker has all of it."""

    n: int
    bad: frozenset[int] = frozenset()
    tag: int = 0

    def __iter__(self) -> Iterator[Any]:
        for key in self.keys():
            if key in self.bad:
                raise ValueError(f"bad sample {key}")
            yield {"key": key, "worker": whoami(), "noise": noise(), "tag": self.tag}

    def keys(self) -> range:
        return range(self.n)

    def tag_myself(self, worker: int) -> None:
        self.tag = 100 + worker


class NoisyShards(NoisyStream):
    """Every worker has its share, some of them shorter."""

    def keys(self) -> range:
        info = get_worker_info()
        return range(self.n) if info is None else range(info.id, self.n, info.num_workers)


class NoisyUneven(NoisyStream):
    """The first worker has nothing, the last has the most."""

    def keys(self) -> range:
        info = get_worker_info()
        return range(self.n) if info is None else range(self.n * info.id // info.num_workers)


@dataclass
class Made(Dataset[Any]):
    """Samples that a function makes of their keys."""

    n: int
    make: Any

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: Any) -> Any:
        return self.make(key)


@contextmanager
def gated(n: int, waits: int) -> Iterator[tuple[Made, Callable[[], object]]]:
    """A dataset of which one sample waits, and a function that lets it go on."""
    gate, key = os.pipe()

    def make(number: int) -> int:
        if number == waits:
            os.read(gate, 1)
        return number

    try:
        yield Made(n, make), lambda: os.write(key, b"x")
    finally:
        os.close(gate)
        os.close(key)


@dataclass
class MadeStream(IterableDataset[Any]):
    """A stream that a function makes."""

    make: Any

    def __iter__(self) -> Iterator[Any]:
        return self.make()  # type: ignore[no-any-return]


@dataclass
class Asked(Sampler[Any]):
    """Draws each key from the global generator, when asked for it, and writes that down."""

    keys: list[Any]
    tape: list[Any] = field(repr=False)
    sized: bool = True

    def __iter__(self) -> Iterator[Any]:
        for key in self.keys:
            self.tape.append(("asked", key, torch.rand(()).item()))
            yield key
        self.tape.append("nothing more to ask for")

    def __len__(self) -> int:
        return len(self.keys)


def identity(samples: Any) -> Any:
    return samples


@dataclass
class Bundle:
    """An odd thing for a collate_fn to return: picklable, and no container that anyone knows."""

    keys: torch.Tensor
    noise: np.ndarray[Any, Any]
    names: tuple[str, ...]
    extra: Any = None


def bundle(samples: Any) -> Bundle:
    samples = samples if isinstance(samples, list) else [samples]
    return Bundle(
        torch.tensor([sample["key"] for sample in samples], dtype=torch.int16),
        np.stack([sample["noise"].numpy() for sample in samples]),
        tuple(f"sample {sample['key']} of worker {sample['worker']}" for sample in samples),
        {"tags": {sample["tag"] for sample in samples}, "more draws": random.random()},
    )


def seed_python(worker: int) -> None:
    """A worker_init_fn: what it seeds must stay seeded."""
    random.seed(worker)
    torch.rand(worker)


def tell_worker(_: Any) -> dict[str, Any]:
    """What a sample can see of its worker."""
    info = get_worker_info()
    if info is None:
        return {"worker": None}
    return {
        "worker": info.id,
        "of": info.num_workers,
        "seed": info.seed,
        "dataset": type(info.dataset).__name__,
        "rng": repr(getattr(info, "rng", None)),
        "method": getattr(info, "worker_method", None),
        "threads": torch.get_num_threads(),
        "type": type(info).__name__,
    }


def tell_pid(_: Any) -> tuple[int, int]:
    return whoami(), os.getpid()
