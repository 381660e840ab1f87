"""Handles of processes that the parent started, or the template for it. A process is known by its pidfd."""

from __future__ import annotations

import math
import os
import select
import signal
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock._descriptors import close, close_in_child, no_fork
from penstock._wire.failure import Failure, restore
from penstock.backends._process.child import seat_of

if TYPE_CHECKING:
    from penstock.backends._process.launcher import Launcher
    from penstock.backends._process.template import Template

UNKNOWN = 256  # stands for an exit code that could not be read; no exit code is so large

LINGER = 5.0  # seconds that `close` waits for a killed process; only one stuck in the kernel takes longer

_LAST_WORDS = struct.Struct("=qq")  # pid, bytes that follow


class Handle:
    """A process. In a process that is forked from this one, the handle knows nothing and does nothing."""

    def __init__(self, pid: int, pidfd: int, template: Template | None = None) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._owner = os.getpid()
        self._template = template
        self._exitcode: int | None = None
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """A pidfd: readable when the process is dead."""
        if not self._usable():
            raise ValueError(f"the handle of process {self.pid} is closed, or belongs to another process")
        return self._pidfd

    def is_alive(self) -> bool:
        """True while the process runs."""
        return self.exitcode is None and self._usable()

    def join(self, timeout: float | None = None) -> None:
        """Waits until the process is dead, at most `timeout` seconds."""
        if self._usable() and self._exitcode is None and readable(self._pidfd, timeout):
            with self._lock:
                if self._exitcode is None:
                    self._exitcode = self._reap()

    @property
    def exitcode(self) -> int | None:
        """None while the process runs; negative for a signal; 256 where the system did not tell the status."""
        self.join(0)
        return self._exitcode

    def kill(self) -> None:
        """Sends SIGKILL, unless the process is dead already."""
        if self._usable() and self._exitcode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Releases the handle, and kills the process if it still runs. The exit code stays readable."""
        if self._usable():
            self.kill()
            self.join(LINGER)
            pidfd, self._pidfd = self._pidfd, -1
            close(pidfd)

    def _usable(self) -> bool:
        return self._pidfd >= 0 and self._owner == os.getpid()

    def _reap(self) -> int:
        try:
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        except ChildProcessError:  # not our child: the template's, or reaped by other code already
            return UNKNOWN if self._template is None else self._template.reap(self.pid)
        assert result is not None  # None only with WNOHANG
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


class WorkerProcess(Handle):
    """The handle of a worker process. `worker` is its seat."""

    def __init__(self, number: int, pid: int, pidfd: int, launcher: Launcher) -> None:
        super().__init__(pid, pidfd, launcher.template)
        self.worker = seat_of(number)
        self._launcher = launcher
        launcher.hold()

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.worker} pid={self.pid} exitcode={self.exitcode}>"

    @property
    def failure(self) -> BaseException | None:
        """The error that ended a spawned worker before `main` ran: its payload could not be unpickled there."""
        if not self._usable() or self.exitcode != 1:
            return None
        said, start = self._launcher.words(), 0
        while start < len(said):
            author, length = _LAST_WORDS.unpack_from(said, start)
            start += _LAST_WORDS.size + length
            if author == self.pid:
                return restore(said[start - length : start])
        return None

    def close(self) -> None:
        """Releases the handle, and kills the process if it still runs. The exit code stays readable."""
        if self._usable():
            super().close()
            self._launcher.release()


def leave_last_words(words: int, exc: BaseException, where: str) -> None:
    """In a worker that cannot start: tells the parent why, in one atomic append."""
    data = Failure.capture(exc, where=where)
    os.write(words, _LAST_WORDS.pack(os.getpid(), len(data)) + data)


def pidfd_of_child(pid: int) -> int:
    """A pidfd of a child of this process. If there is none to be had, the child is killed."""
    try:
        with no_fork():
            pidfd = os.pidfd_open(pid)
            close_in_child(pidfd)
            return pidfd
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def fate(exitcode: int | None) -> tuple[str, str]:
    """How a process ended, in words, and the name of the signal that killed it: "unknown" if it has none."""
    if exitcode == UNKNOWN:
        return "ended, and the system did not tell how", "unknown"
    if exitcode is None or exitcode >= 0:
        return f"exited with code {exitcode}", ""
    name = {known.value: known.name for known in signal.Signals}.get(-exitcode, "unknown")
    return f"was killed by signal {-exitcode} ({name})", name


def readable(fd: int, timeout: float | None) -> bool:
    """Waits until the descriptor can be read, at most `timeout` seconds; False if it cannot."""
    watch = select.poll()
    watch.register(fd, select.POLLIN)
    return bool(watch.poll(None if timeout is None else math.ceil(timeout * 1000)))
