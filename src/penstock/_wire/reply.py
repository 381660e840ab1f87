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
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np

from penstock._memory.layout import Layout, Writer
from penstock._memory.leaves import Place
from penstock._memory.mapping import Mapping
from penstock._memory.tree import Spec
from penstock._wire.pickling import dumps
from penstock._wire.task import Mended


class Verdict(IntEnum):
    FILLED = 0
    FAILED = 1
    ENDED = 2
    BUNDLE = 3


# A worker whose batches never look alike describes each one anew, and nobody remembers them.
_MOST_LAYOUTS = 64
UNNUMBERED = -1

# seq, worker, verdict; the size of the stray that holds it all, or 0 for the slab; where its piece of the slab
# begins; rows; the number of the worker's layout; bytes used; nanoseconds that it took; where in the piece the
# trailer begins, and its length. The trailer of a bundle holds a reply for each of its steps.
REPLY = struct.Struct("<11q")
# seq, worker
STRAY = struct.Struct("<2q")

_UNPICKLABLE = (
    "It is in a batch. Of that, a worker process sends arrays in shared memory, and pickles the rest. Let collate_fn "
    "return what can be pickled, which locks, open files and generators cannot; or use num_workers=0, or "
    'backend="thread" with penstock.DataLoader.'
)


class Trailer(NamedTuple):
    """What of a batch is not in its arrays: a new layout, the leaves that are pickled, what failed, a mark."""

    layout: Layout | None
    rest: bytes | None
    buffers: tuple[tuple[int, int], ...]
    mended: Mended | None
    mark: bytes | None


class Replier:
    """A worker's end of the replies."""

    def __init__(self, worker: int, pipe: int, strays: socket.socket) -> None:
        self._worker = worker
        self._pipe = pipe
        self._strays = strays
        self._numbers: dict[tuple[Spec, tuple[Place | None, ...]], int] = {}

    def filled(
        self,
        seq: int,
        tree: object,
        rows: int,
        writer: Writer,
        base: int,
        began: int,
        mended: Mended | None,
        mark: bytes | None,
    ) -> bytes:
        written = self._write_batch(tree, writer, mended, mark)
        # Twice, where a layout that was known in the slab must be described in the stray.
        while writer.overflow:
            with self._stray(seq, writer) as writer:
                written = self._write_batch(tree, writer, mended, mark)
        return self._reply(seq, Verdict.FILLED, rows, writer, base, began, *written)

    def failed(
        self, seq: int, failure: bytes, writer: Writer, base: int, began: int, mark: bytes | None
    ) -> bytes:
        return self._tell(seq, Verdict.FAILED, dumps((failure, mark)), writer, base, began)

    def ended(self, seq: int, writer: Writer, base: int, began: int, mark: bytes | None) -> bytes:
        return self._tell(seq, Verdict.ENDED, mark or b"", writer, base, began)

    def _tell(self, seq: int, verdict: int, told: bytes, writer: Writer, base: int, began: int) -> bytes:
        written = _put(writer, told)
        if writer.overflow:
            with self._stray(seq, writer) as writer:
                written = _put(writer, told)
        return self._reply(seq, verdict, 0, writer, base, began, UNNUMBERED, *written)

    def bundle(self, seq: int, replies: list[bytes], table: int, writer: Writer, began: int) -> bytes:
        """A reply for all of these, which are put into the slab at `table`."""
        joined = np.frombuffer(b"".join(replies), np.uint8)
        writer.root[table : table + len(joined)] = joined
        return self._reply(seq, Verdict.BUNDLE, 0, writer, 0, began, UNNUMBERED, table, len(joined))

    def send(self, reply: bytes) -> None:
        os.write(self._pipe, reply)

    def _reply(
        self,
        seq: int,
        verdict: int,
        rows: int,
        writer: Writer,
        base: int,
        began: int,
        layout: int,
        trailer: int,
        length: int,
    ) -> bytes:
        stray = writer.root.nbytes if writer.is_stray else 0
        took = perf_counter_ns() - began
        return REPLY.pack(
            seq, self._worker, verdict, stray, base, rows, layout, writer.used, took, trailer, length
        )

    def _write_batch(
        self, tree: object, writer: Writer, mended: Mended | None, mark: bytes | None
    ) -> tuple[int, int, int]:
        """Puts the batch where the writer writes: (the layout's number, trailer, its length)."""
        spec, places, rest = writer.place(tree)
        number = self._numbers.get((spec, places), UNNUMBERED)
        if not rest and number != UNNUMBERED and mended is None and mark is None:
            return number, 0, 0
        buffers: list[pickle.PickleBuffer] = []
        try:
            pickled = dumps(rest, buffers) if rest else None
        except Exception as error:
            error.add_note(_UNPICKLABLE)
            raise
        at = writer.hold(buffers)
        layout = Layout(spec, places) if number == UNNUMBERED else None
        trailer = _put(writer, dumps(Trailer(layout, pickled, at, mended, mark)))
        # Numbered only now: the parent learns the layout from this trailer, so it must be there.
        if layout is not None and len(self._numbers) < _MOST_LAYOUTS and not writer.overflow:
            number = self._numbers[spec, places] = len(self._numbers)
        return number, *trailer

    @contextmanager
    def _stray(self, seq: int, small: Writer) -> Iterator[Writer]:
        """A writer on a memfd that is large enough; what is written to it is handed over at the end, if it was."""
        # `used` went on counting what did not fit; where it counted twice, the memfd is sparse.
        fd = os.memfd_create("penstock-stray", os.MFD_CLOEXEC)
        os.ftruncate(fd, small.used)
        writer = Writer(np.frombuffer(Mapping(fd, small.used).buffer, np.uint8), is_stray=True)
        yield writer
        if not writer.overflow:
            socket.send_fds(self._strays, [STRAY.pack(seq, self._worker)], [fd])
        os.close(fd)


def _put(writer: Writer, data: bytes) -> tuple[int, int]:
    """Writes bytes; says where they begin, and how many they are."""
    start = writer.reserve(len(data))
    if start is None:
        return -1, len(data)
    writer.root[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return start, len(data)
