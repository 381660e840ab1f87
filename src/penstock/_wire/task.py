"""Tasks for workers, and their outcomes. A task consists of one or more steps of a plan.

The parent writes a task's keys to the start of the task's slab (the memory for its batch), and a notice of fixed size
to the board. Tasks and outcomes are named tuples: one of each is made for every batch, and a frozen dataclass would
take three times as long to make.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._wire.failure import safe_text
from penstock._wire.modules import ABSENT
from penstock._wire.pickling import dumps, loads

# The largest number of steps in one task.
MOST_STEPS = 32

new = tuple.__new__
"""`new(Task, (seq, run, ...))`, with all fields, takes a third of the time of `Task(seq, run, ...)`."""


class Task(NamedTuple):
    """One or more steps for a worker.

    `seq` is the task's number, unique in an engine. `run` is the number of the `iter()` call that the task belongs
    to, unique in a loader. The content of `keys` depends on the feed. A task with several short steps is called a
    bundle. It has the keys of all its steps, with the same number of keys for each step.

    `mark` is the position of the sampler or stream after this step, if the sampler or stream has a state. A sampler's
    mark is stored in the task, but not sent to the worker. A stream's mark comes with the worker's reply.

    >>> bundle = Task(seq=4, run=0, epoch=0, step=10, keys=[20, 21, 22, 23], steps=2)
    >>> [(task.seq, task.step, task.keys) for task in bundle.single()]
    [(4, 10, [20, 21]), (5, 11, [22, 23])]
    """

    seq: int
    run: int
    epoch: int
    step: int
    keys: Any
    steps: int = 1
    mark: bytes | None = None

    def single(self) -> list[Task]:
        """Returns one task per step, numbered `seq`, `seq + 1` and so on. No other task uses these numbers."""
        seq, run, epoch, step, keys, count, _ = self
        if count == 1:
            return [self]
        share = len(keys) // count
        parts = [keys[i * share : (i + 1) * share] for i in range(count)]
        return [new(Task, (seq + i, run, epoch, step + i, part, 1, None)) for i, part in enumerate(parts)]


class Opening(NamedTuple):
    """Stands in for the keys of a task if the worker may have to open the stream first."""

    size: int  # samples to read; a task for a stream that is already open has only this number instead of keys
    mark: Any  # the saved position to continue from, or None for the beginning
    after: int = -1  # a worker that has just read this run to its end is already at `mark`, and does not load it


class Raised(NamedTuple):
    """Stands in for the keys of a task if the sampler or stream raised an error."""

    error: BaseException


class Mended(NamedTuple):
    """The details of a step that was completed although some of its samples failed."""

    keys: list[Any]  # of the samples in the batch; for a stream, a key is a position in the stream
    rows: list[int]  # the positions that these samples would have if no sample had failed
    errors: list[tuple[Any, Any]]  # (key, exception) of each failure; between processes, the exception is bytes


class Notice(NamedTuple):
    """A task without its keys, as it is written to the board (a table in shared memory)."""

    seq: int
    run: int
    epoch: int
    step: int
    keys: int  # length in bytes; negative if the keys are pickled
    steps: int
    updates: int  # how many bytes of the update log the worker must apply first
    extent: int
    length: int
    start: int
    capacity: int

    def task(self, root: NDArray[np.uint8]) -> Task:
        """Returns the task, with its keys read from the slab. Unpickling the keys may raise any exception."""
        seq, run, epoch, step, size, steps = self[:6]
        if size >= 0:
            keys: Any = root[:size].view(_INT64)
            keys.setflags(write=False)
        else:
            keys = loads(root[:-size].data)
        return Task(seq, run, epoch, step, keys, steps)


NOTICE = struct.Struct(f"<{len(Notice._fields)}q")

_INT64, _UINT8 = np.dtype(np.int64), np.dtype(np.uint8)


def encode_keys(keys: Any, batched: bool, main_is_there: bool) -> tuple[NDArray[np.uint8], int]:
    """Returns a task's keys as bytes (an int64 array if possible, else a pickle), and the value of `Notice.keys`."""
    if batched:  # otherwise a list is a single key
        if type(keys) is list and set(map(type, keys)) == {int}:
            with suppress(OverflowError):
                keys = np.array(keys, np.int64)
        if type(keys) is np.ndarray and keys.dtype == _INT64 and keys.ndim == 1 and keys.flags.c_contiguous:
            return keys.view(_UINT8), keys.nbytes
    data = dumps(keys)
    # `main_is_there` is True if workers have this process's `__main__` and can find its classes.
    if not main_is_there and any(name in data for name in ABSENT):
        data = dumps(keys, by_value=True, fresh=True)
    return np.frombuffer(data, np.uint8), -len(data)


def shorten(keys: Any) -> str:
    """Returns a step's keys as text for a message. A long list is cut short, and its length is added."""
    if type(keys) is tuple:  # one key
        return shorten_key(keys)
    if not isinstance(keys, (list, np.ndarray)):
        return safe_text(keys, repr)
    few = keys[:6].tolist() if isinstance(keys, np.ndarray) else keys[:6]
    text = ", ".join(map(shorten_key, few))
    return f"[{text}, ... {len(keys)} in all]" if len(keys) > 6 else f"[{text}]"


def shorten_key(key: Any, show: Callable[[object], str] = repr) -> str:
    """Returns a key as text for a message. A long tuple, such as the key of a packed row, is cut short."""
    if type(key) is not tuple or len(key) <= 6:
        return safe_text(key, show)
    text = ", ".join(safe_text(each, repr) for each in key[:6])
    return f"({text}, ... {len(key)} in all)"


class Filled(NamedTuple):
    """A step whose batch is ready. Making the batch took `seconds`.

    `held` is what the backend needs to open the batch. `root` is an array over the batch's memory, and stays alive as
    long as any view of this memory. `mark` has the same meaning as in `Task`.
    """

    seq: int
    worker: int
    rows: int
    nbytes: int
    seconds: float
    root: NDArray[np.uint8]
    held: Any
    mended: Mended | None = None
    mark: bytes | None = None


class Failed(NamedTuple):
    """A step in which the user's code raised an exception."""

    seq: int
    worker: int
    error: BaseException
    mark: bytes | None = None


class Bundle(NamedTuple):
    """A finished task with several steps. Their batches are views of `root`, in one slab."""

    seq: int
    worker: int
    nbytes: int
    seconds: float
    steps: list[Filled | Failed]
    root: NDArray[np.uint8]


class Ended(NamedTuple):
    """A step for which the stream had no samples left. The next epoch starts at `mark`."""

    seq: int
    worker: int
    mark: bytes | None = None
