"""The launcher starts worker processes: by fork, as fresh interpreters (spawn), or forked from a template.

The order of ending: the caller closes the pipe of tokens, and workers end by themselves; the caller joins them, kills
those that linger, and closes their handles and the launcher, in any order. The last of these closes gives up the
lifeline. So `Launcher.close` does not kill a worker that is ending by itself, and no worker outlives its handle.

The lifeline is a pipe whose write end only the parent holds: when the parent dies or closes it, the kernel kills all
processes that have armed the read end (see `child.py`).

Linux only: pidfds, memfds, /proc/self/fd, and signals on a pipe.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
from collections.abc import Mapping

from penstock._descriptors import close, close_in_child, kept_by_child, no_fork, open_memfd
from penstock._interrupts import interrupts_deferred
from penstock._memory.lease import own_fork
from penstock._wire.pickling import tag_exceptions
from penstock._wire.shipment import pack
from penstock.backends._process import methods
from penstock.backends._process.child import Main, fork, live, seat_of
from penstock.backends._process.handles import WorkerProcess, pidfd_of_child
from penstock.backends._process.template import Template, start_python, write_boot
from penstock.errors import InternalError, WorkerLost


class Launcher:
    """Starts workers that each run `main(number, payload, fds)`.

    `fds` are descriptors of this process, by name; every worker has them under the same numbers. `explicit` says that
    the user named the method: then a fork beside threads causes no warning. A payload that cannot be sent (spawn,
    forkserver) raises UnshippableDataset here, before any process starts.
    """

    def __init__(
        self, method: str, main: Main, payload: object, fds: Mapping[str, int], *, explicit: bool = False
    ) -> None:
        _require_linux()
        self.method = methods.choose_method(method)
        self._main = main
        self._payload = payload
        self._fds = dict(fds)
        self._explicit = explicit
        self._owner = os.getpid()
        self._closed = False
        self._holders = 1  # the launcher itself, and each open handle of a worker
        self._starting, self._holding = threading.Lock(), threading.Lock()
        self.template: Template | None = None
        self._parents_end = -1
        self._own: dict[str, int] = {}  # further descriptors that a fresh interpreter gets
        try:
            self._own["words"] = open_memfd("penstock-last-words")
            fcntl.fcntl(self._own["words"], fcntl.F_SETFL, os.O_APPEND)
            with no_fork():
                self._own["lifeline"], self._parents_end = os.pipe()
                close_in_child(self._own["lifeline"], self._parents_end)
            if self.method != "fork":
                self._own["shipment"] = pack((main, payload))
                self._payload = None  # it is in the shipment
                self._own["boot"] = open_memfd("penstock-boot")
                write_boot(self._fds, self._own)
            if self.method == "forkserver":
                self._start_template()
        except BaseException:
            self.close()
            raise

    def start(self, number: int) -> WorkerProcess:
        """Starts a worker. With forkserver it waits for the template, and raises what failed there."""
        if self._closed or self._owner != os.getpid():
            raise InternalError(
                f"worker {seat_of(number)} cannot be started: its launcher is closed, or belongs to another process"
            )
        process: WorkerProcess | None = None
        with self._starting:
            if self.template is not None:
                self._await_template()
            try:
                with interrupts_deferred():
                    process = self._start(number)
            except BaseException:  # an interrupt after the start: no other code knows this worker
                if process is not None:
                    process.close()
                raise
        return process

    def close(self) -> None:
        """Frees the shipped memory at once, and ends the template with the last worker."""
        if self._closed or self._owner != os.getpid():
            return
        self._closed = True
        close(*(self._own.pop(name) for name in ("shipment", "boot") if name in self._own))
        self.release()

    def hold(self) -> None:
        with self._holding:
            self._holders += 1

    def release(self) -> None:
        with self._holding:
            self._holders -= 1
            if self._holders:
                return
        if self.template is not None:
            self.template.close()
        close(*(fd for fd in (self._parents_end, *self._own.values()) if fd >= 0))

    def words(self) -> bytes:
        """The last words of all workers that could not start."""
        return os.pread(self._own["words"], os.fstat(self._own["words"]).st_size, 0)

    def _start(self, number: int) -> WorkerProcess:
        if self.template is not None:
            return WorkerProcess(number, *self.template.fork(number), self)
        pid = self._fork(number) if self.method == "fork" else self._spawn("worker", number)
        return WorkerProcess(number, pid, pidfd_of_child(pid), self)

    def _fork(self, number: int) -> int:
        tag_exceptions()
        lifeline = self._own["lifeline"]
        own_fork.now = True
        try:
            with kept_by_child((*self._fds.values(), lifeline)):
                pid = fork(quiet=self._explicit or methods.survives_fork())
            if pid == 0:
                live(number, self._main, self._payload, self._fds, lifeline)
        finally:
            own_fork.now = False
        return pid

    def _spawn(self, role: str, number: int, *further: int) -> int:
        fds = (*self._fds.values(), *self._own.values(), *further)
        return start_python(self._own["boot"], role, number, fds)

    def _start_template(self) -> None:
        with no_fork():
            ours, theirs = socket.socketpair()
            close_in_child(ours.fileno(), theirs.fileno())
        try:
            with interrupts_deferred():  # else no code would know the template, and reap it
                pid = self._spawn("template", theirs.fileno(), theirs.fileno())
                self.template = Template(pid, pidfd_of_child(pid), ours)
                ours.detach()
        finally:
            if ours.fileno() >= 0:
                close(ours.detach())
            close(theirs.detach())

    def _await_template(self) -> None:
        """Waits, interruptibly, until the template can fork. A template that died is replaced once."""
        for tries_left in (1, 0):
            template = self.template
            assert template is not None
            if template.ready():
                return
            if not tries_left:
                raise WorkerLost(template.obituary())
            template.close()
            self._start_template()


def _require_linux() -> None:
    try:
        os.close(os.pidfd_open(os.getpid()))
        os.close(os.memfd_create("penstock-probe"))
    except (AttributeError, OSError) as exc:
        if getattr(exc, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        raise RuntimeError(
            "worker processes need Linux 5.4 or later, with pidfd_open and memfd_create "
            f'({type(exc).__name__}: {exc}); pass backend="thread" instead'
        ) from exc
