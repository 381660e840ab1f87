"""The reply: what a worker process sends when a task is done, and how the parent reads it.

A reply has a fixed size and goes through one pipe that all workers share: writing so few bytes is atomic, even if the
writer is killed. The batch itself is in the slab, or in a stray where the slab is too small.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._memory.guests import Spot
from penstock._memory.layout import Layout, Writer
from penstock._memory.tree import Spec
from penstock._wire.failure import annotate, restore
from penstock._wire.outcome import Bundle, Ended, Failed, Filled
from penstock._wire.pickling import dumps, loads
from penstock._wire.stray import Strays, stray_writer
from penstock._wire.task import Mended

_FILLED, _FAILED, _ENDED, _BUNDLE = range(4)  # verdicts

# A worker whose batches never look alike sends the layout of each, and neither side remembers it.
_MOST_LAYOUTS = 64
_UNNUMBERED = -1

# seq, worker, verdict; size of the stray that holds the batch, or 0 for the slab; where the batch's piece of the slab
# begins; rows; number of the worker's layout; bytes used; nanoseconds taken; where in the piece the trailer begins,
# and its length. The trailer of a bundle holds one reply for each of its steps.
REPLY = struct.Struct("<11q")

_NO_STEP = -1  # the seq of a reply that only wakes the parent
WAKE = REPLY.pack(_NO_STEP, *[0] * 10)

_UNPICKLABLE = (
    "It is in a batch. A worker process sends the arrays of a batch in shared memory, and pickles everything else. "
    "Let collate_fn return objects that can be pickled, which locks, open files and generators cannot; or use "
    'num_workers=0, or backend="thread" with penstock.DataLoader.'
)


class Trailer(NamedTuple):
    """Everything of a batch that is not an array in the slab.

    `layout` is None if the parent has it already. `rest` are the pickled leaves, and `buffers` the start and length
    of each array inside them.
    """

    layout: Layout | None
    rest: bytes | None
    buffers: tuple[tuple[int, int], ...]
    mended: Mended | None
    mark: bytes | None


class Replier:
    """The worker's half: puts batches into slabs, and makes replies about them."""

    def __init__(self, worker: int, pipe: int, strays: socket.socket) -> None:
        self._worker = worker
        self._pipe = pipe
        self._strays = strays
        self._numbers: dict[tuple[Spec, tuple[Spot | None, ...]], int] = {}

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
        # Repeated where the trailer for the slab had no layout, and the trailer for the stray needs one.
        while writer.overflow:
            # `used` went on counting what did not fit; where it counted twice, the memfd is sparse.
            with stray_writer(self._strays, seq, self._worker, writer.used) as writer:
                written = self._write_batch(tree, writer, mended, mark)
        return self._reply(seq, _FILLED, rows, writer, base, began, *written)

    def failed(
        self, seq: int, failure: bytes, writer: Writer, base: int, began: int, mark: bytes | None
    ) -> bytes:
        return self._tell(seq, _FAILED, dumps((failure, mark)), writer, base, began)

    def ended(self, seq: int, writer: Writer, base: int, began: int, mark: bytes | None) -> bytes:
        return self._tell(seq, _ENDED, mark or b"", writer, base, began)

    def _tell(self, seq: int, verdict: int, told: bytes, writer: Writer, base: int, began: int) -> bytes:
        written = _put(writer, told)
        if writer.overflow:
            with stray_writer(self._strays, seq, self._worker, writer.used) as writer:
                written = _put(writer, told)
        return self._reply(seq, verdict, 0, writer, base, began, _UNNUMBERED, *written)

    def bundle(self, seq: int, replies: list[bytes], table: int, writer: Writer, began: int) -> bytes:
        """One reply for all of these, which are put into the slab at `table`."""
        joined = np.frombuffer(b"".join(replies), np.uint8)
        writer.root[table : table + len(joined)] = joined
        return self._reply(seq, _BUNDLE, 0, writer, 0, began, _UNNUMBERED, table, len(joined))

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
        """Writes the batch. Returns the number of its layout, where the trailer begins, and its length."""
        spec, places, rest = writer.place(tree)
        number = self._numbers.get((spec, places), _UNNUMBERED)
        if not rest and number != _UNNUMBERED and mended is None and mark is None:
            return number, 0, 0
        buffers: list[pickle.PickleBuffer] = []
        try:
            pickled = dumps(rest, buffers) if rest else None
        except Exception as error:
            error.add_note(_UNPICKLABLE)
            raise
        at = writer.hold(buffers)
        layout = Layout(spec, places) if number == _UNNUMBERED else None
        trailer = _put(writer, dumps(Trailer(layout, pickled, at, mended, mark)))
        # Numbered only now: the parent learns the layout from this trailer, so the trailer must have been written.
        if layout is not None and len(self._numbers) < _MOST_LAYOUTS and not writer.overflow:
            number = self._numbers[spec, places] = len(self._numbers)
        return number, *trailer


def _put(writer: Writer, data: bytes) -> tuple[int, int]:
    """Writes bytes. Returns where they begin, and their length."""
    start = writer.reserve(len(data))
    if start is None:
        return -1, len(data)
    writer.root[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return start, len(data)


class Receiver:
    """The parent's half: reads replies, and opens batches. `names` has the names of workers for messages."""

    def __init__(self, strays: Strays, names: Mapping[int, str]) -> None:
        self._strays = strays
        self._names = names
        # By worker and number. An exception stands for a layout that could not be unpickled.
        self._layouts: dict[tuple[int, int], Layout | Exception] = {}

    def read(
        self, data: bytes, root_of: Callable[[int], NDArray[np.uint8]]
    ) -> list[Filled | Failed | Bundle | Ended]:
        """The outcomes that replies tell of. `root_of(seq)` is called once for each, and gives the task's slab."""
        outcomes = []  # by a loop: a comprehension is a function call, 0.2 µs, up to Python 3.11
        for reply in REPLY.iter_unpack(data):
            if reply[0] != _NO_STEP:
                outcomes.append(self._outcome(root_of(reply[0]), *reply))  # noqa: PERF401
        return outcomes

    def _outcome(
        self,
        root: NDArray[np.uint8],
        seq: int,
        worker: int,
        verdict: int,
        stray: int,
        base: int,
        rows: int,
        number: int,
        nbytes: int,
        took: int,
        start: int,
        length: int,
    ) -> Filled | Failed | Bundle | Ended:
        if stray:
            root = self._strays.take(seq, worker, stray)
        elif base:
            root = root[base:]
        if not length:
            if verdict == _ENDED:
                return Ended(seq, worker)
            layout = self._layouts[worker, number]
            if isinstance(layout, Exception):
                return Failed(seq, worker, layout)
            return Filled(seq, worker, rows, nbytes, took * 1e-9, root, (layout, None))
        data = root[start : start + length].tobytes()
        if verdict == _BUNDLE:
            steps: list[Any] = [self._outcome(root, *reply) for reply in REPLY.iter_unpack(data)]
            return Bundle(seq, worker, nbytes, took * 1e-9, steps, root)
        if verdict == _ENDED:
            return Ended(seq, worker, data)
        if verdict == _FAILED:
            failure, mark = loads(data)
            return Failed(seq, worker, restore(failure), mark)
        try:
            trailer: Trailer = loads(data)
        except Exception as error:  # of a user's class that is part of the batch's structure
            # Remembered, because the worker does not send this layout again.
            self._layouts[worker, number] = error
            note = f"While a batch was received from {self._names[worker]}."
            return Failed(seq, worker, annotate(error, note))
        layout = trailer.layout or self._layouts[worker, number]
        if isinstance(layout, Exception):
            return Failed(seq, worker, layout)
        if number != _UNNUMBERED:
            self._layouts[worker, number] = layout
        mended = trailer.mended
        if mended is not None:
            mended = mended._replace(errors=[(key, restore(error)) for key, error in mended.errors])
        return Filled(seq, worker, rows, nbytes, took * 1e-9, root, (layout, trailer), mended, trailer.mark)

    def open(self, filled: Filled) -> object:
        """The batch: its arrays are views of the slab."""
        (layout, trailer), root = filled.held, filled.root
        rest = ()
        if trailer is not None and trailer.rest is not None:
            views = [root[start : start + length] for start, length in trailer.buffers]
            rest = loads(trailer.rest, buffers=views)
        return layout.open(root, rest)

    def forget(self, worker: int) -> None:
        """The worker is gone, and sends no more replies."""
        self._layouts = {key: layout for key, layout in self._layouts.items() if key[0] != worker}
