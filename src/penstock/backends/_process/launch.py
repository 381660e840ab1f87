"""Starting worker processes: by fork, as a fresh interpreter (spawn), or forked from a template.

The order of ending: the caller closes the pipe of task tokens, and workers end by themselves; he joins
them, kills those that linger, and closes their handles and the launcher, in any order. The lifeline and
the template are given up by the last of these. So a worker that is ending by itself is not killed by
`Launcher.close`, and none outlives the last handle.

Linux only: pidfds, memfds, /proc/self/fd, and signals on a pipe. All of it is in `backends/`.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import math
import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy  # noqa: F401  (its BLAS starts threads; they must be there when the threads are counted)

from penstock._interrupts import interrupts_deferred
from penstock._memory.lease import own_fork
from penstock._wire.failure import restore
from penstock._wire.shipment import Shipment
from penstock._wire.tags import tag_exceptions
from penstock.backends._process.template import (
    FAILED,
    LAST_WORDS,
    REAP,
    REPLY,
    REQUEST,
    START,
    UNKNOWN,
    Main,
    fork,
    live,
)
from penstock.errors import InternalError, WorkerLost

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

METHODS = ("fork", "spawn", "forkserver")

_PIDFD = struct.Struct("i")  # as it travels beside a message

_LINGER = 5.0  # seconds that `close` waits for a killed process; only one stuck in the kernel takes longer

# Choosing a start method


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


# Threads that Python does not know of, right after the import of numpy: those of OpenBLAS, which stops
# them before a fork and starts them again after it. Any that come later are not known to survive a fork;
# OpenBLAS has one less than there are cores, so more than that are somebody else's already now.
_NATIVE_THREADS = min(_threads() - threading.active_count(), (os.cpu_count() or 1) - 1)

# Libraries whose threads hold locks at almost any moment, or which refuse to work in a forked child.
_NEVER_FORKED = ("jax", "jaxlib", "tensorflow", "grpc")


def choose_method(asked: str | BaseContext | None) -> str:
    """The start method to use: the one asked for, else the one set in multiprocessing, else a safe one.

    The safe one is fork while this process is single-threaded, because it is the fastest and sends
    nothing; else forkserver, because a fork copies the locks of other threads in whatever state they are
    in, and nobody is left in the child to release them.

    Where fork is multiprocessing's default, finding fork set there is no choice: it fixes its default by
    itself as soon as a program makes a lock, as tqdm does, and that looks the same.
    """
    # A module that nobody imported holds no choice, and nobody can have a context of it.
    multiprocessing = sys.modules.get("multiprocessing")
    if asked is None and multiprocessing is not None:
        asked = multiprocessing.get_start_method(allow_none=True)
        if asked == "fork" == multiprocessing.get_all_start_methods()[0]:
            asked = None
    elif asked is not None and not isinstance(asked, str):
        if multiprocessing is None or not isinstance(asked, multiprocessing.context.BaseContext):
            raise TypeError(
                "multiprocessing_context must be one of "
                f"{', '.join(METHODS)}, or a multiprocessing context, not {type(asked).__name__}"
            )
        asked = asked.get_start_method(allow_none=True)
    if asked is None:
        return "fork" if survives_fork() else "forkserver"
    if asked not in METHODS:
        raise ValueError(f"multiprocessing_context must be one of {', '.join(METHODS)}, not {asked!r}")
    return asked


def survives_fork() -> bool:
    """Whether a fork of this process copies no lock that another thread may hold."""
    if threading.active_count() > 1 or _threads() - 1 > _NATIVE_THREADS:
        return False
    return not any(name in sys.modules for name in _NEVER_FORKED)


# File descriptors that no child may hold: a write end that lives on in a forked child never gives an
# end-of-file. Those of ours, and those of the caller that he registers.

_kept_from_children: set[int] = set()
_guard = threading.RLock()
_birth = threading.local()


def close_in_child(*fds: int) -> None:
    """Have these closed in every child that this process forks, by whatever means of Python.

    A worker of ours keeps those that were given to its launcher. Call it under `no_fork()`, together
    with what opens them, or a fork of another thread may come in between.
    """
    with _guard:
        _kept_from_children.update(fds)


def forget(*fds: int) -> None:
    """Undo `close_in_child`; to be called before the close, since numbers are used again."""
    with _guard:
        _kept_from_children.difference_update(fds)


@contextmanager
def no_fork() -> Iterator[None]:
    """No other thread forks in this block. Nothing in it may take another lock."""
    with _guard:
        yield


def take_standard_streams() -> None:
    """Where a standard stream is closed, its number is given to nothing of ours.

    A library that warns on descriptor 2 would write into it, and a new process gets another input in the place of 0.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _after_fork_in_child() -> None:
    keep: frozenset[int] = getattr(_birth, "keep", frozenset())
    _birth.keep = frozenset()
    for fd in _kept_from_children - keep:
        try:
            os.close(fd)
        except OSError:
            pass
    _kept_from_children.clear()
    _guard.release()


os.register_at_fork(
    before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_after_fork_in_child
)


def _open_memfd(name: str) -> int:
    with no_fork():
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        close_in_child(fd)
    return fd


def _close(*fds: int) -> None:
    with no_fork():
        forget(*fds)
        for fd in fds:
            os.close(fd)


class _Process:
    """A process known by its pidfd.

    In a process forked from this one a handle is dead weight: it tells nothing and does nothing.
    """

    def __init__(self, pid: int, pidfd: int, template: _Template | None = None) -> None:
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
        """Whether the process still runs."""
        return self.exitcode is None and self._usable()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process is dead, at most `timeout` seconds."""
        if self._usable() and self._exitcode is None and _readable(self._pidfd, timeout):
            with self._lock:
                if self._exitcode is None:
                    self._exitcode = self._reap()

    @property
    def exitcode(self) -> int | None:
        """None while it runs; negative for a signal; 256 where nobody could read the status."""
        self.join(0)
        return self._exitcode

    def kill(self) -> None:
        """SIGKILL; nothing if it is dead already."""
        if self._usable() and self._exitcode is None:
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def close(self) -> None:
        """Release the handle; a process that still runs is killed. The exit code stays readable."""
        if self._usable():
            self.kill()
            self.join(_LINGER)
            pidfd, self._pidfd = self._pidfd, -1
            _close(pidfd)

    def _usable(self) -> bool:
        return self._pidfd >= 0 and self._owner == os.getpid()

    def _reap(self) -> int:
        try:
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        except ChildProcessError:  # not our child: the template's, or one that somebody else has reaped
            return UNKNOWN if self._template is None else self._template.reap(self.pid)
        assert result is not None  # None only with WNOHANG
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


class WorkerProcess(_Process):
    """The handle of a worker process."""

    def __init__(
        self, worker: int, pid: int, pidfd: int, crew: _Crew, template: _Template | None = None
    ) -> None:
        super().__init__(pid, pidfd, template)
        self.worker = worker
        self._crew = crew
        crew.hold()

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.worker} pid={self.pid} exitcode={self.exitcode}>"

    @property
    def failure(self) -> BaseException | None:
        """Why a spawned worker ended with 1 before `main` ran: its payload could not be rebuilt there."""
        return self._crew.last_words(self.pid) if self._usable() and self.exitcode == 1 else None

    def close(self) -> None:
        """Release the handle; a process that still runs is killed. The exit code stays readable."""
        if self._usable():
            super().close()
            self._crew.release()


class Launcher:
    """Starts the workers of one crew, each running `main(worker, payload, fds)`.

    `fds` are descriptors of this process, by name; every worker has the same numbers. `explicit` says
    that the user named the method himself: then a fork beside threads is not warned about.
    What cannot be sent (spawn, forkserver) raises UnshippableDataset here, before any process starts.
    """

    def __init__(
        self, method: str, main: Main, payload: object, fds: Mapping[str, int], *, explicit: bool = False
    ) -> None:
        _require_linux()
        self.method = choose_method(method)
        self._main = main
        self._payload = payload
        self._fds = dict(fds)
        self._explicit = explicit
        self._closed = False
        self._lock = threading.Lock()
        self._shipment: Shipment | None = None
        self._boot = -1
        self._crew = _Crew()
        try:
            if self.method != "fork":
                self._pack()
                self._payload = None  # it is in the shipment
            if self.method == "forkserver":
                self._start_template()
        except BaseException:
            self.close()
            raise

    def start(self, worker: int) -> WorkerProcess:
        """Start a worker. Under forkserver it waits for the template, and raises what failed there."""
        if self._closed or not self._crew.is_mine():
            raise InternalError(
                f"worker {worker} was asked of a launcher that is closed, or not this process's"
            )
        process: WorkerProcess | None = None
        with self._lock:
            if self.method == "forkserver":
                self._await_template()
            try:
                with interrupts_deferred():
                    process = self._start(worker)
            except BaseException:  # the interrupt, after the start: nobody would know this worker
                if process is not None:
                    process.close()
                raise
        return process

    def close(self) -> None:
        """Start no more: frees the shipped memory at once, and ends the template with the last worker."""
        if self._closed or not self._crew.is_mine():
            return
        self._closed = True
        if self._shipment is not None:
            forget(self._shipment.fd)
            self._shipment.close()
        if self._boot >= 0:
            _close(self._boot)
        self._crew.release()

    def _start(self, worker: int) -> WorkerProcess:
        if self.method == "forkserver":
            assert self._crew.template is not None
            return self._crew.template.fork(worker, self._crew)
        pid = self._fork(worker) if self.method == "fork" else self._spawn("worker", worker)
        return WorkerProcess(worker, pid, _pidfd_of_child(pid), self._crew)

    def _fork(self, worker: int) -> int:
        tag_exceptions()
        lifeline = self._crew.lifeline
        _birth.keep = frozenset((*self._fds.values(), lifeline))
        own_fork.now = True
        try:
            pid = fork(quiet=self._explicit or survives_fork())
            if pid == 0:
                live(worker, self._main, self._payload, self._fds, lifeline)
        finally:
            own_fork.now = False
            _birth.keep = frozenset()
        return pid

    def _spawn(self, role: str, number: int, *further: int) -> int:
        assert self._shipment is not None
        own = (self._boot, self._crew.words, self._crew.lifeline, self._shipment.fd)
        return _start_python(self._boot, role, number, (*self._fds.values(), *own, *further))

    def _pack(self) -> None:
        self._shipment = Shipment.pack((self._main, self._payload))
        close_in_child(self._shipment.fd)
        self._boot = _open_memfd("penstock-boot")
        boot = {
            "path": [entry for entry in sys.path if isinstance(entry, str)],
            "argv": [str(word) for word in sys.argv],
            "fds": self._fds,
            "boot": self._boot,
            "lifeline": self._crew.lifeline,
            "shipment": self._shipment.fd,
            "words": self._crew.words,
        }
        os.write(self._boot, marshal.dumps(boot))

    def _start_template(self) -> None:
        with no_fork():
            ours, theirs = socket.socketpair()
            close_in_child(ours.fileno(), theirs.fileno())
        try:
            with interrupts_deferred():  # else nobody might know it, and reap it
                pid = self._spawn("template", theirs.fileno(), theirs.fileno())
                self._crew.template = _Template(pid, _pidfd_of_child(pid), ours)
                ours.detach()
        finally:
            if ours.fileno() >= 0:
                _close(ours.detach())
            _close(theirs.detach())

    def _await_template(self) -> None:
        """Wait, interruptibly, until the template can fork; one that died is replaced, once."""
        for tries_left in (1, 0):
            template = self._crew.template
            assert template is not None
            if template.ready():
                return
            if not tries_left:
                raise WorkerLost(template.obituary())
            template.close()
            self._start_template()


class _Crew:
    """What the workers of one launcher hang on, for as long as it or any of their handles is open."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._holders = 1
        self.template: _Template | None = None
        self.words = _open_memfd("penstock-last-words")
        try:
            with no_fork():
                self.lifeline, self._lifeline_end = os.pipe()
                close_in_child(self.lifeline, self._lifeline_end)
        except BaseException:
            _close(self.words)
            raise
        fcntl.fcntl(self.words, fcntl.F_SETFL, os.O_APPEND)

    def is_mine(self) -> bool:
        return self._owner == os.getpid()

    def hold(self) -> None:
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
        if self.template is not None:
            self.template.close()
        _close(self.lifeline, self._lifeline_end, self.words)

    def last_words(self, pid: int) -> BaseException | None:
        said = os.pread(self.words, os.fstat(self.words).st_size, 0)
        start = 0
        while start < len(said):
            author, length = LAST_WORDS.unpack_from(said, start)
            start += LAST_WORDS.size + length
            if author == pid:
                return restore(said[start - length : start])
        return None


class _TemplateGone(Exception):
    """The template did not answer: it is dead."""


class _Template(_Process):
    """The parent's side of the template: see `template.py` for what is said."""

    def __init__(self, pid: int, pidfd: int, link: socket.socket) -> None:
        super().__init__(pid, pidfd)
        # A bare number: a socket object would close it once more in a forked child, whosever it is there.
        self._link = link.fileno()
        self._talk = threading.Lock()
        self._is_ready = False

    def ready(self) -> bool:
        """Wait until it has unpacked the payload; False if it is dead."""
        if not self._is_ready and self.is_alive():
            try:
                self._receive()
            except _TemplateGone:
                return False
            self._is_ready = True
        return self.is_alive()

    def fork(self, worker: int, crew: _Crew) -> WorkerProcess:
        try:
            pid, pidfds = self._ask(START, worker)
        except _TemplateGone:
            raise WorkerLost(self.obituary()) from None
        if not pidfds:  # the kernel had none left to give us
            os.kill(pid, signal.SIGKILL)
            self.reap(pid)
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}: no pidfd for worker {worker}")
        return WorkerProcess(worker, pid, pidfds[0], crew, self)

    def reap(self, pid: int) -> int:
        """The exit code of a worker that is dead."""
        try:
            return self._ask(REAP, pid)[0]
        except (_TemplateGone, OSError):
            return UNKNOWN

    def close(self) -> None:
        # Killed, not asked to end: it may be busy unpacking, and has nothing to save.
        if self._usable():
            super().close()
            _close(self._link)

    def obituary(self) -> str:
        self.join(_LINGER)
        return (
            f"the template (pid {self.pid}), from which workers are forked, {fate(self.exitcode)[0]}.\n"
            "  It imports and unpickles what the dataset needs, and nothing else: most often a library\n"
            "  crashes at import, or the memory is used up. Its own messages are on standard error.\n"
            '  multiprocessing_context="fork" or backend="thread" does without it.'
        )

    def _ask(self, what: int, about: int) -> tuple[int, list[int]]:
        with self._talk:
            if not self._usable():  # replaced, while workers of it live: its link's number may be anybody's
                raise _TemplateGone
            try:
                with self._socket() as link:
                    link.send(REQUEST.pack(what, about), socket.MSG_NOSIGNAL)
            except (BrokenPipeError, ConnectionResetError):
                raise _TemplateGone from None
            return self._receive()

    @contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        link = socket.socket(fileno=self._link)
        try:
            yield link
        finally:
            link.detach()

    def _receive(self) -> tuple[int, list[int]]:
        _readable(self._link, None)
        try:
            with self._socket() as link:
                with no_fork():
                    # Not socket.recv_fds: it does not pass on its flags (Python 3.11).
                    reply, control, _, _ = link.recvmsg(
                        REPLY.size, socket.CMSG_LEN(_PIDFD.size), socket.MSG_CMSG_CLOEXEC
                    )
                    pidfds = [_PIDFD.unpack(data)[0] for _, _, data in control]
                    close_in_child(*pidfds)
                if len(reply) < REPLY.size:
                    raise _TemplateGone
                what, number, length = REPLY.unpack(reply)
                failure = link.recv(length, socket.MSG_WAITALL) if what == FAILED else b""
        except ConnectionResetError:
            raise _TemplateGone from None
        if failure:
            raise restore(failure)
        return number, pidfds


_ENTER = """\
import marshal, os, sys
boot = marshal.loads(os.pread(int(sys.argv[1]), 1 << 24, 0))
role, number = sys.argv[2], int(sys.argv[3])
sys.path[:] = boot["path"]
from penstock.backends._process.template import enter
enter(boot, role, number)
"""


def _start_python(boot: int, role: str, number: int, fds: tuple[int, ...]) -> int:
    """The pid of a fresh interpreter that runs `template.enter`; `__main__` is not imported there."""
    import subprocess  # late: a fork does without

    if not sys.executable:
        raise RuntimeError(
            "this Python does not know its own executable (sys.executable is empty), and can start no other;"
            ' pass multiprocessing_context="fork" or backend="thread"'
        )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, "-c", _ENTER, str(boot), role, str(number)]
    # The mask survives exec: a Ctrl-C is held back until the child has made up its mind to ignore it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    process.returncode = 0  # it is waited for here, by its pidfd: Popen shall not, nor warn of it
    return process.pid


def _pidfd_of_child(pid: int) -> int:
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
    """How a process ended, in words, and the name of the signal that ended it: "unknown" where there is none."""
    if exitcode == UNKNOWN:
        return "ended, and the system did not tell how", "unknown"
    if exitcode is None or exitcode >= 0:
        return f"exited with code {exitcode}", ""
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-exitcode} ({name})", name


def _readable(fd: int, timeout: float | None) -> bool:
    watch = select.poll()
    watch.register(fd, select.POLLIN)
    return bool(watch.poll(None if timeout is None else math.ceil(timeout * 1000)))


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
