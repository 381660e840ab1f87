"""Updates: changes to the dataset while workers have copies of it.

The parent appends each change to a log, an unnamed file that all workers share. Each task contains the length of the
log at the time the task was posted. Before a worker runs the task, it applies all changes up to that length.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

from penstock._wire.pickling import by_tag, dumps, loads

_LENGTH = struct.Struct("<q")

Change = Callable[[Any], object]


class Setting(dict[str, Any]):
    def __call__(self, dataset: Any) -> None:
        for name, value in self.items():
            setattr(dataset, name, value)


def encode(change: Change, known: frozenset[bytes] = frozenset(), *, fresh: bool = True) -> bytes:
    """Pickles a change to the dataset. A class whose tag is in `known` is sent by its tag.

    Any other class that workers cannot import is sent by value, and arrives as a new class. Forked workers
    know the tags of the classes in `__main__`. Workers that were not forked need `fresh=True` (see `pickling.dump`).
    """
    return dumps(change, override=by_tag(known), by_value=True, fresh=fresh)


class UpdateLog:
    """A place in the log of dataset changes. This process has written or applied all changes before byte `end`."""

    __slots__ = ("end",)

    def __init__(self) -> None:
        # A forked worker starts at its parent's offset, and any other worker at the offset sent with its dataset.
        self.end = 0

    def write(self, fd: int, change: bytes) -> None:
        entry, done = memoryview(_LENGTH.pack(len(change)) + change), 0
        while done < len(entry):  # Linux writes, and reads, at most 2 GiB per call
            done += os.pwrite(fd, entry[done:], self.end + done)
        self.end += done

    def read(self, fd: int, end: int) -> Iterator[Change]:
        """Yields the changes from the current offset to `end`, and advances the offset."""
        while self.end < end:
            (length,) = _LENGTH.unpack(_read(fd, self.end, _LENGTH.size))
            start = self.end + _LENGTH.size
            self.end = start + length
            change: Change = loads(_read(fd, start, length))
            yield change


def _read(fd: int, start: int, length: int) -> bytearray:
    data, done = bytearray(length), 0
    while done < length:
        done += os.preadv(fd, [memoryview(data)[done:]], start + done)
    return data
