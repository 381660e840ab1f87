"""Datasets that raise, stall or die at given keys, around any dataset with keys."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.source._dataset import Dataset, Keyed


class _Around(Dataset[Any]):
    """A dataset around another, which calls `befall` before it fetches the sample of one of the keys."""

    def __init__(self, dataset: Keyed[Any], keys: Collection[Any]) -> None:
        self.dataset = dataset
        self.keys = keys

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        if key in self.keys:
            self.befall(key)
        return self.dataset[key]

    def befall(self, key: Any) -> None:
        raise NotImplementedError


class Raising(_Around):
    """Raises an `error` of this type at these keys, with the key in its message.

    >>> Raising("abc", {1})[1]
    Traceback (most recent call last):
    ValueError: sample 1 is bad
    """

    def __init__(
        self, dataset: Keyed[Any], keys: Collection[Any], error: type[BaseException] = ValueError
    ) -> None:
        super().__init__(dataset, keys)
        self.error = error

    def befall(self, key: Any) -> None:
        raise self.error(f"sample {key!r} is bad")


class Stalling(_Around):
    """Takes `seconds` longer at these keys: to test timeouts, and batches that are done out of order."""

    def __init__(self, dataset: Keyed[Any], keys: Collection[Any], seconds: float) -> None:
        super().__init__(dataset, keys)
        self.seconds = seconds

    def befall(self, key: Any) -> None:
        time.sleep(self.seconds)


class Dying(_Around):
    """Kills the worker process that fetches one of these keys, `lives` times for each key.

    It does nothing in the process that made the dataset, so nothing inline and with threads. Each death is
    written to `file`, as a line with the key, so that all processes know of it. With at most `lives=2` (and
    `retries=2`) the loader retries the step, and its batches are the same as without deaths.
    """

    def __init__(
        self,
        dataset: Keyed[Any],
        keys: Collection[Any],
        file: str | os.PathLike[str],
        lives: int = 1,
        by: signal.Signals = signal.SIGKILL,
    ) -> None:
        super().__init__(dataset, keys)
        self.file = os.fspath(file)
        self.lives = lives
        self.by = by
        self._home = os.getpid()

    @property
    def deaths(self) -> list[str]:
        """The keys at which processes have died so far, as text."""
        return Path(self.file).read_text().splitlines() if os.path.exists(self.file) else []

    def befall(self, key: Any) -> None:
        if os.getpid() == self._home:
            return
        with open(self.file, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the kernel releases the lock when this process dies
            if self.deaths.count(repr(key)) < self.lives:
                file.write(f"{key!r}\n")
                file.flush()
                with suppress(OSError):  # SIGKILL cannot have a handler; workers ignore SIGINT
                    signal.signal(self.by, signal.SIG_DFL)
                os.kill(os.getpid(), self.by)
                signal.pause()  # until the signal arrives
