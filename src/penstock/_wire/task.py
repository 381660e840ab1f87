"""Tasks for workers, and their outcomes. A task is one step of a plan, or several.

The parent writes the keys of a task to the beginning of its slab, and a notice of fixed size onto the board. A worker
reads the notice, and makes the task from both. Tasks and outcomes are named tuples because one is made for every
batch: they cost a third of a frozen dataclass.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._wire.failure import safe_text
from penstock._wire.modules import ABSENT
from penstock._wire.pickling import dumps, loads

# The largest number of steps in one task.
MOST_STEPS = 32


class Task(NamedTuple):
    """One or more steps for a worker. `seq` is unique in an engine; `run`, one for each `iter()`, in a loader.

    The feed that drew `keys` knows what they are. Several short steps may travel in one task (a bundle): then `keys`
    has `steps` equal shares.

    `mark` is the position of the sampler or stream after this step, if it has a state. It stays in the calling
    process, or comes from the worker that reads the stream.
    """

    seq: int
    run: int
    epoch: int
    step: int
    keys: Any
    steps: int = 1
    mark: bytes | None = None

    def single(self) -> list[Task]:
        """One task for each step. Their seqs follow `seq`, and no other task has them."""
        seq, run, epoch, step, keys, count, _ = self
        if count == 1:
            return [self]
        share = len(keys) // count
        return [Task(seq + i, run, epoch, step + i, keys[i * share : (i + 1) * share]) for i in range(count)]


class Opening(NamedTuple):
    """Takes the place of a task's keys, which are `size` alone, if the worker may have to open the stream first.

    The stream continues from `mark`, or begins if there is none. If a worker has read the run number `after` to its
    end, its stream is in that state already.
    """

    size: int
    mark: Any
    after: int = -1


class Raised(NamedTuple):
    """Takes the place of a task's keys: the error that the sampler or stream raised instead."""

    error: BaseException


class Mended(NamedTuple):
    """A step that was done although some of its samples failed.

    `keys` are the keys of the rows in the batch, and `rows` the positions that these would have if no sample had
    failed. `errors` has a key and an exception for each failure; the exception is bytes while it travels. In a
    stream, a key is a position.
    """

    keys: list[Any]
    rows: list[int]
    errors: list[tuple[Any, Any]]


class Notice(NamedTuple):
    """A task as it is written to the board: everything except its keys."""

    seq: int
    run: int
    epoch: int
    step: int
    keys: int  # length in bytes; negative if the keys are pickled
    steps: int
    updates: int  # the length of the log that the worker must apply first
    extent: int
    length: int
    start: int
    capacity: int

    def task(self, root: NDArray[np.uint8]) -> Task:
        """In the worker: the task, with its keys read from the slab. Pickled keys may raise any exception."""
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
    """In the parent: the keys of a task as bytes for the slab, and `Notice.keys`.

    An int64 array, or a list of ints, travels as an array; everything else is pickled. `batched`: a list is the keys
    of a batch, and not one key. `main_is_there`: workers have the `__main__` of this process, and find its classes.
    """
    if batched:
        if type(keys) is list and set(map(type, keys)) == {int}:
            with suppress(OverflowError):
                keys = np.array(keys, np.int64)
        if type(keys) is np.ndarray and keys.dtype == _INT64 and keys.ndim == 1 and keys.flags.c_contiguous:
            return keys.view(_UINT8), keys.nbytes
    data = dumps(keys)
    if not main_is_there and any(name in data for name in ABSENT):
        data = dumps(keys, by_value=True, fresh=True)
    return np.frombuffer(data, np.uint8), -len(data)


def shorten(keys: Any) -> str:
    """The first few keys of a step and their number, for a message."""
    if not isinstance(keys, (list, np.ndarray)):
        return safe_text(keys, repr)
    few = keys[:6].tolist() if isinstance(keys, np.ndarray) else keys[:6]
    text = ", ".join(safe_text(key, repr) for key in few)
    return f"[{text}, ... {len(keys)} in all]" if len(keys) > 6 else f"[{text}]"


class Filled(NamedTuple):
    """The batch of the step is ready, and took `seconds`. `held` is what the backend needs to open it.

    All views of the slab keep `root` alive. `mark`: see `Task`.
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
    """The user's code raised an exception in the step."""

    seq: int
    worker: int
    error: BaseException
    mark: bytes | None = None


class Bundle(NamedTuple):
    """All steps of a task with several steps are done. Their batches are in one slab: views of `root`."""

    seq: int
    worker: int
    nbytes: int
    seconds: float
    steps: list[Filled | Failed]
    root: NDArray[np.uint8]


class Ended(NamedTuple):
    """The stream had no samples left for the step. `mark`: see `Run.end`."""

    seq: int
    worker: int
    mark: bytes | None = None
