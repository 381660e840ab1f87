"""The reply that a worker sends when it has finished a task, and how the parent reads it.

A reply has a fixed size. It describes a batch that is in the task's slab, or in a stray (separate memory) if the slab
is too small. The backend decides how replies and strays are sent:

- Processes on one machine share the slabs. All workers send their replies through one pipe: a write of a few bytes is
  atomic, even if the writer is killed. A stray is a memfd that the worker sends through a socket, before the reply
  that refers to it. The parent maps the memfd and closes the descriptor. The memory is unmapped when the last array
  of the batch is freed.
- A worker on another machine sends the reply, the used part of its slab, and its strays over one connection.
"""

from __future__ import annotations

import errno
import os
import pickle
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._memory.guests import Spot
from penstock._memory.layout import Layout, Writer
from penstock._memory.mapping import grow, mapped
from penstock._memory.tree import Spec
from penstock._system.descriptors import close, close_in_child, no_fork
from penstock._system.interrupts import LiveObjects, interrupts_deferred
from penstock._wire.failure import caught, copied, restore
from penstock._wire.pickling import by_tag, dumps, loads
from penstock._wire.task import Bundle, Ended, Failed, Filled, Mended, new

_FILLED, _FAILED, _ENDED, _BUNDLE = range(4)  # verdicts

# If a worker has more layouts, it sends each additional one with every batch, and neither side remembers it.
_MOST_LAYOUTS = 64
_UNNUMBERED = -1

# seq, worker, verdict; size of the stray that holds the batch, or 0 if the batch is in the slab; offset of the
# batch's piece of the slab; number of rows; number of the worker's layout; bytes used; nanoseconds taken; offset of
# the trailer in the piece, and its length. The trailer of a bundle holds one reply for each of its steps.
REPLY = struct.Struct("<11q")
_STRAY = struct.Struct("<2q")  # seq, worker
_FD = struct.Struct("i")

_NO_STEP = -1  # the seq of a reply that only wakes the parent
WAKE = REPLY.pack(_NO_STEP, *[0] * 10)

_UNPICKLABLE = (
    "The object is part of a batch. A worker process sends arrays in shared memory, and pickles everything else. "
    "Let collate_fn return objects that can be pickled, which locks, open files and generators cannot; or use "
    'num_workers=0, or backend="thread" with penstock.DataLoader.'
)

_by_tag = by_tag()

Head = tuple[int, int, int]
"""The number of a step's task, the offset of the step's piece of the slab, and the time in ns when the work began."""


class Trailer(NamedTuple):
    """The parts of a batch that are not arrays in its slab."""

    layout: Layout | None  # None if the parent already knows it
    rest: bytes | None  # the pickle of all leaves that are not arrays in the slab
    buffers: tuple[tuple[int, int], ...]  # offset and length of each array inside these leaves
    mended: Mended | None
    mark: bytes | None


MakeStray = Callable[[int, int], AbstractContextManager[Writer]]
"""Opens a new stray: `with make_stray(seq, nbytes) as writer`. On exit, the stray is sent unless it was too small."""


class Replier:
    """The worker's side: writes batches into slabs, and makes the replies that describe them."""

    def __init__(self, worker: int, make_stray: MakeStray) -> None:
        self._worker = worker
        self._stray = make_stray
        self._numbers: dict[tuple[Spec, tuple[Spot | None, ...]], int] = {}

    def filled(
        self, head: Head, tree: object, rows: int, writer: Writer, mended: Mended | None, mark: bytes | None
    ) -> bytes:
        written = self._write_batch(tree, writer, mended, mark)
        # This loop runs twice if the trailer for the slab had no layout, and the trailer for the stray needs one and
        # so is larger.
        while writer.overflow:
            # `used` includes the bytes that did not fit. Some bytes may be counted twice, which costs nothing,
            # because the memory is sparse.
            with self._stray(head[0], writer.used) as writer:
                written = self._write_batch(tree, writer, mended, mark)
        return self._reply(head, _FILLED, rows, writer, *written)

    def failed(self, head: Head, failure: bytes, writer: Writer, mark: bytes | None) -> bytes:
        return self._tell(head, _FAILED, dumps((failure, mark)), writer)

    def ended(self, head: Head, writer: Writer, mark: bytes | None) -> bytes:
        return self._tell(head, _ENDED, mark or b"", writer)

    def _tell(self, head: Head, verdict: int, told: bytes, writer: Writer) -> bytes:
        written = _put(writer, told)
        if writer.overflow:
            with self._stray(head[0], writer.used) as writer:
                written = _put(writer, told)
        return self._reply(head, verdict, 0, writer, _UNNUMBERED, *written)

    def bundle(self, seq: int, replies: list[bytes], table: int, writer: Writer, began: int) -> bytes:
        """Returns one reply for a bundle. The replies for the bundle's steps go into the slab at offset `table`."""
        joined = np.frombuffer(b"".join(replies), np.uint8)
        writer.root[table : table + len(joined)] = joined
        return self._reply((seq, 0, began), _BUNDLE, 0, writer, _UNNUMBERED, table, len(joined))

    def _reply(
        self, head: Head, verdict: int, rows: int, writer: Writer, layout: int, trailer: int, length: int
    ) -> bytes:
        seq, base, began = head
        stray = writer.root.nbytes if writer.is_stray else 0
        took = perf_counter_ns() - began
        return REPLY.pack(seq, self._worker, verdict, stray, base, rows, layout, writer.used, took, trailer, length)

    def _write_batch(
        self, tree: object, writer: Writer, mended: Mended | None, mark: bytes | None
    ) -> tuple[int, int, int]:
        """Writes a batch. Returns its layout's number, and the offset and length of its `Trailer`."""
        spec, places, rest = writer.place(tree)
        number = self._numbers.get((spec, places), _UNNUMBERED)
        if not rest and number != _UNNUMBERED and mended is None and mark is None:
            return number, 0, 0
        buffers: list[pickle.PickleBuffer] = []
        try:
            pickled = dumps(rest, buffers, otherwise=_by_tag) if rest else None
        except Exception as error:
            error.add_note(_UNPICKLABLE)
            raise
        at = writer.hold(buffers)
        layout = Layout(spec, places) if number == _UNNUMBERED else None
        trailer = _put(writer, dumps(Trailer(layout, pickled, at, mended, mark), otherwise=_by_tag))
        # The layout gets its number only now. The parent learns it from this trailer, which must have been written.
        if layout is not None and len(self._numbers) < _MOST_LAYOUTS and not writer.overflow:
            number = self._numbers[spec, places] = len(self._numbers)
        return number, *trailer


def _put(writer: Writer, data: bytes) -> tuple[int, int]:
    """Writes bytes into the slab. Returns (offset, length); the offset is -1 if the bytes do not fit."""
    start = writer.reserve(len(data))
    if start is None:
        return -1, len(data)
    writer.root[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return start, len(data)


def used_bytes(reply: bytes) -> int:
    """Returns how many bytes a reply uses at the start of the slab. The number may exceed the slab's size."""
    _, _, _, stray, base, _, _, nbytes, *_ = REPLY.unpack(reply)
    return 0 if stray else base + nbytes


def may_teach(reply: bytes) -> bool:
    """True if a reply may contain new layouts, to which the worker's later replies refer by number."""
    _, _, verdict, *_, length = REPLY.unpack(reply)
    return length > 0 and verdict in (_FILLED, _BUNDLE)


@contextmanager
def memfd_stray(worker: int, strays: socket.socket, seq: int, nbytes: int) -> Iterator[Writer]:
    """The `MakeStray` of worker processes. A stray is a memfd."""
    fd = os.memfd_create("penstock-stray", os.MFD_CLOEXEC)
    try:
        grow(fd, nbytes)
        writer = Writer(np.frombuffer(mapped(fd, nbytes), np.uint8), is_stray=True)
        yield writer
        if not writer.overflow:
            socket.send_fds(strays, [_STRAY.pack(seq, worker)], [fd])
    finally:
        os.close(fd)


class StrayReceiver(Protocol):
    """The parent's interface to strays."""

    def take(self, seq: int, worker: int, size: int) -> NDArray[np.uint8]:
        """Returns the memory of a stray. The worker sends a stray before the reply that refers to the stray."""

    def forget(self, worker: int) -> None:
        """Drops the remaining strays of a worker that has exited."""


class SocketStrays:
    """Receives strays through a socket, and keeps them until their replies are read."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._received: dict[tuple[int, int], tuple[int, int]] = {}  # descriptor and size
        self._used = LiveObjects[NDArray[np.uint8]]()

    @property
    def nbytes(self) -> int:
        """The total size in bytes of the strays that are in use or have not been taken yet."""
        waiting = sum(size for _, size in self._received.copy().values())
        return waiting + sum(root.nbytes for root in self._used)

    def receive(self) -> None:
        """Receives all strays that have been sent so far, so that the socket does not fill up."""
        with (
            interrupts_deferred(),
            socket.socket(fileno=os.dup(self.fd)) as strays,
            suppress(BlockingIOError),
        ):
            while True:
                # Not socket.recv_fds: it does not pass on its flags (Python 3.11).
                with no_fork():
                    flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                    data, control, _, _ = strays.recvmsg(_STRAY.size, socket.CMSG_LEN(_FD.size), flags)
                    if not control:
                        why = "No file descriptor is left for a batch that outgrew its memory: raise ulimit -n."
                        raise OSError(errno.EMFILE, why)
                    (fd,) = _FD.unpack(control[0][2])
                    close_in_child(fd)
                self._received[_STRAY.unpack(data)] = fd, os.fstat(fd).st_size

    def take(self, seq: int, worker: int, size: int) -> NDArray[np.uint8]:
        if (seq, worker) not in self._received:
            self.receive()
        memory = mapped(self._received[seq, worker][0], size)
        self._close((seq, worker))
        root = np.frombuffer(memory, np.uint8)
        self._used.add(root)
        return root

    def forget(self, worker: int) -> None:
        self.receive()
        for key in [key for key in self._received if key[1] == worker]:
            self._close(key)

    def close(self) -> None:
        """Closes all strays that have not been taken. After an interrupt, this method can be called again."""
        while self._received:
            self._close(next(iter(self._received)))

    def _close(self, key: tuple[int, int]) -> None:
        with no_fork():
            close(self._received.pop(key)[0])  # removed first: closing it twice could close another file


class Receiver:
    """The parent's side: reads replies and opens batches. `names` holds the workers' names for error messages."""

    def __init__(self, strays: StrayReceiver, names: Mapping[int, str]) -> None:
        self._strays = strays
        self._names = names
        # By worker and layout number. An exception replaces a layout that could not be unpickled.
        self._layouts: dict[tuple[int, int], Layout | BaseException] = {}

    def read(
        self, data: bytes, root_of: Callable[[int], NDArray[np.uint8]]
    ) -> list[Filled | Failed | Bundle | Ended]:
        """Returns the outcomes of these replies. Calls `root_of(seq)` once per reply, to get the task's slab."""
        outcomes = []  # a loop, because up to Python 3.11 a comprehension is a function call, which takes 0.2 µs
        for reply in REPLY.iter_unpack(data):
            if reply[0] != _NO_STEP:
                outcomes.append(self._outcome(root_of(reply[0]), reply))  # noqa: PERF401
        return outcomes

    def _outcome(self, root: NDArray[np.uint8], reply: tuple[int, ...]) -> Filled | Failed | Bundle | Ended:
        seq, worker, verdict, stray, base, rows, number, nbytes, took, start, length = reply
        if stray:
            root = self._strays.take(seq, worker, stray)
        elif base:
            root = root[base:]
        if not length:
            if verdict == _ENDED:
                return Ended(seq, worker)
            held = self._layouts[worker, number], None
            return new(Filled, (seq, worker, rows, nbytes, took * 1e-9, root, held, None, None))
        data = root[start : start + length].tobytes()
        if verdict == _BUNDLE:
            steps: list[Any] = [self._outcome(root, reply) for reply in REPLY.iter_unpack(data)]
            return Bundle(seq, worker, nbytes, took * 1e-9, steps, root)
        if verdict == _ENDED:
            return Ended(seq, worker, data)
        if verdict == _FAILED:
            failure, mark = loads(data)
            return Failed(seq, worker, restore(failure), mark)
        try:
            trailer: Trailer = loads(data)
        except Exception as error:  # raised by a user's class that is part of the batch's structure
            # Remembered, because the worker does not send this layout again.
            note = f"The batch came from {self._names[worker]}."
            refused = self._layouts[worker, number] = caught(error, note)
            return Filled(seq, worker, rows, nbytes, took * 1e-9, root, (refused, None))
        layout = trailer.layout or self._layouts[worker, number]
        if number != _UNNUMBERED:
            self._layouts[worker, number] = layout
        mended = trailer.mended
        if mended is not None:
            mended = mended._replace(errors=[(key, restore(error)) for key, error in mended.errors])
        return Filled(seq, worker, rows, nbytes, took * 1e-9, root, (layout, trailer), mended, trailer.mark)

    def open(self, filled: Filled) -> object:
        """Returns the batch as views of the slab. Unpickling the user's classes may raise any error."""
        (layout, trailer), root = filled.held, filled.root
        if isinstance(layout, BaseException):
            raise copied(layout)
        rest = ()
        if trailer is not None and trailer.rest is not None:
            views = [root[start : start + length] for start, length in trailer.buffers]
            rest = loads(trailer.rest, buffers=views)
        return layout.open(root, rest)

    def forget(self, worker: int) -> None:
        self._strays.forget(worker)
        self._layouts = {key: layout for key, layout in self._layouts.items() if key[0] != worker}
