"""Sends tasks to workers on other nodes, and receives their batches.

Each connection has a thread that receives batches directly into the slabs (the memory for batches), and sends the
next task. So workers are busy while the caller runs its training step. The caller's thread and these threads share
one `Exchange`.

Once a worker has connected, only the thread of its connection reports that the worker is lost, and this is the
thread's last act. So once the engine knows of the loss, no more bytes from that worker are written to a slab, even if
the worker is still alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._measure.gauges import Gauges
from penstock._memory.mapping import mapped
from penstock._memory.slabs import Slabs
from penstock._printable import counted
from penstock._system.interrupts import LiveObjects
from penstock._system.threads import started
from penstock._system.warnings import warn_caller
from penstock._wire.failure import annotate, restore
from penstock._wire.reply import REPLY, Receiver, may_teach
from penstock._wire.task import Bundle, Filled
from penstock.backends._base import HUNG, Left, Lost, Outcome
from penstock.backends._ray import handshake
from penstock.backends._ray.handshake import Hello
from penstock.backends._ray.ledger import Ledger
from penstock.backends._ray.link import (
    BROKEN,
    CHANGE,
    GARBLED,
    LEAVE,
    READY,
    REPLIED,
    STRAY,
    TASK,
    TOLD,
    WELCOME,
    Link,
    head,
)
from penstock.backends._ray.remote import Cluster, ProcessEnd, RemoteWorker, RemoteWorkerState

# A worker whose tasks take less than this gets a second task, and does not idle while its reply is in flight. With
# longer tasks the gain would be small, and another worker might have begun the second task earlier.
_QUICK = 50_000_000  # ns

# Seconds to wait for Ray's reason after a worker's connection has ended.
_REASON = 0.5

# Seconds to wait until Ray has killed workers. If the cluster is gone, that may take forever.
_GRACE = 1.0

_SILENT = 60.0  # seconds for which a node that did not answer is avoided

_TOOK = 8  # index of the reply's field that holds the duration in ns


class Posted(NamedTuple):
    """A task that has not been answered yet: the bytes to send, its steps, and the memory for its batch."""

    notice: bytes
    keys: bytes
    epoch: int
    step: int
    steps: int
    root: NDArray[np.uint8]


class LinkStrays:
    """The received strays (see `_wire/reply.py`). `nbytes` includes the strays that the caller still uses."""

    def __init__(self) -> None:
        self._arrived: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self._used = LiveObjects[NDArray[np.uint8]]()

    def add(self, seq: int, worker: int, root: NDArray[np.uint8]) -> None:
        self._used.add(root)
        self._arrived[seq, worker] = root

    def take(self, seq: int, worker: int, size: int) -> NDArray[np.uint8]:
        return self._arrived.pop((seq, worker))

    def forget(self, worker: int) -> None:
        for key in [key for key in self._arrived if key[1] == worker]:
            del self._arrived[key]

    @property
    def nbytes(self) -> int:
        return sum(root.nbytes for root in self._used)


class Exchange:
    """The state that all threads share, guarded by one lock, and the code that handles received frames."""

    def __init__(self, cluster: Cluster, assigned: bool) -> None:
        self._cluster = cluster
        self._slabs, self.gauges = Slabs(None), Gauges(None)
        # Reentrant, because the garbage collector may close an engine in any thread, also in one that has the lock.
        self._lock = threading.RLock()
        self._ledger = Ledger(assigned)
        self._posted: dict[int, Posted] = {}
        self._remotes: dict[int, RemoteWorker] = {}
        self._changes: list[bytes] = []
        self._closed = False
        self._alone_since = time.monotonic()  # when the last worker was lost
        self._silent: dict[str, float] = {}  # node that does not answer -> since when
        self._versions = handshake.versions()
        self._warned: set[str] = set()
        self._names: dict[int, str] = {}
        self._strays = LinkStrays()
        self._receiver = Receiver(self._strays, self._names)
        # Functions for `poll` to call in the thread of the caller; None only wakes it.
        self._news: SimpleQueue[Callable[[], Outcome | None] | None] = SimpleQueue()

    def flush(self) -> None:
        with self._lock:
            links = self._dealt()
        for link in links:
            link.push()

    # In the thread of each connection.

    def _serve(self, link: Link, hello: Hello) -> None:
        remote = self._welcomed(link, hello)
        if remote is None:
            return
        try:
            with suppress(*GARBLED):
                while True:
                    self._receive(remote, link)
        finally:
            link.cut()
            with self._lock:
                self._ledger.halt(remote.id)
            remote.told.wait(0.0 if self._closed or remote.state is RemoteWorkerState.LEAVING else _REASON)
            self._news.put(partial(self._bury, remote))
            remote.ended.set()

    def _welcomed(self, link: Link, hello: Hello) -> RemoteWorker | None:
        """Admits the worker at the other end. Returns None if the worker is unexpected or cannot be used."""
        with self._lock:
            remote = self._remotes.get(hello.worker)
            if remote is None or remote.state is not RemoteWorkerState.COMING or self._closed:
                return None
            remote.greet(hello, link)
            self._names[remote.id] = remote.who
            self.gauges.nodes = {**self.gauges.nodes, remote.seat: remote.node}
            self._silent.pop(remote.node, None)
        wrong = handshake.refusal(self._versions, hello.versions, hello.node)
        if wrong:
            self._news.put(partial(_raise, RuntimeError(wrong)))
            return None
        differs = handshake.difference(self._versions, hello.versions, hello.node)
        if differs:
            self._news.put(partial(self._warn, "versions", differs))
        row = self.gauges.tell(remote.seat)
        link.post(head(WELCOME, self.gauges.waited(), self.gauges.tracing, len(row), -remote.shift), row)
        link.push()
        return remote

    def _receive(self, remote: RemoteWorker, link: Link) -> None:
        kind, one, two, three, four, five = link.receive_head()
        if kind == REPLIED:
            self._receive_reply(remote, link, one, (two, three), four, five)
        elif kind == TOLD:
            remote.stacks.put((one, link.receive(two).decode(errors="replace"), three, four))
        elif kind == READY:
            self.gauges.hear(remote.seat, link.receive(one), remote.shift)
            self._join(remote, link)
        elif kind == BROKEN:
            self._news.put(partial(_raise_restored, bytes(link.receive(one))))
        else:
            raise ValueError(f"a frame of kind {kind}")

    def _join(self, remote: RemoteWorker, link: Link) -> None:
        with self._lock:
            if remote.state is not RemoteWorkerState.STARTING:
                return
            for change in self._changes:
                link.post(head(CHANGE, len(change)), change)
            remote.state = RemoteWorkerState.UP
            self._ledger.join(remote.id)
        self.flush()

    def _receive_reply(
        self, remote: RemoteWorker, link: Link, seq: int, piece: tuple[int, int], strays: int, figures: int
    ) -> None:
        """Receives a reply, its bytes for the slab, and its strays. `piece` is the (offset, size) of the bytes."""
        start, size = piece
        data = link.receive(REPLY.size + figures + strays * STRAY.size)
        reply, told = bytes(data[: REPLY.size]), data[REPLY.size : REPLY.size + figures]
        table = STRAY.iter_unpack(data[REPLY.size + figures :])
        with self._lock:
            wanted = self._ledger.answering(remote.id, seq)
            # Later replies may refer to the layout in an unwanted reply, so it is read, too.
            root = self._posted[seq].root if wanted else _memory(start + size)
        if start < 0 or size < 0 or start + size > len(root):
            raise ValueError(f"{start + size} bytes for a slab of {len(root)}")
        link.receive_into(root[start : start + size].data)
        for at, length in table:
            stray = _memory(length)
            link.receive_into(stray.data)
            if wanted or may_teach(reply):
                self._strays.add(at, remote.id, stray)
        self.gauges.hear(remote.seat, told, remote.shift)
        with self._lock:
            self._ledger.answered(remote.id, REPLY.unpack(reply)[_TOOK] < _QUICK)
            if wanted:
                del self._posted[seq]
            if wanted or may_teach(reply):
                self._news.put(partial(self._read, reply, root, wanted))
            self._begin(remote)
            links = self._dealt()
        for each in links:
            each.push()

    def _begin(self, remote: RemoteWorker) -> None:
        """Records that the worker now begins its next task, or is idle if it has none."""
        is_busy = self._ledger.has(remote.id) is not None
        remote.began = time.monotonic()
        self.gauges.begun(remote.seat, time.perf_counter_ns() if is_busy else 0)

    def _dealt(self) -> list[Link]:
        """Assigns queued tasks and exit requests. The caller must hold the lock, and then push the returned links."""
        links: dict[Link, None] = {}
        for worker in self._ledger.leave():
            remote = self._remotes[worker]
            was, remote.state = remote.state, RemoteWorkerState.LEAVING  # first: `_bury` reads it without the lock
            if was is RemoteWorkerState.UP and remote.link is not None:
                remote.link.post(head(LEAVE))
                links[remote.link] = None
            else:
                self._news.put(partial(self._bury, remote))
        dealt = self._ledger.deal()
        if dealt:
            waited, tracing = self.gauges.waited(), self.gauges.tracing
            for worker, seq in dealt:
                remote, posted = self._remotes[worker], self._posted[seq]
                assert remote.link is not None
                remote.link.post(head(TASK, len(posted.keys), waited, tracing), posted.notice, posted.keys)
                links[remote.link] = None
                if self._ledger.has(worker) == seq:
                    self._begin(remote)
        return [*links]

    def _told(self, remote: RemoteWorker, end: ProcessEnd) -> None:
        """Records how a worker's process ended. Any thread may call this."""
        remote.end = end
        remote.told.set()
        with self._lock:
            link = remote.link
        if end.broken is not None:
            self._news.put(partial(_raise, end.broken))
        if link is not None:
            link.cut()  # its receiving thread reports the end
        else:
            self._news.put(partial(self._bury, remote))
            remote.ended.set()

    # In the thread of the caller: `poll` calls these.

    def _read(self, reply: bytes, root: NDArray[np.uint8], wanted: bool) -> Outcome | None:
        (outcome,) = self._receiver.read(reply, lambda seq: root)
        if not wanted:
            return None
        if type(outcome) is Filled:
            self._slabs.learn(outcome.nbytes + 1)
        elif type(outcome) is Bundle:
            self._slabs.learn(outcome.nbytes // len(outcome.steps) + 1)
        return outcome

    def _bury(self, remote: RemoteWorker) -> Lost | Left | None:
        if remote.state is RemoteWorkerState.GONE or self._closed:
            return None
        left = remote.state is RemoteWorkerState.LEAVING
        seq, steps = self._forget(remote)
        # Ray reports a process that dies on a live node at once. If a node is lost, Ray takes 15 s to notice, and
        # starts other workers there meanwhile.
        if remote.end is None and remote.link is not None and not left:
            with self._lock:
                self._silent.setdefault(remote.node, time.monotonic())
        self._kill([remote])
        if left:
            return Left(remote.id)
        end = remote.end or ProcessEnd("closed its connection, and Ray has not reported why")
        how, signal = end.how, "unknown"
        if remote.hung:
            how, signal = f"hung for more than {counted(remote.hung, 'second')}, and was killed (hang=)", HUNG
        at = 0 if steps == 1 else None  # the current step of a bundle is not known
        return Lost(remote.id, seq, at, remote.who, how, signal, end.cause)

    def _forget(self, remote: RemoteWorker) -> tuple[int | None, int]:
        """Removes a worker. Returns the task that it may have been running, and that task's step count.

        Returns (None, 1) if the worker had no task, or if its oldest task is unwanted.
        """
        with self._lock:
            remote.state = RemoteWorkerState.GONE
            seq = self._ledger.lose(remote.id)
            steps = 1 if seq is None else self._posted.pop(seq).steps
            self._remotes.pop(remote.id, None)
            self._names.pop(remote.id, None)
            if not any(one.state is not RemoteWorkerState.COMING for one in self._remotes.values()):
                self._alone_since = time.monotonic()
            self.gauges.begun(remote.seat, 0)
        self._receiver.forget(remote.id)
        return seq, steps

    def _silent_nodes(self) -> dict[str, float]:
        """Returns the seconds since each silent node fell silent. Forgets a node after a minute."""
        now = time.monotonic()
        with self._lock:
            self._silent = {node: since for node, since in self._silent.items() if now < since + _SILENT}
            return {node: now - since for node, since in self._silent.items()}

    def _kill(self, remotes: list[RemoteWorker]) -> None:
        """Disconnects workers and makes Ray kill them. Waits at most 1 s, because the cluster may be gone."""
        for remote in remotes:
            if remote.link is not None:
                remote.link.cut()
        if not remotes or not self._cluster.is_there():
            return

        def kill() -> None:
            for remote in remotes:
                with suppress(Exception):  # dead already, or the cluster is being shut down
                    remote.kill()

        with suppress(RuntimeError):  # the interpreter exits: Ray ends the actors of a driver that is gone
            started("penstock-killer", kill, bool).join(_GRACE)

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warn_caller(text)


def _memory(size: int) -> NDArray[np.uint8]:
    return np.frombuffer(mapped(None, max(1, size)), np.uint8, size)


def _raise(error: BaseException) -> None:
    raise error


def _raise_restored(failure: bytes) -> None:
    note = "The worker cannot be started, so it is not tried again: check the modules and files on that node."
    raise annotate(restore(failure), note)
