"""The backend whose workers are actors on the nodes of a Ray cluster."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from itertools import count
from queue import Empty

from penstock._memory.mapping import mapped, view_of
from penstock._system.descriptors import close
from penstock._system.interrupts import acquire, interrupts_deferred
from penstock._wire.shipment import pack
from penstock._wire.task import MOST_STEPS, NOTICE, Filled, Task, encode_keys
from penstock._wire.updates import Change, encode
from penstock._work.job import Job
from penstock.backends._base import LONGEST_WAIT, Backend, Doing, Outcome
from penstock.backends._ray.door import Door
from penstock.backends._ray.exchange import Exchange, Posted
from penstock.backends._ray.link import CHANGE, VOID, head
from penstock.backends._ray.remote import Call, Cluster, RemoteWorker, RemoteWorkerState

# Seconds for which `doing` waits for stacks, and `close` for the threads of connections.
_STACKS = 0.5
_GRACE = 1.0


class RayBackend(Exchange, Backend):
    """Runs workers on Ray. Created by `start`. `poll` raises if no worker starts within `patience` seconds."""

    copies_dataset = True
    leaves_nothing = False
    clock = staticmethod(time.monotonic)

    def __init__(self, job: Job, cluster: Cluster, patience: float, shipment: object, shipped: float) -> None:
        super().__init__(cluster, job.assigned)
        self._pid = os.getpid()
        # `shipped` is the number of seconds that it took to send the job to the cluster.
        self._patience, self._shipment, self.shipped = patience, shipment, shipped
        self.most_steps = 1 if job.assigned else MOST_STEPS
        self._batched, self._log = job.batched, job.log
        self._tickets = count()
        tls = None if cluster.tls is None else cluster.tls.context(server=True)
        self._door = Door(cluster.address, tls, self._serve)

    @property
    def workers(self) -> list[RemoteWorker]:
        with self._lock:
            return sorted(self._remotes.values(), key=lambda remote: remote.seat)

    def hire(self, worker: int, seat: int) -> None:
        remote = RemoteWorker(worker, seat)
        with self._lock:
            self._remotes[worker], self._names[worker] = remote, remote.who
            self._ledger.hire(worker, seat)
        call = Call(self._door.address, self._cluster.tls is not None, self._door.token, worker, seat)
        try:
            with interrupts_deferred():
                told = partial(self._told, remote)
                remote.kill = self._cluster.start(call, self._shipment, told, self._silent_nodes())
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
            self._posted[seq] = Posted(notice, data.tobytes(), epoch, step, steps, self._slabs.arena.root(region))
            self._ledger.post(seq, seat)

    def cool(self, slab: int) -> None:
        self._slabs.cool(slab)

    def encode(self, change: Change) -> bytes:
        return encode(change)

    def update(self, change: bytes) -> None:
        with self._lock:
            self._changes.append(change)
            self._log.end += len(change)
            up = [
                remote.link
                for remote in self._remotes.values()
                if remote.state is RemoteWorkerState.UP and remote.link
            ]
            for link in up:
                link.post(head(CHANGE, len(change)), change)
        for link in up:
            link.push()

    def rescind(self, seq: int) -> bool:
        with self._lock:
            worker = self._ledger.holder(seq)
            if not self._ledger.rescind(seq):
                return False
            del self._posted[seq]
            link = None if worker is None else self._remotes[worker].link
            if link is not None:
                link.post(head(VOID, seq))
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
        return self._asked(mine or [remote for remote in busy if remote.state is not RemoteWorkerState.COMING])

    def _asked(self, remotes: list[RemoteWorker]) -> list[Doing]:
        ticket, deadline = next(self._tickets), time.monotonic() + _STACKS
        for remote in remotes:
            remote.ask(ticket)
        found = []
        for remote in remotes:
            answer = remote.answer(ticket, deadline)
            with self._lock:
                task = self._ledger.has(remote.id)
                if answer is not None and answer[1] != task:  # the task, or its reply, is in flight
                    task = None
                posted = None if task is None else self._posted.get(task)
            told, _, at = answer or ("", -1, 0)
            held = (task, posted.epoch, posted.step + at) if posted else ()
            if told or held:
                found.append(Doing(remote.who, told, *held))
        return found

    def end_hung(self, seconds: float) -> list[Doing]:
        now = time.monotonic()
        with self._lock:
            up = [one for one in self._remotes.values() if one.state is RemoteWorkerState.UP and not one.hung]
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
            remotes = [*self._remotes.values()]
        self._kill(remotes)
        self._door.close(time.monotonic() + _GRACE)
        with self._lock:
            self._remotes.clear()
            self._posted.clear()
        self._shipment = None

    # Patience.

    def _check_patience(self) -> float:
        """Returns how many seconds `poll` may wait before the next check. Raises if no worker started in time."""
        with self._lock:
            if self._ledger.all_joined:
                return LONGEST_WAIT
            remotes = [*self._remotes.values()]
        late = [remote.hired + self._patience for remote in remotes if remote.state is RemoteWorkerState.COMING]
        if not late:
            return LONGEST_WAIT
        if not self._cluster.is_there():
            raise RuntimeError("Ray was shut down before workers had started: call ray.init() and iter(loader).")
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
        self._warn(
            "late",
            f"{len(late)} of {len(remotes)} workers have not started on the cluster within {self._patience:g} s; the "
            f"others do their work. {self._shortage(len(late))}",
        )
        return LONGEST_WAIT

    def _shortage(self, workers: int) -> str:
        silent = self._silent_nodes().items()
        known = [f"Node {node} has not answered for {seconds:.0f} s." for node, seconds in silent]
        if known:
            known.append("Workers are started on other nodes, if those have room.")
        return " ".join([*known, self._cluster.shortage(workers)])


def start(job: Job, cluster: Cluster, patience: float) -> RayBackend:
    began = time.perf_counter()
    fd = pack(job, None)
    try:
        shipment = cluster.ship(view_of(mapped(fd, os.fstat(fd).st_size)))
    finally:
        close(fd)
    took = time.perf_counter() - began
    return acquire(partial(RayBackend, job, cluster, patience, shipment, took), RayBackend.close)
