"""Changes of the dataset while workers have it: a log that every worker catches up with before a task.

The log is a file without a name that all workers of a crew share. It only grows; its length before each task
was posted is part of the task, so a worker knows how far to read.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable, Mapping
from typing import Any

_LENGTH = struct.Struct("<q")

Change = Callable[[Any], object]


class Setting:
    """The change that sets attributes of the dataset."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self._attributes = dict(attributes)

    def __call__(self, dataset: Any) -> None:
        for name, value in self._attributes.items():
            setattr(dataset, name, value)


class Restoring:
    """The change that gives the dataset back a state of its own."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __call__(self, dataset: Any) -> None:
        dataset.load_state_dict(self._state)


def packed(change: Change) -> bytes:
    import cloudpickle  # late: 25 ms, for the few who need it

    data: bytes = cloudpickle.dumps(change)
    return data


class Log:
    """Where the changes are. `end` is how much of it this process has written, or applied to its dataset.

    A forked worker begins at its parent's end, with the dataset as it is there; any other at 0, with the dataset
    as it was shipped.
    """

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end = 0

    def write(self, fd: int, change: bytes) -> None:
        """Adds a change that `packed` has packed."""
        os.pwrite(fd, _LENGTH.pack(len(change)) + change, self.end)
        self.end += _LENGTH.size + len(change)

    def catch_up(self, fd: int, end: int, dataset: Any) -> None:
        """Applies to the dataset what was written up to `end`."""
        while self.end < end:
            (length,) = _LENGTH.unpack(os.pread(fd, _LENGTH.size, self.end))
            change: Change = pickle.loads(os.pread(fd, length, self.end + _LENGTH.size))
            self.end += _LENGTH.size + length  # also where it fails: the next task has it behind
            change(dataset)
