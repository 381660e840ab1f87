"""A process that penstock starts: the parent's handle, and the child's code (settle, run `main`, exit)."""

from __future__ import annotations

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
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from penstock._system.descriptors import close, close_in_child, no_fork
from penstock._system.interrupts import block_signals, interrupts_deferred, set_blocked_signals
from penstock._system.limits import no_more_processes
from penstock._system.platform import fcntl
from penstock._system.threads import started
from penstock._wire.failure import Failure, restore
from penstock.backends._process.relatives import Child, CurrentWorker

if TYPE_CHECKING:
    from penstock.backends._process.launcher import Launcher, Template

Main = Callable[[int, object, Mapping[str, int]], None]
"""A worker's main function, which is called as `main(number, payload, fds)`."""

SEATS = 1 << 16
"""The maximum number of seats (worker slots). A worker's number is `id * SEATS + seat`; ids are never reused."""


def seat_of(number: int) -> int:
    return number % SEATS


UNKNOWN = 256  # stands for an exit code that could not be read; real ones are at most 255

LINGER = 5.0  # seconds that `release` waits for a killed process; only a process stuck in the kernel takes longer

_LAST_WORDS = struct.Struct("=qq")  # pid, number of bytes that follow

_SHARED_MEMORY = (
    " It is possible that dataloader's workers are out of shared memory."
    " Please try to raise your shared memory limit."
)


class Handle:
    """The parent's handle to a process. In a forked child of the parent, the handle does nothing."""

    def __init__(self, pid: int, pidfd: int, template: Template | None = None) -> None:
        self._pid = pid
        self._pidfd = pidfd
        self._owner = os.getpid()
        self._template = template
        self._exitcode: int | None = None
        self._lock = threading.RLock()  # a signal handler may ask for the exit code while it is read

    @property
    def pid(self) -> int:
        return self._pid

    def fileno(self) -> int:
        if not self._usable():
            raise ValueError(f"the handle of process {self.pid} is closed, or belongs to another process")
        return self._pidfd

    def is_alive(self) -> bool:
        return self.exitcode is None and self._usable()

    def join(self, timeout: float | None = None) -> None:
        if self._usable() and self._exitcode is None and readable(self._pidfd, timeout):
            self._look()

    @property
    def exitcode(self) -> int | None:
        """None while the process runs, then its exit code: -N if signal N killed it, 256 if unknown."""
        self._look()
        return self._exitcode

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def release(self) -> None:
        """Closes the handle, and kills the process if it is still running. The exit code stays readable."""
        with interrupts_deferred():
            if self._usable():
                self.kill()
                self.join(LINGER)
                with self._lock:
                    pidfd, self._pidfd = self._pidfd, -1
                    (close if self._exitcode is not None else _reap_later)(pidfd)
                self._released()

    def _released(self) -> None:
        """A hook for subclasses to release their resources. Called once, when the handle is closed."""

    def _usable(self) -> bool:
        return self._pidfd >= 0 and self._owner == os.getpid()

    def _send(self, number: signal.Signals) -> None:
        if self._usable() and self._exitcode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _look(self) -> None:
        if self._exitcode is None and self._usable():
            # The system reports the exit code only once, and another thread may release the handle at the same time.
            with interrupts_deferred(), self._lock:
                if self._pidfd >= 0 and readable(self._pidfd, 0):
                    code = self._reap()
                    if self._exitcode is None:
                        self._exitcode = code

    def _reap(self) -> int:
        try:
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        except ChildProcessError:  # not our child: the template's, or reaped by other code already
            return UNKNOWN if self._template is None else self._template.reap(self.pid)
        assert result is not None  # None only with WNOHANG
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


class WorkerProcess(Handle, Child):
    """A handle to a worker process, with the interface of `multiprocessing.Process`."""

    def __init__(self, number: int, child: int, pid: int, pidfd: int, launcher: Launcher) -> None:
        Child.__init__(self, launcher.lineage, child)
        Handle.__init__(self, pid, pidfd, launcher.template)
        self.seat = seat_of(number)
        self._launcher = launcher
        self._past = -1
        self.beside = 0  # other threads of this process when the worker was forked from it
        launcher.hold()
        self.register()

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.seat} name={self.name!r} pid={self.pid} exitcode={self.exitcode}>"

    @property
    def ident(self) -> int:
        return self.pid

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once the process is dead, even after the handle is released."""
        if not self._usable() and self._past < 0:
            with no_fork():
                self._past, end = os.pipe()
                close_in_child(self._past)
                os.close(end)
            weakref.finalize(self, close, self._past).atexit = False
        return self._past if self._past >= 0 else self._pidfd

    def close(self) -> None:
        """Raises ValueError while the process runs. Otherwise does nothing, because the loader closes the handle."""
        if self.is_alive():
            raise ValueError("A process cannot be closed while it runs: call terminate() and join() first.")

    @property
    def failure(self) -> BaseException | None:
        """The error that a spawned worker raised while unpickling its payload, or None."""
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

    def _released(self) -> None:
        self.unregister()
        self._launcher.release()


def _reap_later(pidfd: int) -> None:
    """Starts a thread that reaps a killed process once the process is no longer stuck in the kernel."""

    stopped: list[bool] = []  # filled at the interpreter's exit

    def wait() -> None:
        while not stopped and not readable(pidfd, 0.5):
            pass
        with suppress(ChildProcessError):  # not our child, but the template's
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        close(pidfd)

    try:
        started("penstock-reaper", wait, partial(stopped.append, True))
    except RuntimeError:  # the interpreter exits, or no thread can be started
        close(pidfd)


def leave_last_words(words: int, exc: BaseException, where: str) -> None:
    """Atomically appends a worker's start-up error to the file `words`, which the parent reads."""
    data = Failure.capture(exc, where=where)
    os.write(words, _LAST_WORDS.pack(os.getpid(), len(data)) + data)


def pidfd_of_child(pid: int) -> int:
    """Opens a pidfd for a child of this process. If that fails, kills the child and raises OSError."""
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
    """Returns two texts: how a process ended, and the name of the signal that killed it.

    The name is "" if the process exited by itself, and "unknown" if the exit code or the signal is unknown.
    """
    if exitcode == UNKNOWN:
        return "ended, and the system did not tell how", "unknown"
    if exitcode is None or exitcode >= 0:
        return f"exited with code {exitcode}", ""
    name = {known.value: known.name for known in signal.Signals}.get(-exitcode, "unknown")
    return f"was killed by signal {-exitcode} ({name})", name


def phrase(pid: int, exitcode: int | None) -> str:
    """Returns both of torch's messages about a dead worker in one text. Programs may search for either message."""
    said = f"DataLoader worker (pid(s) {pid}) exited unexpectedly"
    if exitcode is None or exitcode == UNKNOWN:
        return f"{said}."
    if exitcode >= 0:
        return f"{said}: DataLoader worker (pid {pid}) exited unexpectedly with exit code {exitcode}."
    name = signal.strsignal(-exitcode) if -exitcode in signal.valid_signals() else "Unknown signal"
    said += f": DataLoader worker (pid {pid}) is killed by signal: {name}."
    return said + _SHARED_MEMORY if exitcode == -signal.SIGBUS else said


def readable(fd: int, timeout: float | None) -> bool:
    watch = select.poll()
    watch.register(fd, select.POLLIN)
    return bool(watch.poll(None if timeout is None else math.ceil(timeout * 1000)))


# The code from here on runs in the child.


def fork() -> int:
    """Calls os.fork. In the child, all signals are blocked until `settle` has run."""
    _flush()  # otherwise both processes would print what is still buffered
    before = block_signals()  # a handler of the parent that raises could unwind the child into the parent's code
    pid = -1
    try:
        # Python 3.12+ warns about forking beside threads. Here they are harmless, the program asked for fork, or
        # penstock has given a better warning. Not thread-safe; at worst this one warning stays suppressed.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
            pid = os.fork()
    except OSError as error:
        raise no_more_processes(error) from None
    finally:
        if pid != 0:
            set_blocked_signals(before)
    return pid


def live(
    number: int,
    itself: CurrentWorker,
    main: Main,
    payload: object,
    fds: Mapping[str, int],
    *,
    lifeline: int | None = None,
    sentinel: int = -1,
) -> NoReturn:
    """Runs `main` and exits, without running the parent's cleanup code. With a `lifeline`, first calls `settle`.

    Only forked processes have a `lifeline`. A new interpreter has called `settle` before.
    """
    code = 1
    try:
        if lifeline is not None:
            sentinel = settle(lifeline)
            os.close(lifeline)
        code = itself.live(partial(_work, number, main, payload, fds), sentinel)
    except BaseException:  # nothing may unwind into the parent's code
        _complain(number)
    finally:
        _flush()
        os._exit(code)


def _work(number: int, main: Main, payload: object, fds: Mapping[str, int]) -> None:
    try:
        main(number, payload, fds)
    except SystemExit as leaving:
        if isinstance(leaving.code, int):
            leaving.code &= 0xFF
        raise
    except BaseException:
        _complain(number)
        sys.exit(1)


def _complain(number: int) -> None:
    with suppress(BaseException):  # no standard error, or an exception that cannot be shown
        heading = f"penstock worker {seat_of(number)} (pid {os.getpid()}) ended with an exception:\n"
        sys.stderr.write(heading + traceback.format_exc())


def settle(lifeline: int) -> int:
    """Sets up signals, stdin and the lifeline pipe. Returns a descriptor that is readable once the parent is dead."""
    # Only the parent may finalize the cyclic garbage that it left, and a collection that looks at inherited objects
    # would copy their memory pages.
    gc.freeze()
    signal.set_wakeup_fd(-1)  # otherwise signals here would wake the parent's event loop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent handles it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    set_blocked_signals(())
    if sys.__stdin__ is not None:  # otherwise it is closed, and descriptor 0 may be any file
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.close(null)
        # A new stream, because the old one may hold input that the parent has read ahead.
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    return _arm(lifeline)


def _arm(lifeline: int) -> int:
    """Makes the kernel kill this process when the parent closes the lifeline pipe, even during a long C call."""
    try:
        with no_fork():
            # The owner and the signal belong to a file description, so this process opens one of its own.
            own = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            close_in_child(own)  # in a child of this process, it would still kill this process
        # The owner of the read end gets SIGKILL instead of SIGIO. PR_SET_PDEATHSIG is not used, because it reacts to
        # the end of the thread that forked, not of the parent process.
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        # Without the signal, an idle worker ends when the token pipe is closed, and a busy one after its task.
        return os.dup(lifeline)
    watch = select.poll()
    watch.register(own, 0)  # POLLHUP is always reported
    if watch.poll(0):  # the parent was dead before the signal was set
        os.kill(os.getpid(), signal.SIGKILL)
    return own


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # None, closed, or a pipe that no process reads
            stream.flush()
