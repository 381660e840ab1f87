"""Tasks for workers, and their outcomes. A task consists of one or more steps of a plan.

The parent writes the keys of a task to the beginning of its slab (the memory for its batch), and a notice of fixed
size to the board (a table in shared memory). A worker reads both and makes the task from them. Tasks and outcomes are
named tuples, because one is made for every batch, and making one takes a third of the time of a frozen dataclass.
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
    """One or more steps for a worker.

    `seq` is the task's number, unique in an engine. `run` is the number of the `iter()` call that the task belongs
    to, unique in a loader. What `keys` contains depends on the feed. A task with several short steps is called a
    bundle. It has the keys of all its steps, with the same number of keys for each step.

    `mark` is the position of the sampler or stream after this step, if the sampler or stream has a state. A sampler's
    mark is stored in the task, but not sent to the worker. A stream's mark comes with the worker's reply.
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
        return [Task(seq + i, run, epoch, step + i, keys[i * share : (i + 1) * share]) for i in range(count)]


class Opening(NamedTuple):
    """Takes the place of a task's keys if the worker may have to open the stream first.

    `size` is the number of samples to read. (A task for a stream that is already open has only this number instead of
    keys.) The stream continues from `mark`, a saved position, or starts at its beginning if `mark` is None. `mark` is
    not loaded if the worker has just read run number `after` to its end, because its stream is then already at
    `mark`.
    """

    size: int
    mark: Any
    after: int = -1


class Raised(NamedTuple):
    """Takes the place of a task's keys if the sampler or stream raised an error."""

    error: BaseException


class Mended(NamedTuple):
    """A description of a step that was completed although some of its samples failed.

    `keys` are the keys of the samples in the batch, and `rows` are the positions that these samples would have if no
    sample had failed. `errors` has a pair (key, exception) for each failure. Between processes, the exception is sent
    as bytes. For a stream, a key is a position in the stream.
    """

    keys: list[Any]
    rows: list[int]
    errors: list[tuple[Any, Any]]


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
        """In the worker: returns the task, with its keys read from the slab.

        If the keys are pickled, unpickling them may raise any exception.
        """
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
    """In the parent: returns a task's keys as bytes, and the value for `Notice.keys`, which says how to read them.

    An int64 array, or a list of ints, is sent as an array. Everything else is pickled. `batched` is False if samples
    are not batched, so that a list is a single key. `main_is_there` is True if workers have this process's `__main__`
    and can find its classes.
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
    """Returns the first few keys of a step and the number of keys, as text for a message."""
    if not isinstance(keys, (list, np.ndarray)):
        return safe_text(keys, repr)
    few = keys[:6].tolist() if isinstance(keys, np.ndarray) else keys[:6]
    text = ", ".join(safe_text(key, repr) for key in few)
    return f"[{text}, ... {len(keys)} in all]" if len(keys) > 6 else f"[{text}]"


class Filled(NamedTuple):
    """A step whose batch is ready. Making the batch took `seconds`.

    `held` is what the backend needs to open the batch. `root` is an array over the batch's memory, and stays alive as
    long as any view of this memory. `mark` is the same as in `Task`.
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
    """A finished task with several steps. Their batches are in one slab, as views of `root`."""

    seq: int
    worker: int
    nbytes: int
    seconds: float
    steps: list[Filled | Failed]
    root: NDArray[np.uint8]


class Ended(NamedTuple):
    """A step for which the stream had no samples left. `mark` is the position that the next epoch starts from."""

    seq: int
    worker: int
    mark: bytes | None = None
