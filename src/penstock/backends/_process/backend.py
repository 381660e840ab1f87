"""Workers are processes: no GIL between them, and any of them may die at any instruction."""

from __future__ import annotations

import errno
import os
import pickle
import select
import socket
import struct
import time
import warnings
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._memory.arena import Arena
from penstock._memory.layout import Layout
from penstock._memory.mapping import Mapping
from penstock._memory.pool import Pool
from penstock._wire.failure import annotate, restore
from penstock._wire.reply import REPLY, STRAY, UNNUMBERED, Trailer, Verdict, dumps
from penstock._wire.task import MOST_STEPS, Job, Task
from penstock._wire.updates import Change, classes_of_main, packed
from penstock.backends import _stack as stack
from penstock.backends._base import LONGEST_WAIT, Bundle, Doing, Ended, Failed, Filled, Lost, Outcome
from penstock.backends._process.board import TOKEN, Board
from penstock.backends._process.launch import (
    Launcher,
    WorkerProcess,
    choose_method,
    close_in_child,
    fate,
    forget,
    no_fork,
    take_standard_streams,
)
from penstock.backends._process.worker import main

# A worker that is idle ends within a millisecond or two of close(). One that is in the middle of a
# step is not waited for longer than this.
_GRACE = 0.1

_MOST_REPLIES = 1024

# The seq of a reply that only wakes whoever waits for replies.
_NO_STEP = -1

_FD = struct.Struct("i")

Payload = NDArray[np.uint8] | bytes

_FORKED_ANYWAY = (
    "A worker is forked beside threads that were not there when the first was. If one of them holds a lock just now, "
    "the worker may wait for it for ever. It could not be started in any other way:"
)


class ProcessBackend:
    """One board, one pipe of tokens out, one pipe of replies in, for all the workers of a crew.

    Where tasks are assigned, each seat has a pipe of tokens of its own.
    """

    copies_dataset = True
    leaves_nothing = False
    clock = staticmethod(time.monotonic)

    def __init__(self, job: Job, method: str, *, explicit: bool) -> None:
        self._pid = os.getpid()
        self.most_steps = 1 if job.assigned else MOST_STEPS
        self._fds: list[int] = []
        self._tokens: list[int] = []
        self._workers: dict[int, WorkerProcess] = {}
        self._unclaimed_strays: dict[tuple[int, int], int] = {}
        self._launcher: Launcher | None = None
        self._former: Launcher | None = None
        try:
            self._start(job, method, explicit)
        except BaseException:
            self.close()
            raise

    def _start(self, job: Job, method: str, explicit: bool) -> None:
        with no_fork():
            take_standard_streams()
            names = ("slabs", "board", "updates", "stacks")
            arena, board, self._updates, self._stacks = (
                self._opened(os.memfd_create(f"penstock-{name}", os.MFD_CLOEXEC))[0] for name in names
            )
            pipes = [self._opened(*os.pipe()) for _ in range(job.num_workers if job.assigned else 1)]
            self._tokens_out, self._tokens = [pipe[0] for pipe in pipes], [pipe[1] for pipe in pipes]
            self._replies, self._replies_in = self._opened(*os.pipe())
            # Bare numbers: a forked child has nothing to finalize.
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._strays, strays_in = self._opened(*(end.detach() for end in ends))
        # Of each pipe only our end does not wait: the workers' ends do.
        for fd in (*self._tokens, self._replies):
            os.set_blocking(fd, False)
        self._theirs = {
            "arena": arena,
            "board": board,
            "updates": self._updates,
            "stacks": self._stacks,
            **{f"tokens {i}": fd for i, fd in enumerate(self._tokens_out)},
            "replies": self._replies_in,
            "strays": strays_in,
        }
        self._pool = Pool(Arena(arena))
        self._board = Board(board, job.slots)
        self._seats = job.num_workers
        self._assigned = job.assigned
        self._log = job.log
        self._method = method
        self._known = classes_of_main() if method == "fork" else None
        # Weakly: this object lives until the workers are ended, and the job may hold, by way of the user's
        # objects, the loader whose end ends them. The engine keeps it for workers that are started later.
        self._job = weakref.ref(job)
        payload = self._job if method == "fork" else job
        self._launcher = Launcher(method, main, payload, self._theirs, explicit=explicit)
        self._fork_is_our_choice = method == "fork" and not explicit
        self._seat_of: dict[int, int] = {}
        self._poller = select.poll()
        self._poller.register(self._replies, select.POLLIN)
        self._poller.register(self._strays, select.POLLIN)

        self._free = list(range(job.slots))
        self._unsent = [b""] * len(pipes)
        self._latest = -1  # seq that was posted
        self._posted: dict[int, tuple[int, NDArray[np.uint8]]] = {}
        # By worker and number; an error where it could not be received.
        self._layouts: dict[tuple[int, int], Layout | Exception] = {}

    def _opened(self, *fds: int) -> tuple[int, ...]:
        self._fds += fds
        close_in_child(*fds)
        return fds

    def retire(self) -> None:
        raise NotImplementedError

    def hire(self, worker: int, seat: int) -> None:
        process = self._launch(worker * self._seats + seat)
        self._workers[worker] = process
        self._seat_of[worker] = seat
        self._poller.register(process.fileno(), select.POLLIN)

    def _launch(self, number: int) -> WorkerProcess:
        assert self._launcher is not None
        if self._fork_is_our_choice and (method := choose_method(None)) != "fork":
            try:
                return self._launch_by(method, number)
            except Exception as error:  # pickling runs the user's code
                text = f"{_FORKED_ANYWAY} {type(error).__name__}: {error}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
                self._fork_is_our_choice = False
        return self._launcher.start(number)

    def _launch_by(self, method: str, number: int) -> WorkerProcess:
        """From here on workers are started in another way: with the dataset as it is now, and how far the log is."""
        self._former = self._launcher
        self._launcher = Launcher(method, main, self._job(), self._theirs)
        try:
            process = self._launcher.start(number)
        except Exception:
            self._launcher.close()
            self._launcher = self._former
            raise
        self._method, self._fork_is_our_choice = method, False
        self._known = None  # the new one has no class by a tag of ours
        return process

    def _pack(self, task: Task) -> Payload:
        """The task's keys as bytes: those of int64 as they are (an array), any others pickled."""
        keys = task.keys
        if isinstance(keys, np.ndarray) and keys.dtype == np.int64:
            return keys.view(np.uint8)
        if type(keys) is list and set(map(type, keys)) == {int}:
            with suppress(OverflowError):
                return np.array(keys, np.int64).view(np.uint8)
        packed = dumps(keys)
        if b"__main__" in packed and self._method != "fork":
            import cloudpickle  # late: for classes that only the caller's program has

            packed = cloudpickle.dumps(keys, 5)
        return packed

    def post(self, task: Task, slab: int, seat: int) -> None:
        payload = self._pack(task)
        size = len(payload)
        region = self._pool.region(slab, size, task.steps, self.most_steps)
        slot = self._free.pop()
        root = self._pool.arena.root(region)
        if isinstance(payload, bytes):
            root[:size] = np.frombuffer(payload, np.uint8)
            size = -size
        else:
            root[:size] = payload
        seq, run, epoch, step, _, count, _ = task
        self._posted[seq] = slot, root
        self._board.post(slot, seq, run, epoch, step, 0, size, count, self._log.end, *region)
        token = TOKEN.pack(slot, seq)
        if seq < self._latest:  # it is done again: before the others, which the only reader of a stream needs
            self._unsent[seat] = token + self._unsent[seat]
        else:
            self._latest = seq
            self._unsent[seat] += token  # seat -1, whoever is free, is the only pipe

    def cool(self, slab: int) -> None:
        self._pool.cool(slab)

    def encode(self, change: Change) -> bytes:
        return packed(change, self._known)

    def update(self, change: bytes) -> None:
        self._log.write(self._updates, change)

    def flush(self) -> None:
        # All in one write: it wakes one worker, which wakes the next while there are more.
        for pipe, unsent in enumerate(self._unsent):
            while unsent:
                try:
                    sent = os.write(self._tokens[pipe], unsent[: select.PIPE_BUF])
                except BlockingIOError:
                    break  # full of tokens for tasks that were rescinded: `poll` waits for room
                self._unsent[pipe] = unsent = unsent[sent:]

    def rescind(self, seq: int) -> bool:
        entry = self._posted.get(seq)
        # Without an entry its reply has been read, and its outcome is on its way to the scheduler.
        if entry is None:
            return False
        if not self._board.rescind(entry[0]):
            self._board.void(entry[0])
            return False
        self._forget(seq)
        return True

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
        if any(fd == self._strays for fd, _ in ready):
            # Also those whose replies are still to come: else a worker might wait for room to send one.
            self._receive_strays()
        dead = [fd for fd, _ in ready if fd not in (self._replies, self._strays, *full)]
        # A worker that is dead has sent all that it ever will: its replies come before its loss.
        outcomes = self._read(everything=bool(dead)) or []
        return outcomes + [self._bury(fd) for fd in dead]

    def open(self, outcome: Filled) -> object:
        (layout, trailer), root = outcome.held, outcome.root
        rest = ()
        if trailer is not None and trailer.rest is not None:
            views = [root[start : start + length] for start, length in trailer.buffers]
            rest = pickle.loads(trailer.rest, buffers=views)
        return layout.open(root, rest)

    def doing(self, seq: int | None) -> list[Doing]:
        slots = {self._board.claimant(slot): slot for slot, _ in self._posted.values()}
        held = {worker: self._board.doing(slots[worker]) for worker in self._workers if worker in slots}
        at_work = []
        for worker in [worker for worker in held if held[worker][0] == seq] or self._workers:
            process = self._workers[worker]
            told = stack.ask(process.pid, process.fileno(), self._stacks)
            if told or worker in held:
                at_work.append(Doing(self._who(worker), told, *held.get(worker, ())))
        return at_work

    @property
    def workers(self) -> list[WorkerProcess]:
        """The living, by seat."""
        return [self._workers[worker] for worker in sorted(self._workers, key=self._seat_of.__getitem__)]

    def wake(self) -> None:
        if os.getpid() != self._pid:
            return
        with no_fork():  # nobody closes it meanwhile
            if self._replies_in in self._fds:
                os.write(self._replies_in, REPLY.pack(_NO_STEP, *[0] * 10))

    def close(self) -> None:
        # A child that the user forked has this object too, and must leave the workers alone.
        if os.getpid() != self._pid:
            return
        self._close_fds(*self._tokens)
        deadline = time.monotonic() + _GRACE
        for process in self._workers.values():
            process.join(max(0.0, deadline - time.monotonic()))
        for worker, process in list(self._workers.items()):
            process.kill()
            process.join()
            process.close()
            del self._workers[worker]
        for launcher in (self._launcher, self._former):
            if launcher is not None:
                launcher.close()
        self._close_fds(*self._fds, *self._unclaimed_strays.values())

    def _close_fds(self, *fds: int) -> None:
        """Closes those that are still open, so that an interrupted close() can be called again."""
        with no_fork():
            for fd in fds:
                if fd in self._fds or fd in self._unclaimed_strays.values():
                    # Off the list first: closed twice, its number may be somebody else's by then.
                    self._fds = [other for other in self._fds if other != fd]
                    self._unclaimed_strays = {k: v for k, v in self._unclaimed_strays.items() if v != fd}
                    forget(fd)
                    os.close(fd)

    def _who(self, worker: int) -> str:
        return f"worker {self._seat_of[worker]} (pid {self._workers[worker].pid})"

    def _send_tokens_again(self) -> None:
        """For what is open on the board: a worker may have died with a token in its hand."""
        (tokens,) = self._tokens_out
        if not self._workers and select.select([tokens], [], [], 0)[0]:
            # Nobody else reads them: begin anew, so that a stream's only reader finds them in order.
            os.read(tokens, 1 << 20)
            self._unsent = [b""]
        for seq, (slot, _) in sorted(self._posted.items()):
            if self._board.is_open(slot):
                self._unsent[0] += TOKEN.pack(slot, seq)

    def _forget(self, seq: int) -> NDArray[np.uint8]:
        slot, root = self._posted.pop(seq)
        self._board.clear(slot)
        self._free.append(slot)
        return root

    def _read(self, everything: bool = False) -> list[Outcome] | None:
        """What replies tell of; None where there was none, not even one that only wakes."""
        outcomes: list[Outcome] | None = None
        while True:
            try:
                data = os.read(self._replies, REPLY.size * _MOST_REPLIES)
            except BlockingIOError:
                return outcomes
            outcomes = outcomes or []
            for reply in REPLY.iter_unpack(data):
                if reply[0] != _NO_STEP:
                    outcome = self._understand(self._forget(reply[0]), *reply)
                    if isinstance(outcome, (Filled, Bundle)):
                        count = len(outcome.steps) if isinstance(outcome, Bundle) else 1
                        self._pool.learn(outcome.nbytes // count + 1)
                    outcomes.append(outcome)
            if not everything:
                return outcomes

    def _understand(
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
    ) -> Outcome:
        """The outcome that a reply (see `reply.py` for its fields) tells of."""
        if stray:
            root = self._take_stray(seq, worker, stray)
        elif base:
            root = root[base:]
        if not length:
            if verdict == Verdict.ENDED:
                return Ended(seq, worker)
            layout = self._layouts[worker, number]
            if isinstance(layout, Exception):
                return Failed(seq, worker, layout)
            return Filled(seq, worker, rows, nbytes, took * 1e-9, root, (layout, None))
        data = root[start : start + length].tobytes()
        if verdict == Verdict.BUNDLE:
            steps: list[Any] = [self._understand(root, *reply) for reply in REPLY.iter_unpack(data)]
            return Bundle(seq, worker, nbytes, took * 1e-9, steps, root)
        if verdict == Verdict.ENDED:
            return Ended(seq, worker, data)
        if verdict == Verdict.FAILED:
            failure, mark = pickle.loads(data)
            return Failed(seq, worker, restore(failure), mark)
        try:
            trailer: Trailer = pickle.loads(data)
        except Exception as error:  # of a class of the user's that is part of the batch's structure
            # The worker does not describe this structure again.
            self._layouts[worker, number] = error
            return Failed(
                seq, worker, annotate(error, f"While a batch was received from {self._who(worker)}.")
            )
        layout = trailer.layout or self._layouts[worker, number]
        if isinstance(layout, Exception):
            return Failed(seq, worker, layout)
        if number != UNNUMBERED:
            self._layouts[worker, number] = layout
        mended = trailer.mended
        if mended is not None:
            mended = mended._replace(errors=[(key, restore(error)) for key, error in mended.errors])
        return Filled(seq, worker, rows, nbytes, took * 1e-9, root, (layout, trailer), mended, trailer.mark)

    def _take_stray(self, seq: int, worker: int, size: int) -> NDArray[np.uint8]:
        """Maps the memfd that came with a reply; it is unmapped with the batch."""
        if (seq, worker) not in self._unclaimed_strays:  # then it is in the socket: it was sent before
            self._receive_strays()
        fd = self._unclaimed_strays[seq, worker]
        mapping = Mapping(fd, size)
        self._close_fds(fd)
        return np.frombuffer(mapping.buffer, np.uint8)

    def _receive_strays(self) -> None:
        """All that are there."""
        with socket.socket(fileno=os.dup(self._strays)) as strays, suppress(BlockingIOError):
            while True:
                # Not socket.recv_fds: it does not pass on its flags (Python 3.11).
                with no_fork():
                    flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                    data, control, _, _ = strays.recvmsg(STRAY.size, socket.CMSG_LEN(_FD.size), flags)
                    if not control:
                        raise OSError(
                            errno.EMFILE,
                            "no descriptor is left for a batch that outgrew its memory: raise ulimit -n",
                        )
                    (fd,) = _FD.unpack(control[0][2])
                    close_in_child(fd)
                self._unclaimed_strays[STRAY.unpack(data)] = fd

    def _bury(self, pidfd: int) -> Lost:
        worker = next(id for id, process in self._workers.items() if process.fileno() == pidfd)
        process, who = self._workers[worker], self._who(worker)
        self._poller.unregister(pidfd)
        process.join()
        how, name = fate(process.exitcode)
        cause = process.failure
        process.close()
        del self._workers[worker]
        self._layouts = {of: layout for of, layout in self._layouts.items() if of[0] != worker}
        lost = next(
            (s for s, (slot, _) in self._posted.items() if self._board.claimant(slot) == worker), None
        )
        at = 0
        if lost is not None:
            at = self._board.at(self._posted[lost][0])
            self._forget(lost)
        if not self._assigned:
            self._send_tokens_again()
        return Lost(worker, lost, at, who, how, name, cause)
