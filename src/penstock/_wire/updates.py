"""Changes of the dataset while workers have it: a log that every worker catches up with before a task.

The log is a file without a name that all workers of a crew share. It only grows; its length before each task
was posted is part of the task, so a worker knows how far to read.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from penstock._wire.failure import tag, tagged

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


Known = weakref.WeakValueDictionary[int, type]


def classes_of_main() -> Known:
    """The classes of the program, by id: a worker that is forked from now on has them, and knows them by tag."""
    found: Known = weakref.WeakValueDictionary()
    todo: list[object] = [sys.modules["__main__"]]
    while todo:
        for value in tuple(vars(todo.pop()).values()):
            ours = issubclass(type(value), type) and vars(value).get("__module__") == "__main__"
            if ours and id(value) not in found:
                with suppress(TypeError):  # a metaclass may leave its classes without a hash
                    tag(value)
                    found[id(value)] = value
                    todo.append(value)
    return found


def packed(change: Change, known: Known | None = None) -> bytes:
    """The change as bytes. Of classes without an importable name, those that are `known` go by tag.

    All others go by value, and arrive as other classes: `is`, `==` and isinstance would say that they differ.
    """
    import cloudpickle  # late: 25 ms, for the few who need it

    file = io.BytesIO()
    pickler = cloudpickle.Pickler(file, protocol=5)
    by_value = pickler.reducer_override

    def reduce(part: Any) -> Any:
        found = None if known is None else known.get(id(part))
        if found is not None and found is part:
            return tagged, (tag(found),)
        return by_value(part)

    pickler.reducer_override = reduce
    try:
        pickler.dump(change)
    finally:
        del pickler.reducer_override  # a cycle that would keep the change alive
    return file.getvalue()


class Log:
    """Where the changes are. `end` is how much of it this process has written, or applied to its dataset.

    A forked worker begins at its parent's end, with the dataset as it is there; any other at the end that was shipped
    with its dataset.
    """

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end = 0

    def write(self, fd: int, change: bytes) -> None:
        """Adds a change that `packed` has packed."""
        entry, done = memoryview(_LENGTH.pack(len(change)) + change), 0
        while done < len(entry):  # Linux writes, and reads, at most 2 GiB a call
            done += os.pwrite(fd, entry[done:], self.end + done)
        self.end += done

    def read(self, fd: int, end: int) -> Iterator[Change]:
        """What was written up to `end`, each change once."""
        while self.end < end:
            (length,) = _LENGTH.unpack(_read(fd, self.end, _LENGTH.size))
            start = self.end + _LENGTH.size
            self.end = start + length
            change: Change = pickle.loads(_read(fd, start, length))
            yield change


def _read(fd: int, start: int, length: int) -> bytearray:
    data, done = bytearray(length), 0
    while done < length:
        done += os.preadv(fd, [memoryview(data)[done:]], start + done)
    return data
