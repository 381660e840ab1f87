"""Datasets for tests: some for the laws of backends, and some that fail at given keys."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock import Dataset, IterableDataset, rng
from penstock._system.platform import fcntl
from penstock.source._dataset import Keyed

_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL, and no process to kill


@dataclass(eq=False, repr=False)
class _Around(Dataset[Any]):
    """Wraps a dataset, and calls `befall(key)` before fetching a sample whose key is in `keys`."""

    dataset: Keyed[Any]
    keys: Collection[Any]

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        if key in self.keys:
            self.befall(key)
        return self.dataset[key]

    def befall(self, key: Any) -> None:
        raise NotImplementedError


@dataclass(eq=False, repr=False)
class Raising(_Around):
    """A dataset that raises an error of the type `error` at these keys. The message contains the key.

    >>> Raising("abc", {1})[1]
    Traceback (most recent call last):
    ValueError: sample 1 is bad
    """

    error: type[BaseException] = ValueError

    def befall(self, key: Any) -> None:
        raise self.error(f"sample {key!r} is bad")


@dataclass(eq=False, repr=False)
class Stalling(_Around):
    """A dataset that takes `seconds` longer for these keys, to test timeouts and batches that finish out of order.

    >>> Stalling("abc", {1}, seconds=0.01)[1]
    'b'
    """

    seconds: float

    def befall(self, key: Any) -> None:
        time.sleep(self.seconds)


@dataclass(eq=False, repr=False)
class Dying(_Around):
    """A dataset that kills worker processes: each key in `keys` kills the process that fetches it, `lives` times.

    The process that created the dataset is never killed, so the dataset has no effect without workers or with
    threads. Each death is written to `file`, as a line with the key, so that all processes know about it. If no step
    loses more workers than `retries=` allows (2 by default), the batches are the same as without deaths.
    """

    file: str | os.PathLike[str]
    lives: int = 1
    by: signal.Signals = _KILL

    def __post_init__(self) -> None:
        self.file, self._home = os.fspath(self.file), os.getpid()

    @property
    def deaths(self) -> list[str]:
        """The keys at which processes have died so far, as text."""
        return Path(self.file).read_text("utf-8").splitlines() if os.path.exists(self.file) else []

    def befall(self, key: Any) -> None:
        if os.getpid() == self._home:
            return
        with open(self.file, "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the kernel releases the lock when this process dies
            if self.deaths.count(repr(key)) < self.lives:
                file.write(f"{key!r}\n")
                file.flush()
                with suppress(OSError):  # SIGKILL cannot have a handler; workers ignore SIGINT
                    signal.signal(self.by, signal.SIG_DFL)
                os.kill(os.getpid(), self.by)
                signal.pause()  # waits until the signal arrives


class Numbers(Dataset[Any]):
    size, times, ballast = 1, 0, b""

    def __init__(self, n: int = 40) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: Any) -> Any:
        return key, self.size, self.times

    def double(self) -> None:
        self.times *= 2


def once_more(dataset: Any) -> None:
    """A change to pass to `update`. It adds 1 to `times`, so a test notices if the change is applied twice."""
    dataset.times += 1


class FunctionDataset(Numbers):
    def __init__(self, n: int, make: Callable[[Any], Any]) -> None:
        self.n, self.make = n, make

    def __getitem__(self, key: Any) -> Any:
        return self.make(key)


def rich(key: int) -> Any:
    """Returns a sample with every kind of content: arrays, numbers, text, bytes and nested containers."""
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
    return np.array([key, rng().random(), random.random(), np.random.random()])


def ragged(sizes: list[int]) -> FunctionDataset:
    return FunctionDataset(len(sizes), lambda key: np.full(sizes[key], key))


class Countdown(IterableDataset[Any]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        return iter(range(self.n, 0, -1))


class Light(Countdown):
    """A stream of small items. Workers turn the items into samples with `load`."""

    size, times, ballast = 1, 0, b""

    def load(self, item: int) -> Any:
        return item * 3, self.size, self.times


class Stateful(Countdown):
    """A stream that has a state, and so can be resumed. It also counts its epochs."""

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
    """A key, or a change to pass to `update`, that cannot be sent to a worker. Pickling raises LookupError."""

    def __call__(self, dataset: Any) -> None:
        dataset.size = -1

    def __reduce__(self) -> Any:
        raise LookupError("not to be sent")
