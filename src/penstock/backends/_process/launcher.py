"""The launcher starts worker processes: by fork, as fresh interpreters (spawn), or forked from a template.

The order of ending: the caller closes the pipe of tokens, and workers end by themselves; the caller joins them, kills
those that linger, and closes their handles and the launcher, in any order. The last of these closes gives up the
lifeline. So `Launcher.close` does not kill a worker that is ending by itself, and no worker outlives its handle.

Linux only: pidfds, memfds, /proc/self/fd, and signals on a pipe.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Mapping

from penstock._descriptors import close, close_in_child, kept_by_child, no_fork, open_memfd
from penstock._interrupts import interrupts_deferred
from penstock._memory.slabs import own_fork
from penstock._wire.shipment import pack
from penstock._wire.tags import tag_exceptions
from penstock.backends._process import methods
from penstock.backends._process.child import Main, fork, live, seat_of
from penstock.backends._process.handles import Lifeline, WorkerProcess, pidfd_of_child
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
        self._closed = False
        self._lock = threading.Lock()
        self._shipment = -1
        self._boot = -1
        self._lifeline = Lifeline()
        try:
            if self.method != "fork":
                self._ship()
                self._payload = None  # it is in the shipment
            if self.method == "forkserver":
                self._start_template()
        except BaseException:
            self.close()
            raise

    def start(self, number: int) -> WorkerProcess:
        """Starts a worker. With forkserver it waits for the template, and raises what failed there."""
        if self._closed or not self._lifeline.is_mine():
            raise InternalError(
                f"worker {seat_of(number)} cannot be started: its launcher is closed, or belongs to another process"
            )
        process: WorkerProcess | None = None
        with self._lock:
            if self.method == "forkserver":
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
        if self._closed or not self._lifeline.is_mine():
            return
        self._closed = True
        close(*(fd for fd in (self._shipment, self._boot) if fd >= 0))
        self._lifeline.release()

    def _start(self, number: int) -> WorkerProcess:
        template = self._lifeline.template
        if template is not None:
            return WorkerProcess(number, *template.fork(number), self._lifeline, template)
        pid = self._fork(number) if self.method == "fork" else self._spawn("worker", number)
        return WorkerProcess(number, pid, pidfd_of_child(pid), self._lifeline)

    def _fork(self, number: int) -> int:
        tag_exceptions()
        lifeline = self._lifeline.end
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
        own = (self._boot, self._lifeline.words, self._lifeline.end, self._shipment)
        return start_python(self._boot, role, number, (*self._fds.values(), *own, *further))

    def _ship(self) -> None:
        self._shipment = pack((self._main, self._payload))
        self._boot = open_memfd("penstock-boot")
        lifeline, shipment = self._lifeline, self._shipment
        write_boot(self._boot, self._fds, lifeline=lifeline.end, shipment=shipment, words=lifeline.words)

    def _start_template(self) -> None:
        with no_fork():
            ours, theirs = socket.socketpair()
            close_in_child(ours.fileno(), theirs.fileno())
        try:
            with interrupts_deferred():  # else no code would know the template, and reap it
                pid = self._spawn("template", theirs.fileno(), theirs.fileno())
                self._lifeline.template = Template(pid, pidfd_of_child(pid), ours)
                ours.detach()
        finally:
            if ours.fileno() >= 0:
                close(ours.detach())
            close(theirs.detach())

    def _await_template(self) -> None:
        """Waits, interruptibly, until the template can fork. A template that died is replaced once."""
        for tries_left in (1, 0):
            template = self._lifeline.template
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
