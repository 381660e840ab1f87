"""A process of penstock: its handle in the parent, and its life in the child.

In the parent, a process is known by its pidfd. The child is forked, settles, runs `main`, and exits. Settling gives a
process the signals and the standard input of a worker, and ties its life to the parent's.
"""

from __future__ import annotations

import fcntl
import gc
import math
import os
import select
import signal
import struct
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, NoReturn

from penstock._descriptors import close, close_in_child, no_fork
from penstock._interrupts import interrupts_deferred
from penstock._wire.failure import Failure, restore

if TYPE_CHECKING:
    from penstock.backends._process.launcher import Launcher, Template

Main = Callable[[int, object, Mapping[str, int]], None]
"""What a worker runs: `main(number, payload, fds)`."""

SEATS = 1 << 16
"""A worker's number is its id, which is never used again, times SEATS, plus its seat. Messages name the seat."""


def seat_of(number: int) -> int:
    return number % SEATS


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
            # The system tells the exit code once.
            with interrupts_deferred(), self._lock:
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
        with interrupts_deferred():
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
        words, start = self._launcher.own["words"], 0  # the last words of all workers that could not start
        said = os.pread(words, os.fstat(words).st_size, 0)
        while start < len(said):
            author, length = _LAST_WORDS.unpack_from(said, start)
            start += _LAST_WORDS.size + length
            if author == self.pid:
                return restore(said[start - length : start])
        return None

    def close(self) -> None:
        with interrupts_deferred():
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


# From here on: in the child.


def fork(*, quiet: bool) -> int:
    """Calls os.fork. In the child every signal is blocked until it has settled.

    A signal handler of the parent that raises would otherwise unwind the child into the parent's code.
    """
    _flush()  # else both processes print what is still buffered
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = -1
    try:
        # Not safe beside a thread that does the same; at worst this one warning stays ignored.
        with warnings.catch_warnings() if quiet else nullcontext():
            if quiet:
                warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
            pid = os.fork()
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def live(
    number: int, main: Main, payload: object, fds: Mapping[str, int], lifeline: int | None = None
) -> NoReturn:
    """Runs `main` and exits. A forked process gives its `lifeline` and settles first.

    It never returns: no cleanup code of the parent may run in the child.
    """
    code = 1
    try:
        if lifeline is not None:
            settle(lifeline)
            os.close(lifeline)
        main(number, payload, fds)
        code = 0
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            code = (leaving.code or 0) & 0xFF
        else:
            print(leaving.code, file=sys.stderr)
    except BaseException:  # nothing may unwind into the parent's code
        with suppress(BaseException):  # no standard error, or an exception that cannot be shown
            heading = f"penstock worker {seat_of(number)} (pid {os.getpid()}) ended with an exception:\n"
            sys.stderr.write(heading + traceback.format_exc())
    finally:
        _flush()
        os._exit(code)


def settle(lifeline: int) -> None:
    """Gives this process a worker's signals and standard input, and ties its life to the parent's."""
    # Cyclic garbage that the parent left is the parent's to finalize, and a collection that looks at inherited
    # objects would copy their memory pages.
    gc.freeze()
    signal.set_wakeup_fd(-1)  # else our signals would wake the parent's event loop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent handles it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if sys.__stdin__ is not None:  # else it is closed, and descriptor 0 may be any file by now
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.close(null)
        # A new stream: the old one may hold input that the parent has read ahead.
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    _arm(lifeline)


def _arm(lifeline: int) -> None:
    """Has the kernel kill this process when the parent's end of the lifeline is closed.

    The read end raises SIGKILL instead of SIGIO, which works inside a long C call too. It needs a file description
    of its own, because the owner and the signal belong to the description.
    Refused: PR_SET_PDEATHSIG, which fires when the thread that forked ends, not the process.
    """
    try:
        with no_fork():
            own = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            close_in_child(own)  # there it would kill this process, and not the child
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return  # then an idle worker ends when the pipe of tokens is closed, and a busy one after its task
    watch = select.poll()
    watch.register(own, 0)  # POLLHUP is always reported
    if watch.poll(0):  # the parent was dead before the signal was set
        os.kill(os.getpid(), signal.SIGKILL)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # None, closed, or a pipe that no process reads
            stream.flush()
