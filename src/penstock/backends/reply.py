"""The reply: what a worker process sends to say that a step is done.

A reply has a fixed size and goes down one pipe that all workers share: a write of so few bytes is
atomic, also when the writer is killed. What it speaks of is in the slab, or, where that is too
small, in a memfd of the worker's own making, handed over through a socket (a stray).
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import cloudpickle
import numpy as np

from penstock._memory.layout import Layout, Writer
from penstock._memory.mapping import Mapping


class Verdict(IntEnum):
    FILLED = 0
    FAILED = 1
    ENDED = 2


class Reply(NamedTuple):
    seq: int
    worker: int
    verdict: int
    stray: int  # size of the memfd that holds it all; 0: it is in the slab
    rows: int
    layout: int  # number of the worker's layout
    nbytes: int
    trailer: int  # where the trailer begins
    length: int  # and its length


# A worker whose batches never look alike describes each one anew, and nobody remembers them.
_MOST_LAYOUTS = 64
_UNNUMBERED = -1

REPLY = struct.Struct("<9q")
STRAY = struct.Struct("<2q")


class Trailer(NamedTuple):
    """What of a batch is not in its arrays: a layout that is new, and the leaves that are pickled."""

    layout: Layout | None
    rest: bytes | None
    buffers: tuple[tuple[int, int], ...]


def dumps(value: object, buffers: list[pickle.PickleBuffer] | None = None) -> bytes:
    """Pickles, by value what cannot be imported by name."""
    callback = None if buffers is None else buffers.append
    try:
        return pickle.dumps(value, 5, buffer_callback=callback)
    except Exception:  # pickle says "cannot" in many types: PicklingError, AttributeError, TypeError
        if buffers is not None:
            buffers.clear()
        data: bytes = cloudpickle.dumps(value, 5, buffer_callback=callback)
        return data


class Replier:
    """A worker's end of the replies."""

    def __init__(self, worker: int, pipe: int, strays: socket.socket) -> None:
        self._worker = worker
        self._pipe = pipe
        self._strays = strays
        self._numbers: dict[Layout, int] = {}

    def filled(self, seq: int, tree: object, rows: int, writer: Writer) -> None:
        self._reply(seq, Verdict.FILLED, rows, writer, lambda writer: self._write_batch(tree, writer))

    def failed(self, seq: int, failure: bytes, writer: Writer) -> None:
        self._reply(seq, Verdict.FAILED, 0, writer, lambda writer: (_UNNUMBERED, *_put(writer, failure)))

    def ended(self, seq: int, writer: Writer) -> None:
        self._reply(seq, Verdict.ENDED, 0, writer, lambda writer: (_UNNUMBERED, 0, 0))

    def _reply(
        self,
        seq: int,
        verdict: Verdict,
        rows: int,
        writer: Writer,
        write: Callable[[Writer], tuple[int, int, int]],
    ) -> None:
        stray = 0
        written = write(writer)
        if writer.overflow:
            # `used` went on counting: the memfd is large enough, and sparse where it is too large.
            stray = writer.used
            fd = os.memfd_create("penstock-stray", os.MFD_CLOEXEC)
            os.ftruncate(fd, stray)
            writer = Writer(np.frombuffer(Mapping(fd, stray).buffer, np.uint8))
            written = write(writer)
            socket.send_fds(self._strays, [STRAY.pack(seq, self._worker)], [fd])
            os.close(fd)
        number, trailer, length = written
        reply = Reply(seq, self._worker, verdict, stray, rows, number, writer.used, trailer, length)
        os.write(self._pipe, REPLY.pack(*reply))

    def _write_batch(self, tree: object, writer: Writer) -> tuple[int, int, int]:
        """Puts the batch where the writer writes: (the layout's number, trailer, its length)."""
        layout, rest = writer.place(tree)
        buffers: list[pickle.PickleBuffer] = []
        pickled = dumps(rest, buffers) if rest else None
        places = tuple(_put(writer, buffer.raw()) for buffer in buffers)
        number = self._numbers.get(layout, _UNNUMBERED)
        new = number == _UNNUMBERED
        if not new and pickled is None:
            return number, 0, 0
        if new and len(self._numbers) < _MOST_LAYOUTS and not writer.overflow:
            number = self._numbers[layout] = len(self._numbers)
        trailer = dumps(Trailer(layout if new else None, pickled, places))
        return number, *_put(writer, trailer)


def _put(writer: Writer, data: bytes | memoryview) -> tuple[int, int]:
    """Writes bytes; says where they begin, and how many they are."""
    start = writer.reserve(len(data))
    if start is None:
        return -1, len(data)
    writer.root[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return start, len(data)
