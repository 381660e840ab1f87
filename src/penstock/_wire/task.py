"""A task: one step of the plan, or several, on its way to a worker.

The parent writes the keys of a task to the beginning of its slab, and a notice of fixed size onto the board. A worker
reads the notice, and makes the task from both.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._wire.pickling import dumps, loads


class Kind(IntEnum):
    """What `Task.keys` holds."""

    KEYS = 0  # the keys of one batch
    KEY = 1  # one key, not batched
    ITEMS = 2  # the light items of one batch, from which `load` makes the samples
    ITEM = 3  # one light item, not batched
    PULL = 4  # the number of samples to take from the stream for one batch
    PULL_ONE = 5  # one sample from the stream, not batched


# Samples are named by key: all datasets except streams.
BY_KEY = (Kind.KEYS, Kind.KEY)
# Streams that a worker reads.
PULLED = (Kind.PULL, Kind.PULL_ONE)
BATCHED = frozenset({Kind.KEYS, Kind.ITEMS, Kind.PULL})


# The largest number of steps in one task.
MOST_STEPS = 32


class Task(NamedTuple):
    """`seq` is unique in the life of a crew; `run` is unique in the life of a loader, one for each `iter()`.

    Short steps travel several in one task: `steps` equal shares of `keys`.

    `mark` is the position of the sampler or stream after this step, if it has a state. It stays in the calling
    process, or comes from the worker that reads the stream.
    """

    seq: int
    run: int
    epoch: int
    step: int
    kind: Kind
    keys: Any
    steps: int = 1
    mark: bytes | None = None

    def single(self) -> list[Task]:
        """One task for each step. Their seqs follow `seq`, and no other task has them."""
        seq, run, epoch, step, kind, keys, count, _ = self
        if count == 1:
            return [self]
        share = len(keys) // count
        return [
            Task(seq + i, run, epoch, step + i, kind, keys[i * share : (i + 1) * share]) for i in range(count)
        ]


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
    """A task as it stands on the board: everything but its keys."""

    seq: int
    run: int
    epoch: int
    step: int
    kind: int
    keys: int  # length in bytes; negative if the keys are pickled
    steps: int
    updates: int  # the length of the log that a worker applies first
    extent: int
    length: int
    start: int
    capacity: int

    def task(self, root: NDArray[np.uint8]) -> Task:
        """In the worker: the task, with its keys read from the slab. Pickled keys may raise any exception."""
        seq, run, epoch, step, kind, size, steps, *_ = self
        if size >= 0:
            keys: Any = root[:size].view(np.int64)
            keys.flags.writeable = False
        else:
            keys = loads(root[:-size].data)
        if _SINGLE[kind]:
            (keys,) = keys
        return Task(seq, run, epoch, step, _KINDS[kind], keys, steps)


NOTICE = struct.Struct(f"<{len(Notice._fields)}q")

_KINDS = tuple(Kind)
_SINGLE = tuple(kind not in BATCHED for kind in Kind)
_INT64, _UINT8 = np.dtype(np.int64), np.dtype(np.uint8)


def encode_keys(task: Task, main_is_there: bool) -> tuple[NDArray[np.uint8], int]:
    """In the parent: the keys of a task as bytes for the slab, and `Notice.keys`.

    An int64 array, or a list of ints, travels as an array; everything else is pickled. `main_is_there`: workers have
    the `__main__` of this process, and can look up its classes.
    """
    keys = task.keys
    if _SINGLE[task.kind]:
        keys = (keys,)  # a list that is one key must not arrive as an array
    if type(keys) is list and set(map(type, keys)) == {int}:
        with suppress(OverflowError):
            keys = np.array(keys, np.int64)
    if type(keys) is np.ndarray and keys.dtype == _INT64 and keys.ndim == 1 and keys.flags.c_contiguous:
        return keys.view(_UINT8), keys.nbytes
    data = dumps(keys)
    if b"__main__" in data and not main_is_there:
        data = dumps(keys, by_value=True)
    return np.frombuffer(data, np.uint8), -len(data)


def shorten(keys: Any) -> str:
    """The first few keys of a step and their number, for a message."""
    if not isinstance(keys, (list, np.ndarray)):
        return repr(keys)
    shown = ", ".join(repr(key) for key in (keys[:6].tolist() if isinstance(keys, np.ndarray) else keys[:6]))
    return f"[{shown}, ... {len(keys)} in all]" if len(keys) > 6 else f"[{shown}]"
