"""Workers are actors on the nodes of a Ray cluster.

Ray places the actors, ships the job and tells who has died. Tasks and batches go over one TCP connection for each
worker. A thread for each connection receives batches straight into the slabs, and sends the next task, so that workers
are busy while the caller is in its training step. `ledger.py` decides who gets which task.

The thread that receives from a worker is the only one that tells of its end, as its last act: when the engine hears of
a lost worker, nothing of that worker can be written to a slab any more, be it alive or not.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._descriptors import close, no_fork
from penstock._interrupts import interrupts_deferred
from penstock._measure.gauges import Gauges
from penstock._memory.slabs import Slabs, mapped
from penstock._warning import warn_caller
from penstock._wire.failure import annotate, restore
from penstock._wire.reply import REPLY, Receiver, may_teach
from penstock._wire.shipment import pack
from penstock._wire.task import MOST_STEPS, NOTICE, Bundle, Filled, Task, encode_keys
from penstock._wire.updates import Change, encode
from penstock._work.runner import Job
from penstock.backends._base import HUNG, LONGEST_WAIT, Doing, Left, Lost, Outcome
from penstock.backends._ray import handshake
from penstock.backends._ray.ledger import Ledger
from penstock.backends._ray.link import (
    BROKEN,
    CHANGE,
    DRIVER_PATIENCE,
    HEAD,
    LEAVE,
    READY,
    REPLIED,
    TASK,
    TOLD,
    VOID,
    WELCOME,
    Link,
)
from penstock.backends._ray.remote import Call, Cluster, End, RemoteWorker, State

# A worker whose tasks take less has a second one, and does not wait while its reply travels. With longer ones, that
# would be too little to gain, and the second task might have been begun by another worker.
_QUICK = 50_000_000  # ns

# Seconds that Ray has to say why a worker is gone, once its connection has ended.
_REASON = 0.5

# Seconds that workers have to show their stacks, and that close() waits for connections and for Ray.
_STACKS = 1.0
_GRACE = 1.0

_TOOK = 8  # the field of a reply: nanoseconds


class _Posted(NamedTuple):
    """A task that is not answered: its frame after the head, its first step, and the memory of its slab."""

    notice: bytes
    keys: bytes
    epoch: int
    step: int
    steps: int
    root: NDArray[np.uint8]


class _Strays:
    """Strays that have arrived and were not taken yet, and the memory of those that are still used."""

    def __init__(self) -> None:
        self._arrived: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self._used: weakref.WeakValueDictionary[int, NDArray[np.uint8]] = weakref.WeakValueDictionary()
        self._numbers = count()

    def add(self, seq: int, worker: int, root: NDArray[np.uint8]) -> None:
        self._arrived[seq, worker] = self._used[next(self._numbers)] = root

    def take(self, seq: int, worker: int, size: int) -> NDArray[np.uint8]:
        return self._arrived.pop((seq, worker))

    @property
    def nbytes(self) -> int:
        return sum(root.nbytes for root in tuple(self._used.values()))


class RayBackend:
    """Make one with `start`. `patience`: seconds until it is an error that no worker has found a place."""

    copies_dataset = True
    leaves_nothing = False
    clock = staticmethod(time.monotonic)

    def __init__(self, job: Job, cluster: Cluster, patience: float) -> None:
        self._pid = os.getpid()
        self._cluster, self._patience = cluster, patience
        self.most_steps = 1 if job.assigned else MOST_STEPS
        self._batched, self._log = job.batched, job.log
        self._slabs, self.gauges = Slabs(None), Gauges(None)
        # Everything below is guarded by the lock. The thread that has it may take it again: a collection of garbage
        # may end another engine at any moment, in any thread.
        self._lock = threading.RLock()
        self._ledger = Ledger(job.assigned)
        self._posted: dict[int, _Posted] = {}
        self._remotes: dict[int, RemoteWorker] = {}
        self._changes: list[bytes] = []
        self._closed = False
        self._alone_since = time.monotonic()  # when the last worker was lost
        self._warned: set[str] = set()
        self._unknown = 0
        self._names: dict[int, str] = {}
        self._strays = _Strays()
        self._receiver = Receiver(self._strays, self._names)
        self._news: SimpleQueue[Callable[[], Outcome | None] | None] = SimpleQueue()
        self._tickets = count()
        self._token, self._versions = handshake.new_token(), handshake.versions()
        self._tls = None if cluster.tls is None else cluster.tls.context(server=True)
        began = time.perf_counter()
        self._shipped = self._ship(job)
        self.shipped = time.perf_counter() - began
        with no_fork():
            self._listener = handshake.listen(cluster.address)
        self._wakes = os.pipe2(os.O_CLOEXEC)
        self._links: dict[threading.Thread, Link] = {}  # of threads that receive, or wait for a token
        self._door = threading.Thread(target=self._accept, name="penstock-door", daemon=True)
        self._door.start()

    def _ship(self, job: Job) -> object:
        fd = pack(job, None)
        try:
            size = os.fstat(fd).st_size
            return self._cluster.ship(mapped(fd, size))
        finally:
            close(fd)

    @property
    def refused(self) -> int:
        """How many connections were dropped because they did not have the token."""
        return self._unknown

    # What the engine calls.

    @property
    def workers(self) -> list[RemoteWorker]:
        with self._lock:
            return sorted(self._remotes.values(), key=lambda remote: remote.worker)

    def hire(self, worker: int, seat: int) -> None:
        remote = RemoteWorker(worker, seat)
        with self._lock:
            self._remotes[worker], self._names[worker] = remote, remote.who
            self._ledger.hire(worker, seat)
        call = Call(self._listener.getsockname()[:2], self._tls is not None, self._token, worker, seat)
        try:
            remote.actor = self._cluster.start(call, self._shipped, partial(self._told, remote))
        except BaseException:
            self._forget(remote)
            raise

    def retire(self, seat: int = -1) -> None:
        with self._lock:
            self._ledger.want_leave(seat)
        self.flush()

    def retain(self) -> int:
        with self._lock:
            return self._ledger.withdraw_leaves()

    def post(self, task: Task, slab: int, seat: int) -> None:
        seq, run, epoch, step, keys, steps, _ = task
        data, size = encode_keys(keys, self._batched, False)
        region = self._slabs.region(slab, abs(size), steps, self.most_steps)
        notice = NOTICE.pack(seq, run, epoch, step, size, steps, 0, *region)
        with self._lock:
            self._posted[seq] = _Posted(notice, data.tobytes(), epoch, step, steps, self._slabs.arena.root(region))
            self._ledger.post(seq, seat)

    def cool(self, slab: int) -> None:
        self._slabs.cool(slab)

    def encode(self, change: Change) -> bytes:
        return encode(change)

    def update(self, change: bytes) -> None:
        with self._lock:
            self._changes.append(change)
            self._log.end += len(change)
            up = [remote.link for remote in self._remotes.values() if remote.state is State.UP and remote.link]
            for link in up:
                link.post(HEAD.pack(CHANGE, len(change), 0, 0, 0), change)
        for link in up:
            link.push()

    def flush(self) -> None:
        """Sends tasks, and says goodbye to the workers that leave."""
        with self._lock:
            links = self._dealt()
        for link in links:
            link.push()

    def rescind(self, seq: int) -> bool:
        with self._lock:
            worker = self._ledger.holder(seq)
            if not self._ledger.rescind(seq):
                return False
            del self._posted[seq]
            link = None if worker is None else self._remotes[worker].link
            if link is not None:
                link.post(HEAD.pack(VOID, seq, 0, 0, 0))
        if link is not None:
            link.push()
        return True

    def poll(self, timeout: float | None) -> list[Outcome]:
        found: list[Outcome] = []
        wait = min(LONGEST_WAIT if timeout is None else timeout, self._check_patience())
        with suppress(Empty):
            news = self._news.get(timeout=wait)
            while True:
                outcome = None if news is None else news()
                if outcome is not None:
                    found.append(outcome)
                news = self._news.get_nowait()
        return found

    def open(self, outcome: Filled) -> object:
        return self._receiver.open(outcome)

    def memory(self) -> tuple[int, int]:
        return self._slabs.nbytes, self._strays.nbytes

    def doing(self, seq: int | None) -> list[Doing]:
        with self._lock:
            busy = {remote: self._ledger.has(remote.id) for remote in self._remotes.values()}
        mine = [remote for remote, task in busy.items() if task == seq is not None]
        return self._asked(mine or [remote for remote in busy if remote.state is not State.COMING])

    def _asked(self, remotes: list[RemoteWorker]) -> list[Doing]:
        """What these workers do. All are asked before the first answer is waited for."""
        ticket, deadline = next(self._tickets), time.monotonic() + _STACKS
        for remote in remotes:
            remote.ask(ticket)
        found = []
        for remote in remotes:
            told, at_task, at = remote.answer(ticket, deadline)
            with self._lock:
                task = self._ledger.has(remote.id)
                posted = None if task is None else self._posted.get(task)
            held = (task, posted.epoch, posted.step + (at if at_task == task else 0)) if posted else ()
            if told or held:
                found.append(Doing(remote.who, told, *held))  # type: ignore[arg-type]
        return found

    def end_hung(self, seconds: float) -> list[Doing]:
        now = time.monotonic()
        with self._lock:
            up = [one for one in self._remotes.values() if one.state is State.UP and not one.hung]
            hung = [one for one in up if self._ledger.has(one.id) is not None and one.began < now - seconds]
        found = self._asked(hung)
        for remote in hung:
            remote.hung = seconds
            self._kill([remote])
        return found

    def wake(self) -> None:
        if os.getpid() == self._pid:
            self._news.put(None)

    def close(self) -> None:
        # A child that the user forked has this object too, and must leave the workers alone.
        if os.getpid() == self._pid:
            with interrupts_deferred():
                self._close()

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            remotes, links = [*self._remotes.values()], {**self._links}
        self._wake_door()
        for link in links.values():
            link.cut()
        self._kill(remotes)
        deadline = time.monotonic() + _GRACE
        for thread in [self._door, *links]:
            if thread is not threading.current_thread():  # in which the garbage collector has found the engine
                thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._remotes.clear()
            self._posted.clear()
            wakes, self._wakes = self._wakes, (-1, -1)
        self._listener.close()
        for fd in wakes:
            if fd >= 0:
                os.close(fd)
        self._shipped = None

    def _kill(self, remotes: list[RemoteWorker]) -> None:
        """Cuts the connections of workers, and has Ray kill them, without waiting for a cluster that is gone."""
        for remote in remotes:
            if remote.link is not None:
                remote.link.cut()
        if not remotes or not self._cluster.is_there():
            return

        def kill() -> None:
            for remote in remotes:
                with suppress(Exception):  # dead already, or the cluster is being shut down
                    remote.actor.kill()

        killer = threading.Thread(target=kill, name="penstock-killer", daemon=True)
        with suppress(RuntimeError):  # the interpreter exits: Ray ends the actors of a driver that is gone
            killer.start()
            killer.join(_GRACE)

    # Patience.

    def _check_patience(self) -> float:
        """How long `poll` may wait before it looks again. Raises if no worker has come up in time."""
        with self._lock:
            remotes = [*self._remotes.values()]
        late = [remote.hired + self._patience for remote in remotes if remote.state is State.COMING]
        if not late:
            return LONGEST_WAIT
        is_alone = len(late) == len(remotes)
        due = max(min(late), self._alone_since + self._patience) if is_alone else min(late)
        left = due - time.monotonic()
        if left > 0:
            return left
        if is_alone:
            raise RuntimeError(
                f"No worker has started on the cluster within {self._patience:g} s. "
                f"{self._shortage(len(late))}\n  To wait longer, as for nodes that are being added, give "
                'ray_options={"patience": seconds}.'
            )
        overdue = sum(moment <= time.monotonic() for moment in late)
        self._warn(
            "late",
            f"{overdue} of {len(remotes)} workers have not started on the cluster within {self._patience:g} s; the "
            f"others do their work. {self._shortage(overdue)}",
        )
        return LONGEST_WAIT

    def _shortage(self, workers: int) -> str:
        return self._cluster.shortage(workers) if self._cluster.is_there() else "Ray was shut down."

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warn_caller(text)

    # What the threads do. First the one that waits for connections.

    def _accept(self) -> None:
        watch = select.poll()
        watch.register(self._listener, select.POLLIN)
        watch.register(self._wakes[0], select.POLLIN)
        while not self._closed:
            watch.poll()
            with suppress(OSError):  # it was closed, or the other side is gone already
                with no_fork():
                    sock, _ = self._listener.accept()
                sock.setblocking(True)
                link = Link(sock, DRIVER_PATIENCE, self._tls)
                receiver = threading.Thread(target=self._serve, args=(link,), name="penstock-link", daemon=True)
                with self._lock:
                    self._links[receiver] = link
                receiver.start()

    def _wake_door(self) -> None:
        with suppress(OSError):
            os.write(self._wakes[1], b"\0")

    def _serve(self, link: Link) -> None:
        """The life of one connection."""
        remote: RemoteWorker | None = None
        try:
            with suppress(OSError, EOFError, ValueError, TypeError, KeyError):
                remote = self._admitted(link)
                while remote is not None:
                    self._receive(remote, link)
        finally:
            link.cut()
            link.close()
            with self._lock:
                self._links.pop(threading.current_thread(), None)
            if remote is not None:
                remote.told.wait(0.0 if self._closed or remote.state is State.LEAVING else _REASON)
                self._news.put(partial(self._bury, remote))
                remote.ended.set()

    def _admitted(self, link: Link) -> RemoteWorker | None:
        """The worker at the other end; None if there is no such worker."""
        hello = handshake.admit(link, self._token)
        with self._lock:
            remote = None if hello is None else self._remotes.get(hello.worker)
            if hello is None or remote is None or remote.state is not State.COMING or self._closed:
                self._unknown += hello is None
                return None
            remote.greet(hello, link)
            self._names[remote.id] = remote.who
            self.gauges.nodes = {**self.gauges.nodes, remote.worker: remote.node}
        wrong = handshake.refusal(self._versions, hello.versions, hello.node)
        if wrong:
            self._news.put(partial(_raise, RuntimeError(wrong)))
            return None
        differs = handshake.difference(self._versions, hello.versions, hello.node)
        if differs:
            self._news.put(partial(self._warn, "versions", differs))
        row = self.gauges.tell(remote.worker)
        link.post(HEAD.pack(WELCOME, self.gauges.waited(), self.gauges.tracing, len(row), -remote.shift), row)
        link.push()
        return remote

    def _receive(self, remote: RemoteWorker, link: Link) -> None:
        """Receives one frame."""
        kind, one, two, three, four = HEAD.unpack(link.receive(HEAD.size))
        if kind == REPLIED:
            self._receive_reply(remote, link, one, two, three, four)
        elif kind == TOLD:
            remote.stacks.put((one, link.receive(two).decode(errors="replace"), three, four))
        elif kind == READY:
            self._join(remote, link)
        elif kind == BROKEN:
            self._news.put(partial(_raise_restored, bytes(link.receive(one))))
        else:
            raise ValueError(f"a frame of kind {kind}")

    def _join(self, remote: RemoteWorker, link: Link) -> None:
        with self._lock:
            if remote.state is not State.STARTING:
                return
            for change in self._changes:
                link.post(HEAD.pack(CHANGE, len(change), 0, 0, 0), change)
            remote.state = State.UP
            self._ledger.join(remote.id)
        self.flush()

    def _receive_reply(self, remote: RemoteWorker, link: Link, seq: int, start: int, size: int, strays: int) -> None:
        _, figures, *_ = HEAD.unpack(link.receive(HEAD.size))
        reply = bytes(link.receive(REPLY.size))
        told = link.receive(figures)
        table = [HEAD.unpack(link.receive(HEAD.size)) for _ in range(strays)]
        with self._lock:
            wanted = self._ledger.answering(remote.id, seq)
            # What is not wanted may still have a layout that later replies refer to.
            root = self._posted[seq].root if wanted else _memory(start + size)
        if start < 0 or size < 0 or start + size > len(root):
            raise ValueError(f"{start + size} bytes for a slab of {len(root)}")
        link.receive_into(root[start : start + size].data)
        for _, at, length, *_ in table:
            stray = _memory(length)
            link.receive_into(stray.data)
            if wanted or may_teach(reply):
                self._strays.add(at, remote.id, stray)
        self.gauges.hear(remote.worker, told, remote.shift)
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
        """Notes since when the worker has had its present task."""
        is_busy = self._ledger.has(remote.id) is not None
        remote.began = time.monotonic()
        self.gauges.begun(remote.worker, time.perf_counter_ns() if is_busy else 0)

    def _dealt(self) -> list[Link]:
        """Under the lock: lines up what is to be sent now. Returns the links that have something to send."""
        links: dict[Link, None] = {}
        for worker in self._ledger.leave():
            remote = self._remotes[worker]
            if remote.state is State.UP and remote.link is not None:
                remote.link.post(HEAD.pack(LEAVE, 0, 0, 0, 0))
                links[remote.link] = None
                remote.state = State.LEAVING
            else:
                remote.state = State.LEAVING
                self._news.put(partial(self._bury, remote))
        dealt = self._ledger.deal()
        if dealt:
            waited, tracing = self.gauges.waited(), self.gauges.tracing
            for worker, seq in dealt:
                remote, posted = self._remotes[worker], self._posted[seq]
                assert remote.link is not None
                remote.link.post(HEAD.pack(TASK, len(posted.keys), waited, tracing, 0), posted.notice, posted.keys)
                links[remote.link] = None
                if self._ledger.has(worker) == seq:
                    self._begin(remote)
        return [*links]

    def _told(self, remote: RemoteWorker, end: End) -> None:
        """The cluster tells that the process of a worker has ended. Called in a thread of the cluster's."""
        remote.end = end
        remote.told.set()
        with self._lock:
            link = remote.link
        if end.broken is not None:
            self._news.put(partial(_raise, end.broken))
        if link is not None:
            link.cut()  # the thread that receives tells of it
        else:
            self._news.put(partial(self._bury, remote))
            remote.ended.set()

    # What `poll` makes of the news, in the thread of the caller.

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
        if remote.state is State.GONE or self._closed:
            return None
        left = remote.state is State.LEAVING
        with self._lock:
            seq = self._ledger.lose(remote.id)
            posted = None if seq is None else self._posted.pop(seq, None)
        self._forget(remote)
        self._kill([remote])
        if left:
            return Left(remote.id)
        end = remote.end or End("closed its connection, and Ray has not told why")
        how, signal = end.how, "unknown"
        if remote.hung:
            how, signal = f"hung for more than {remote.hung:g} seconds, and was killed (hang=)", HUNG
        # Which step of a bundle it was at is not known.
        at = None if posted is not None and posted.steps > 1 else 0
        return Lost(remote.id, seq, at, remote.who, how, signal, end.cause)

    def _forget(self, remote: RemoteWorker) -> None:
        remote.state = State.GONE
        with self._lock:
            self._ledger.lose(remote.id)
            self._remotes.pop(remote.id, None)
            self._names.pop(remote.id, None)
            if not any(one.state is not State.COMING for one in self._remotes.values()):
                self._alone_since = time.monotonic()
            self.gauges.begun(remote.worker, 0)
        self._receiver.forget(remote.id)


def _memory(size: int) -> NDArray[np.uint8]:
    """Memory of its own, aligned to pages."""
    return np.frombuffer(mapped(None, max(1, size)), np.uint8, size)


def _raise(error: BaseException) -> None:
    raise error


def _raise_restored(failure: bytes) -> None:
    error = restore(failure)
    raise annotate(error, "The worker cannot be started, so it is not tried again: look at what that node has.")


def start(job: Job, cluster: Cluster, patience: float) -> RayBackend:
    """A backend on this cluster. It has no workers yet."""
    return RayBackend(job, cluster, patience)
