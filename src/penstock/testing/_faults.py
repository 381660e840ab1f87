"""Datasets that stall, raise or die at given keys, around any dataset with keys."""

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
    """Another dataset, with something that happens before a sample of some keys is fetched."""

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
    """Raises at these keys: an `error` of this type, with the key in its text.

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
    """Takes so many seconds longer at these keys: for timeouts, and for what comes out of order."""

    def __init__(self, dataset: Keyed[Any], keys: Collection[Any], seconds: float) -> None:
        super().__init__(dataset, keys)
        self.seconds = seconds

    def befall(self, key: Any) -> None:
        time.sleep(self.seconds)


class Dying(_Around):
    """Kills the process at these keys, each `lives` times in all, if it is a worker process.

    Inline, in a thread, or in whichever process made the dataset, it does nothing. Deaths are written to
    `file`, a line with the key for each, so that all processes know of them: with at most `lives=2` (and
    `retries=2`) the loader does the step again, and nobody can tell by its batches.
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
            fcntl.flock(file, fcntl.LOCK_EX)  # the kernel lets go of it when this process dies
            if self.deaths.count(repr(key)) < self.lives:
                file.write(f"{key!r}\n")
                file.flush()
                with suppress(OSError):  # SIGKILL is nobody's to handle; SIGINT is ignored by workers
                    signal.signal(self.by, signal.SIG_DFL)
                os.kill(os.getpid(), self.by)
                signal.pause()  # the signal may take a moment
