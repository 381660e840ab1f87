"""Starts worker processes by fork, by spawn (new interpreters), or by forkserver (forks of a template process).

Every worker depends on the lifeline, a pipe whose write end only the parent holds. When the parent dies or closes the
write end, the kernel kills all processes that have armed the read end (see `process.py`).

To stop the workers, the caller closes the pipe that announces tasks, so that idle workers exit. The caller waits for
the workers, kills the workers that do not exit, and then closes the workers' handles and the launcher, in any order.
Closing a worker's handle kills the worker. `Launcher.close` kills no worker, because the lifeline stays open until
all handles are closed, too.

A fresh interpreter becomes either a spawned worker or the template, which forks workers on request. Neither imports
`__main__`, so a program needs no `if __name__ == "__main__"`. The template unpacks the payload (the job with its
dataset) once, and all its workers share this copy. Template and parent communicate over a socket:

    at the start   READY | UNFORKABLE, with the reason | FAILED, with the exception
    request        START number, child | REAP pid
    answer         STARTED pid, with a pidfd | REAPED exit code | FAILED, with the exception
"""

from __future__ import annotations

import errno
import gc
import marshal
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from penstock._memory.slabs import own_fork
from penstock._system.descriptors import close, close_in_child, kept_by_child, no_fork, open_memfd
from penstock._system.interrupts import acquire, import_whole, interrupts_deferred
from penstock._system.limits import no_more_processes
from penstock._system.platform import fcntl
from penstock._system.warnings import called_through
from penstock._wire.failure import Failure, restore
from penstock.backends._native_threads import limit, look_up, opencv_stopped, variables
from penstock.backends._process import forking, methods
from penstock.backends._process import process as processes
from penstock.backends._process.process import UNKNOWN, Handle, Main, WorkerProcess, fork, live, seat_of
from penstock.backends._process.relatives import CurrentWorker, Lineage, inheriting, next_child
from penstock.errors import InternalError, WorkerLost

_REQUEST = struct.Struct("=Bqq")  # kind, worker's number or pid, serial number among the parent's children
_ANSWER = struct.Struct("=Bqq")  # kind, pid or exit code, number of bytes that follow
_START, _REAP, _READY, _UNFORKABLE, _STARTED, _REAPED, _FAILED = range(7)

_PIDFD = struct.Struct("i")  # sent beside an answer

# Descriptors become close-on-exec before anything is imported. Otherwise every program that the dataset starts could
# write to the slabs (the memory of batches), and would keep them open.
_ENTER = """\
import marshal, os, sys
boot = marshal.loads(os.pread(int(sys.argv[1]), 1 << 24, 0))
role, number, child = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
for fd in boot["passed"] + [number] * (role == "template"):
    os.set_inheritable(fd, False)
sys.path[:] = boot["path"]
from penstock.backends._process.launcher import enter
enter(boot, role, number, child)
"""


class Launcher:
    """Starts workers that run `main(number, payload, fds)`. The descriptors `fds` keep their numbers in the workers.

    With spawn and forkserver, the constructor pickles the payload. If pickling fails, UnshippableDataset is raised
    before any process has started. `explicit` is True if the program has named the start method. In this case,
    penstock warns if it must use another method. The launcher adds itself to the list `among` before it acquires any
    resource, so that the caller can always close the launcher (see `_system/interrupts.py`).
    """

    def __init__(
        self,
        method: str,
        main: Main,
        payload: object,
        fds: Mapping[str, int],
        *,
        explicit: bool = False,
        among: list[Launcher] | None = None,
    ) -> None:
        _require_linux()
        self.method = methods.choose_method(method)
        self._main = main
        self._payload = payload
        self._fds = dict(fds)
        self._explicit = explicit
        self.owner = os.getpid()
        self.lineage = Lineage.of_children(self.method)
        self._closed = False
        self._holders = 1  # the launcher itself, and each open handle to a worker
        self._starting, self._holding = threading.Lock(), threading.Lock()
        self.template: Template | None = None
        self._parents_end = -1
        self.own: dict[str, int] = {}  # further descriptors that a fresh interpreter gets
        if among is not None:
            among.append(self)
        try:
            self.own["words"] = open_memfd("penstock-last-words")
            fcntl.fcntl(self.own["words"], fcntl.F_SETFL, os.O_APPEND)
            with interrupts_deferred(), no_fork():
                self.own["lifeline"], self._parents_end = os.pipe()
                close_in_child(self.own["lifeline"], self._parents_end)
            if self.method != "fork":
                self._ship(payload)
            if self.method == "forkserver":
                self._start_template()
        except BaseException:
            self.close()
            raise

    def _ship(self, payload: object) -> None:
        """Writes the files that new interpreters read: `shipment` (the pickled payload) and `boot` (the settings)."""
        descriptors: list[int] = []
        try:
            import_whole("penstock._wire.shipment")
            from penstock._wire.shipment import pack  # late: a fork needs none

            self.own["shipment"] = pack((self._main, payload), descriptors)
        finally:
            self.own |= {f"inherited {fd}": fd for fd in descriptors}
        self._payload = None  # it is in the shipment
        self.own["boot"] = open_memfd("penstock-boot")
        path, tracker = [entry for entry in sys.path if isinstance(entry, str)], tracker_fd()
        self._passed = [*self._fds.values(), *self.own.values(), *([] if tracker is None else [tracker])]
        boot = {"path": path, "argv": list(map(str, sys.argv)), "fds": self._fds, **self.own}
        boot |= {"lineage": tuple(self.lineage), "tracker": tracker, "passed": self._passed}
        os.write(self.own["boot"], marshal.dumps(boot))

    def start(self, number: int) -> WorkerProcess:
        """Starts a worker. With forkserver, first waits for the template, and raises if the template has failed."""
        if self._closed or self.owner != os.getpid():
            raise InternalError(
                f"worker {seat_of(number)} cannot be started: its launcher is closed, or belongs to another process"
            )
        if self.template is not None:
            with self._starting:
                self._await_template()
        return acquire(lambda: self._start(number), WorkerProcess.release)

    def close(self) -> None:
        """Frees the memory of the pickled job. The template runs until the last worker's handle is closed."""
        with interrupts_deferred():
            if self._closed or self.owner != os.getpid():
                return
            self._closed = True
            close(*(self.own.pop(name) for name in list(self.own) if name not in ("words", "lifeline")))
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
            self.template.release()
        close(*(fd for fd in (self._parents_end, *self.own.values()) if fd >= 0))

    def _start(self, number: int) -> WorkerProcess:
        with self._starting:
            child = next_child()
            if self.template is not None:
                return WorkerProcess(number, child, *self.template.fork(number, child), self)
            forked = self.method == "fork"
            pid = self._fork(number, child) if forked else self._spawn("worker", number, child)
            process = WorkerProcess(number, child, pid, processes.pidfd_of_child(pid), self)
            process.beside = forking.threads_beside() if forked else 0
            return process

    def _fork(self, number: int, child: int) -> int:
        lifeline = self.own["lifeline"]
        look_up()
        own_fork.now = True
        try:
            with opencv_stopped(), kept_by_child((*self._fds.values(), lifeline)):
                pid = fork()
            if pid == 0:
                itself = CurrentWorker(self.lineage, child)
                live(number, itself, self._main, self._payload, self._fds, lifeline=lifeline)
        finally:
            own_fork.now = False
        return pid

    def _spawn(self, role: str, number: int, child: int, *further: int) -> int:
        return start_python(self.own["boot"], role, number, child, (*self._passed, *further))

    def _start_template(self) -> None:
        with interrupts_deferred():
            with no_fork():
                ours, theirs = socket.socketpair()
                close_in_child(ours.fileno(), theirs.fileno())
            try:
                pid = self._spawn("template", theirs.fileno(), 0, theirs.fileno())
                self.template = Template(pid, processes.pidfd_of_child(pid), ours)
                ours.detach()
            finally:
                if ours.fileno() >= 0:
                    close(ours.detach())
                close(theirs.detach())

    def _await_template(self) -> None:
        """Waits for the template. Restarts a dead template once. Switches to spawn if the template is unforkable."""
        if self.template is None:  # another thread has just given it up
            return
        if not self.template.ready():
            self.template.release()
            self._start_template()
            if not self.template.ready():
                raise WorkerLost(self.template.obituary())
        if self.template.obstacle:
            template, self.template, self.method = self.template, None, "spawn"
            template.release()
            methods.give_up_templates(template.obstacle, asked=self._explicit)


def _require_linux() -> None:
    try:
        with interrupts_deferred():
            os.close(os.pidfd_open(os.getpid()))
            os.close(os.memfd_create("penstock-probe"))
    except (AttributeError, OSError) as exc:
        if getattr(exc, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        raise RuntimeError(
            "worker processes need Linux 5.4 or later, with pidfd_open and memfd_create "
            f'({type(exc).__name__}: {exc}); use penstock.DataLoader with backend="thread"'
        ) from exc


class Template(Handle):
    """A handle to the template process. `release` kills the process."""

    def __init__(self, pid: int, pidfd: int, link: socket.socket) -> None:
        super().__init__(pid, pidfd)
        # The bare descriptor, because a socket object would also close the number in a forked child, where it may
        # belong to another file.
        self._link = link.fileno()
        self._talk = threading.Lock()
        self._is_ready = False
        self.obstacle = ""  # why it must not be forked

    def ready(self) -> bool:
        """Waits until the template has unpickled the payload. Returns False if the template has died."""
        if not self._is_ready and self.is_alive():
            self._ask()
        return self._is_ready and self.is_alive()

    def fork(self, number: int, child: int) -> tuple[int, int]:
        answer = self._ask(_START, number, child)
        if answer is None:
            raise WorkerLost(self.obituary())
        pid, pidfds = answer
        if not pidfds:  # this process has no free descriptor for it
            os.kill(pid, signal.SIGKILL)
            self.reap(pid)
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}: no pidfd for worker {seat_of(number)}")
        return pid, pidfds[0]

    def reap(self, pid: int) -> int:
        answer = None
        with suppress(OSError):
            answer = self._ask(_REAP, pid, 0)
        return UNKNOWN if answer is None else answer[0]

    def _released(self) -> None:
        close(self._link)

    def obituary(self) -> str:
        self.join(processes.LINGER)
        return (
            f"the template (pid {self.pid}), from which workers are forked, {processes.fate(self.exitcode)[0]}.\n"
            "  The template only imports and unpickles what the dataset needs: most often a library crashes at\n"
            "  import, or the machine is out of memory. Its own messages are on standard error.\n"
            '  multiprocessing_context="fork" needs no template, nor does penstock.DataLoader with backend="thread".'
        )

    def _ask(self, *request: int) -> tuple[int, list[int]] | None:
        """Sends the request, if any. Returns the answer (number, pidfds), or None if the template has died."""
        with self._talk:
            # A template that was replaced has a closed handle, and the number of its link may be another file's.
            if not self._usable():
                return None
            if not request:
                processes.readable(self._link, None)  # may take seconds, and can be interrupted
            with interrupts_deferred():
                return self._exchange(request)

    def _exchange(self, request: tuple[int, ...]) -> tuple[int, list[int]] | None:
        link = socket.socket(fileno=self._link)
        try:
            if request:
                link.send(_REQUEST.pack(*request), socket.MSG_NOSIGNAL)
                processes.readable(self._link, None)
            with no_fork():
                # Not socket.recv_fds: it does not pass on its flags (Python 3.11).
                room, flags = socket.CMSG_LEN(_PIDFD.size), socket.MSG_CMSG_CLOEXEC
                answer, control, _, _ = link.recvmsg(_ANSWER.size, room, flags)
                pidfds = [_PIDFD.unpack(data)[0] for _, _, data in control]
                close_in_child(*pidfds)
            if len(answer) < _ANSWER.size:
                return None
            what, number, length = _ANSWER.unpack(answer)
            said = link.recv(length, socket.MSG_WAITALL) if length else b""
        except (BrokenPipeError, ConnectionResetError):
            return None
        finally:
            link.detach()
        if what == _FAILED:
            raise restore(said)
        if what == _UNFORKABLE:
            self.obstacle = said.decode()
        self._is_ready = True
        return number, pidfds


def tracker_fd() -> int | None:
    # Workers share it, because a tracker of their own would remove the program's shared memory when they end.
    tracker: Any = sys.modules.get("multiprocessing.resource_tracker")
    fd: int | None = None if tracker is None else tracker._resource_tracker._fd
    return fd


def start_python(boot: int, role: str, number: int, child: int, fds: tuple[int, ...]) -> int:
    """Starts a Python interpreter that runs `enter` and inherits `fds`. Returns the interpreter's pid."""
    import_whole("subprocess")
    import subprocess  # late: fork does not need it

    if not sys.executable:
        raise RuntimeError(
            "this Python does not know its own executable (sys.executable is empty), so it cannot start another"
            ' interpreter; pass multiprocessing_context="fork", or with penstock.DataLoader backend="thread"'
        )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, "-c", _ENTER, str(boot), role, str(number), str(child)]
    # The child inherits the signal mask, so that a Ctrl-C stays pending until the child ignores it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        environment = {**os.environ, **variables()}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds, env=environment)
    except OSError as error:
        raise no_more_processes(error) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    process.returncode = 0  # a Handle waits for the process, so Popen must neither wait nor warn
    return process.pid


# The code from here on runs in the fresh interpreter itself.


def enter(boot: dict[str, Any], role: str, number: int, child: int) -> NoReturn:
    """The entry point of a fresh interpreter. For the template, `number` is the descriptor of its socket."""
    called_through("<string>")  # _ENTER is not the user's code
    sys.argv[:] = boot["argv"]
    sentinel = processes.settle(boot["lifeline"])
    requests, itself = None, CurrentWorker(Lineage._make(boot["lineage"]), child)
    if boot["tracker"] is not None:
        from multiprocessing import resource_tracker

        resource_tracker._resource_tracker._fd = boot["tracker"]  # type: ignore[attr-defined]
    if role == "template":
        # The parent may ignore SIGCHLD; if it stayed ignored, no exit status could be read.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        requests = socket.socket(fileno=number)
    try:
        with inheriting(itself):
            from penstock._wire.shipment import unpack

            main, payload = unpack(boot["shipment"])
    except BaseException as exc:  # unpickling runs the user's code
        pid = os.getpid()
        if requests is not None:
            _fail(requests, exc, f"while the template of the workers (pid {pid}) unpacked the dataset")
        else:
            where = f"while worker {seat_of(number)} (pid {pid}) unpacked its dataset"
            processes.leave_last_words(boot["words"], exc, where)
        os._exit(1)
    for name in ("shipment", "words", "boot"):
        os.close(boot[name])
    if requests is not None:
        _serve(requests, main, payload, boot)
    os.close(boot["lifeline"])
    live(number, itself, main, payload, boot["fds"], sentinel=sentinel)


def _serve(requests: socket.socket, main: Main, payload: object, boot: dict[str, Any]) -> NoReturn:
    """Runs the template process, which forks and reaps workers on request."""
    gc.freeze()  # the payload too, so that a collection in a worker copies none of its pages
    limit()  # workers inherit the limit
    # Unpickling may have imported JAX or started threads. Then the launcher spawns all workers, from the same pickle.
    obstacle = forking.obstacle().encode()
    requests.sendall(_ANSWER.pack(_UNFORKABLE if obstacle else _READY, os.getpid(), len(obstacle)) + obstacle)
    while True:
        request = requests.recv(_REQUEST.size, socket.MSG_WAITALL)
        if len(request) < _REQUEST.size:
            os._exit(0)
        what, about, child = _REQUEST.unpack(request)
        if what == _REAP:  # only on request, so that until then the system cannot reuse the worker's pid
            requests.sendall(_ANSWER.pack(_REAPED, _reap(about), 0))
            continue
        go: tuple[int, ...] = ()
        try:
            go = os.pipe()
            pid = fork()
            pidfd = processes.pidfd_of_child(pid) if pid else -1
        except OSError as exc:
            close(*go)
            where = f"while worker {seat_of(about)} was forked from the template (pid {os.getpid()})"
            _fail(requests, exc, where)
            continue
        if pid == 0:
            requests.close()
            os.close(go[1])
            if not os.read(go[0], 1):  # the template died before it reported this worker to the parent
                os._exit(1)
            os.close(go[0])
            itself = CurrentWorker(Lineage._make(boot["lineage"]), child)
            live(about, itself, main, payload, boot["fds"], lifeline=boot["lifeline"])
        socket.send_fds(requests, [_ANSWER.pack(_STARTED, pid, 0)], [pidfd])
        os.write(go[1], b"\0")
        close(pidfd, *go)


def _reap(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return UNKNOWN


def _fail(requests: socket.socket, exc: BaseException, where: str) -> None:
    data = Failure.capture(exc, where=where)
    requests.sendall(_ANSWER.pack(_FAILED, 0, len(data)) + data)
