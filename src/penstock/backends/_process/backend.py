"""The backend whose workers are processes. Each worker has its own GIL, and may die at any instruction."""

from __future__ import annotations

import os
import select
import socket
import time
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._measure.gauges import Gauges
from penstock._memory.mapping import grow
from penstock._memory.slabs import Slabs
from penstock._printable import counted
from penstock._system.descriptors import close, close_in_child, no_fork, take_standard_streams
from penstock._system.interrupts import interrupts_deferred
from penstock._system.warnings import warn_caller
from penstock._wire.failure import described
from penstock._wire.pickling import tags_of_main
from penstock._wire.reply import REPLY, WAKE, Receiver, SocketStrays
from penstock._wire.task import MOST_STEPS, Bundle, Filled, Task, encode_keys
from penstock._wire.updates import Change, encode
from penstock._work.job import Job
from penstock.backends import _stack as stack
from penstock.backends._base import HUNG, LONGEST_WAIT, Backend, Doing, Left, Lost, Outcome
from penstock.backends._process.board import NO_TASK, TOKEN, Board
from penstock.backends._process.forking import other_threads
from penstock.backends._process.launcher import Launcher
from penstock.backends._process.methods import choose_method, is_chosen
from penstock.backends._process.process import LINGER, SEATS, WorkerProcess, fate, phrase
from penstock.backends._process.worker import main
from penstock.errors import InternalError

# Seconds that close() waits for workers: idle ones end within a millisecond or two, and busy ones are killed.
_GRACE = 0.1

_MOST_REPLIES = 1024

_FORKED_ANYWAY = (
    "A worker is forked beside threads that were started after the first worker. If such a thread holds a lock now, "
    "the worker may wait for that lock for ever. Every other way to start the worker failed:"
)

_FORKED_BESIDE = (
    "Most often this comes from a fork beside threads: the worker waits for a lock or a thread pool, and was forked "
    "while this process had {threads}. A forked process has none of those threads, so no lock that one of them held "
    'is released, and no pool of them works. Give multiprocessing_context="forkserver".'
)


class ProcessBackend(Backend):
    """Passes tasks in shared memory, and tokens and replies through pipes. Use `start` to create a backend."""

    shares_gauges = True  # workers write to them at any time, even while they are busy
    clock = staticmethod(time.monotonic)

    def __init__(self, job: Job, method: str, *, explicit: bool, among: list[ProcessBackend]) -> None:
        self._pid = os.getpid()
        self.most_steps = 1 if job.assigned else MOST_STEPS
        self._fds: list[int] = []
        self._tokens: list[int] = []
        self._workers: dict[int, WorkerProcess] = {}
        self._hung: dict[int, float] = {}  # workers killed because they hung -> seconds
        self.handles: dict[int, WorkerProcess] = {}  # by seat: its last worker, which may be dead
        self._strays = SocketStrays(-1)
        self._launchers: list[Launcher] = []  # the last one starts workers; workers of the others may be alive
        among.append(self)  # if anything fails from here on, `start` closes it
        with interrupts_deferred(), no_fork():
            take_standard_streams()
            self._theirs = theirs = {
                name: self._opened(os.memfd_create(f"penstock-{name}", os.MFD_CLOEXEC))[0]
                for name in ("slabs", "board", "updates", "stacks", "gauges")
            }
            grow(theirs["gauges"], Gauges.SIZE)
            # If tasks are assigned to particular workers, each seat (worker slot) has its own token pipe.
            for pipe in range(job.num_workers if job.assigned else 1):
                theirs[f"tokens {pipe}"], tokens = self._opened(*os.pipe())
                self._tokens.append(tokens)
            self._replies, theirs["replies"] = self._opened(*os.pipe())
            # Descriptors instead of socket objects, so that a forked child has nothing to finalize.
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            strays, theirs["strays"] = self._opened(*(end.detach() for end in ends))
        # Only the parent's end of each pipe is non-blocking, because workers wait.
        for fd in (*self._tokens, self._replies):
            os.set_blocking(fd, False)
        self._slabs = Slabs(theirs["slabs"])
        self._board = Board(theirs["board"])
        self.gauges = Gauges(theirs["gauges"])
        self._assigned, self._batched = job.assigned, job.batched
        self._log = job.log
        self._main_is_there = method == "fork"  # workers have the parent's `__main__`
        self._known = tags_of_main() if method == "fork" else frozenset()
        # A weak reference: this object lives until the workers end, they end when the loader is deallocated, and the
        # user's objects in the job may refer to the loader. The engine keeps the job for workers that start later.
        self._job = weakref.ref(job)
        payload = self._job if method == "fork" else job
        began = time.perf_counter()
        Launcher(method, main, payload, theirs, explicit=explicit, among=self._launchers)
        self.shipped = 0.0 if method == "fork" else time.perf_counter() - began
        self._fork_is_our_choice = method == "fork" and not explicit
        self._names: dict[int, str] = {}
        self._poller, self._deaths = select.poll(), select.poll()  # everything, and only the deaths of workers
        self._poller.register(self._replies, select.POLLIN)
        self._poller.register(strays, select.POLLIN)
        self._strays = SocketStrays(strays)
        self._receiver = Receiver(self._strays, self._names)
        self._unsent = [b""] * len(self._tokens)
        self._retired: set[int] = set()  # seats whose workers exit when they have done their tasks
        self._latest = -1  # the highest seq that was posted
        self._posted: dict[int, tuple[int, NDArray[np.uint8]]] = {}  # by seq: slot, and the slab's memory

    def _opened(self, *fds: int) -> tuple[int, ...]:
        self._fds += fds
        close_in_child(*fds)
        return fds

    def hire(self, worker: int, seat: int) -> None:
        process = self._launch(worker * SEATS + seat)
        self._workers[worker] = self.handles[seat] = process
        self._names[worker] = f"worker {seat} (pid {process.pid})"
        self._poller.register(process.fileno(), select.POLLIN)
        self._deaths.register(process.fileno(), select.POLLIN)

    def _launch(self, number: int) -> WorkerProcess:
        if self._fork_is_our_choice and (method := choose_method(None)) != "fork":
            try:
                return self._launch_by(method, number)
            except Exception as error:  # pickling runs the user's code
                warn_caller(f"{_FORKED_ANYWAY} {described(error)}")
                self._fork_is_our_choice = False
        return self._launchers[-1].start(number)

    def _launch_by(self, method: str, number: int) -> WorkerProcess:
        """Makes `method` the start method, and starts a worker. Pickles the dataset in its current state."""
        known = len(self._launchers)
        try:
            Launcher(method, main, self._job(), self._theirs, among=self._launchers)
            process = self._launchers[-1].start(number)
        except Exception:
            for launcher in self._launchers[known:]:
                launcher.close()
            del self._launchers[known:]
            raise
        self._main_is_there = self._fork_is_our_choice = False
        self._known = frozenset()  # the new workers do not have our tags
        return process

    def post(self, task: Task, slab: int, seat: int) -> None:
        seq, run, epoch, step, keys, count, _ = task
        data, size = encode_keys(keys, self._batched, self._main_is_there)
        length = abs(size)
        region = self._slabs.region(slab, length, count, self.most_steps)
        root = self._slabs.arena.root(region)
        root[:length] = data
        slot = self._board.post(seq, run, epoch, step, size, count, self._log.end, *region)
        self._posted[seq] = slot, root
        token = TOKEN.pack(slot, seq)
        if seq < self._latest:  # a retry: it goes first, because the only reader of a stream needs it first
            self._unsent[seat] = token + self._unsent[seat]
        else:
            self._latest = seq
            self._unsent[seat] += token  # seat -1 means any worker, and then there is only one pipe

    def retire(self, seat: int = -1) -> None:
        if self._assigned != (seat >= 0):
            raise InternalError("a seat must be named if tasks are assigned to workers, and only then")
        if seat >= 0:
            self.flush()  # the worker does these tasks before it reaches the end of its pipe
            self._retired.add(seat)
            self._close_fds(self._tokens[seat])
            return
        self._board.want_leave()
        self._unsent[0] += NO_TASK
        self.flush()

    def retain(self) -> int:
        return self._board.withdraw_leaves()  # their tokens stay in the pipe, and claim nothing

    def cool(self, slab: int) -> None:
        self._slabs.cool(slab)

    def encode(self, change: Change) -> bytes:
        return encode(change, self._known, fresh=not self._main_is_there)

    def update(self, change: bytes) -> None:
        self._log.write(self._theirs["updates"], change)

    def flush(self) -> None:
        # All tokens in one write, which wakes one worker; each worker that reads a token wakes the next.
        for pipe, unsent in enumerate(self._unsent):
            while unsent:
                try:
                    sent = os.write(self._tokens[pipe], unsent[: select.PIPE_BUF])
                except BlockingIOError:
                    break  # the pipe is full of rescinded tasks' tokens, and `poll` waits for room
                self._unsent[pipe] = unsent = unsent[sent:]

    def rescind(self, seq: int) -> bool:
        if seq not in self._posted:  # its reply was read, and the outcome is on its way to the scheduler
            return False
        slot, _ = self._posted[seq]
        if self._board.rescind(slot):
            self._forget(seq)
            return True
        self._board.void(slot)
        return False

    def poll(self, timeout: float | None) -> list[Outcome]:
        replies = self._read()
        if replies is not None:
            return replies
        full = [fd for fd, unsent in zip(self._tokens, self._unsent, strict=True) if unsent]
        for fd in full:
            self._poller.register(fd, select.POLLOUT)
        ready = self._poller.poll(None if timeout is None else min(timeout, LONGEST_WAIT) * 1000)
        for fd in full:
            self._poller.unregister(fd)
        if any(fd == self._strays.fd for fd, _ in ready):
            self._strays.receive()
        dead = [fd for fd, _ in ready if fd not in (self._replies, self._strays.fd, *full)]
        # A dead worker sends nothing more, so all its replies are read before its death is reported.
        outcomes = self._read(everything=bool(dead)) or []
        return outcomes + [self._bury(fd) for fd in dead]

    def has_dead(self) -> bool:
        return bool(self._deaths.poll(0))

    def open(self, outcome: Filled) -> object:
        return self._receiver.open(outcome)

    def memory(self) -> tuple[int, int]:
        return self._slabs.nbytes, self._strays.nbytes

    def doing(self, seq: int | None) -> list[Doing]:
        held = self._held()
        asked = [worker for worker in held if held[worker][0] == seq] or list(self._workers)
        return [one for one in self._doing(asked, held) if one.stack or one.seq is not None]

    def _held(self) -> dict[int, tuple[int, int, int]]:
        slots = {self._board.claimant(slot): slot for slot, _ in self._posted.values()}
        return {worker: self._board.doing(slots[worker]) for worker in self._workers if worker in slots}

    def _doing(self, workers: list[int], held: dict[int, tuple[int, int, int]]) -> list[Doing]:
        processes = [self._workers[worker] for worker in workers]
        stacks = stack.ask([(process.pid, process.fileno()) for process in processes], self._theirs["stacks"])
        found = []
        for worker, process, calls in zip(workers, processes, stacks, strict=True):
            (seq, epoch, step), likely = held.get(worker, (None, -1, -1)), ""
            if process.beside and stack.waits_for_thread(process.pid):
                likely = _FORKED_BESIDE.format(threads=other_threads(process.beside))
            found.append(Doing(self._names[worker], calls, seq, epoch, step, likely))
        return found

    @property
    def workers(self) -> list[WorkerProcess]:
        return sorted(self._workers.values(), key=lambda process: process.seat)

    def end_hung(self, seconds: float) -> list[Doing]:
        before = time.perf_counter_ns() - int(seconds * 1e9)
        stuck = [
            worker
            for worker, process in self._workers.items()
            if worker not in self._hung and 0 < self.gauges.counts(process.seat).since < before
        ]
        held = self._held() if stuck else {}
        hung = [worker for worker in stuck if worker in held]  # the others have just finished
        found = self._doing(hung, held)
        for worker in hung:
            self._hung[worker] = seconds
            self._workers[worker].kill()
        return found

    def wake(self) -> None:
        if os.getpid() != self._pid:
            return
        with no_fork():  # so that no other thread closes the pipe in between
            if self._theirs["replies"] in self._fds:
                os.write(self._theirs["replies"], WAKE)

    def close(self) -> None:
        # A forked child of the user's program has a copy of this object, and must not touch the workers.
        if os.getpid() == self._pid:
            with interrupts_deferred():
                self._close()

    def _close(self) -> None:
        self._close_fds(*self._tokens)
        deadline = time.monotonic() + _GRACE
        for process in self._workers.values():
            process.join(max(0.0, deadline - time.monotonic()))
        for worker, process in self._workers.items():
            if self._board.is_ending(worker):  # the worker may be flushing a queue of multiprocessing
                process.join(max(0.0, deadline + LINGER - time.monotonic()))
        for process in self._workers.values():
            process.kill()
        for worker, process in list(self._workers.items()):
            process.release()
            del self._workers[worker]
        for launcher in self._launchers:
            launcher.close()
        self._strays.close()
        self._close_fds(*self._fds)

    def _close_fds(self, *fds: int) -> None:
        """Closes the descriptors that are still open, so that an interrupted close() can be repeated."""
        with no_fork():
            for fd in fds:
                if fd in self._fds:
                    # Removed first, so that it is not closed twice: its number may belong to another file by then.
                    self._fds = [other for other in self._fds if other != fd]
                    close(fd)

    def _send_tokens_again(self) -> None:
        """Announces open tasks and exit requests again, because the tokens that a dead worker had read are lost."""
        tokens = self._theirs["tokens 0"]
        if not self._workers and select.select([tokens], [], [], 0)[0]:
            # No worker is left to read the tokens in the pipe. They are all sent again, so that the only reader of a
            # stream gets them in order.
            os.read(tokens, 1 << 20)
            self._unsent = [b""]
        for seq, (slot, _) in sorted(self._posted.items()):
            if self._board.is_open(slot):
                self._unsent[0] += TOKEN.pack(slot, seq)
        self._unsent[0] += NO_TASK * self._board.wanted_leaves

    def _forget(self, seq: int) -> NDArray[np.uint8]:
        slot, root = self._posted.pop(seq)
        self._board.clear(slot)
        return root

    def _read(self, everything: bool = False) -> list[Outcome] | None:
        """Returns the outcomes in the pipe: [] if the pipe held only a wake-up, None if it was empty."""
        outcomes: list[Outcome] | None = None
        while True:
            try:
                data = os.read(self._replies, REPLY.size * _MOST_REPLIES)
            except BlockingIOError:
                return outcomes
            if outcomes is None:
                outcomes = []
            for outcome in self._receiver.read(data, self._forget):
                if type(outcome) is Filled:
                    self._slabs.learn(outcome.nbytes + 1)
                elif type(outcome) is Bundle:
                    self._slabs.learn(outcome.nbytes // len(outcome.steps) + 1)
                outcomes.append(outcome)
            if not everything:
                return outcomes

    def _bury(self, pidfd: int) -> Lost | Left:
        worker = next(id for id, process in self._workers.items() if process.fileno() == pidfd)
        process = self._workers[worker]
        self._poller.unregister(pidfd)
        self._deaths.unregister(pidfd)
        process.join()
        how, name = fate(process.exitcode)
        cause, said = process.failure, phrase(process.pid, process.exitcode)
        if worker in self._hung:
            how, name = (
                f"hung for more than {counted(self._hung.pop(worker), 'second')}, and was killed (hang=)",
                HUNG,
            )
        process.release()
        # Only after release(): if an interrupt comes before, `close` still finds the worker.
        del self._workers[worker]
        who = self._names.pop(worker)
        self._receiver.forget(worker)
        # The board decides, not the exit code, because a worker that took a leave has no task, however it ends.
        if self._board.took_leave(worker):
            return Left(worker)
        lost, at = None, 0
        for seq, (slot, _) in self._posted.items():
            if self._board.claimant(slot) == worker:
                lost, at = seq, self._board.at(slot)
        if lost is not None:
            self._forget(lost)
        if process.seat in self._retired:  # its task is not wanted
            return Left(worker)
        if not self._assigned:
            self._send_tokens_again()
        return Lost(worker, lost, at, who, how, name, cause, phrase=said)


def start(job: Job, context: Any) -> ProcessBackend:
    made: list[ProcessBackend] = []
    try:
        ProcessBackend(job, choose_method(context), explicit=is_chosen(context), among=made)
        return made[0]
    except BaseException:
        for backend in made:
            backend.close()
        raise
