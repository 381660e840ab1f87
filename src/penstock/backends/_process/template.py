"""Fresh interpreters: each becomes a spawned worker, or the template, which forks a worker at each request.

`__main__` is not imported there, so a program needs no `if __name__ == "__main__"`. The template unpacks the payload
once, and all its workers share this copy. Parent and template talk over a socket, one answer to each request:

    request  START number | REAP pid
    answer   READY | STARTED pid, with a pidfd | REAPED exit code | FAILED, with the exception

The template reaps only when it is told to, so a pid that it has reported cannot come to mean another process.
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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from penstock._descriptors import close, close_in_child, no_fork
from penstock._wire.failure import Failure, restore
from penstock._wire.shipment import unpack
from penstock.backends._process.child import Main, fork, live, seat_of, settle
from penstock.backends._process.handles import LINGER, UNKNOWN, Handle, fate, leave_last_words, readable
from penstock.errors import WorkerLost

_REQUEST = struct.Struct("=Bq")  # what, number or pid
_ANSWER = struct.Struct("=Bqq")  # what, pid or exit code, bytes that follow
_START, _REAP, _READY, _STARTED, _REAPED, _FAILED = range(6)

_PIDFD = struct.Struct("i")  # as it travels beside an answer

_ENTER = """\
import marshal, os, sys
boot = marshal.loads(os.pread(int(sys.argv[1]), 1 << 24, 0))
role, number = sys.argv[2], int(sys.argv[3])
sys.path[:] = boot["path"]
from penstock.backends._process.template import enter
enter(boot, role, number)
"""


class _TemplateGone(Exception):
    """The template did not answer: it is dead."""


class Template(Handle):
    """In the parent: the handle of the template, and its requests."""

    def __init__(self, pid: int, pidfd: int, link: socket.socket) -> None:
        super().__init__(pid, pidfd)
        # A bare number: a socket object would close it once more in a forked child, where it may be another file.
        self._link = link.fileno()
        self._talk = threading.Lock()
        self._is_ready = False

    def ready(self) -> bool:
        """Waits until the template has unpacked the payload; False if it is dead."""
        if not self._is_ready and self.is_alive():
            try:
                self._receive()
            except _TemplateGone:
                return False
            self._is_ready = True
        return self.is_alive()

    def fork(self, number: int) -> tuple[int, int]:
        """Has a worker forked. Returns its pid and a pidfd."""
        try:
            pid, pidfds = self._ask(_START, number)
        except _TemplateGone:
            raise WorkerLost(self.obituary()) from None
        if not pidfds:  # this process has no free descriptor for it
            os.kill(pid, signal.SIGKILL)
            self.reap(pid)
            seat = seat_of(number)
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}: no pidfd for worker {seat}")
        return pid, pidfds[0]

    def reap(self, pid: int) -> int:
        """The exit code of a worker that is dead."""
        try:
            return self._ask(_REAP, pid)[0]
        except (_TemplateGone, OSError):
            return UNKNOWN

    def close(self) -> None:
        # Killed, not asked to end: it may be busy unpacking, and has nothing to save.
        if self._usable():
            super().close()
            close(self._link)

    def obituary(self) -> str:
        self.join(LINGER)
        return (
            f"the template (pid {self.pid}), from which workers are forked, {fate(self.exitcode)[0]}.\n"
            "  The template only imports and unpickles what the dataset needs: most often a library crashes at\n"
            "  import, or the machine is out of memory. Its own messages are on standard error.\n"
            '  multiprocessing_context="fork" and backend="thread" need no template.'
        )

    def _ask(self, what: int, about: int) -> tuple[int, list[int]]:
        with self._talk:
            # Replaced while workers of it live: the number of its link may be another file's.
            if not self._usable():
                raise _TemplateGone
            try:
                with self._socket() as link:
                    link.send(_REQUEST.pack(what, about), socket.MSG_NOSIGNAL)
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
        readable(self._link, None)
        try:
            with self._socket() as link:
                with no_fork():
                    # Not socket.recv_fds: it does not pass on its flags (Python 3.11).
                    answer, control, _, _ = link.recvmsg(
                        _ANSWER.size, socket.CMSG_LEN(_PIDFD.size), socket.MSG_CMSG_CLOEXEC
                    )
                    pidfds = [_PIDFD.unpack(data)[0] for _, _, data in control]
                    close_in_child(*pidfds)
                if len(answer) < _ANSWER.size:
                    raise _TemplateGone
                what, number, length = _ANSWER.unpack(answer)
                failure = link.recv(length, socket.MSG_WAITALL) if what == _FAILED else b""
        except ConnectionResetError:
            raise _TemplateGone from None
        if failure:
            raise restore(failure)
        return number, pidfds


def write_boot(fds: dict[str, int], own: dict[str, int]) -> None:
    """Writes what a fresh interpreter must know before it can import penstock into the file `own["boot"]`."""
    path, argv = [entry for entry in sys.path if isinstance(entry, str)], [str(word) for word in sys.argv]
    os.write(own["boot"], marshal.dumps({"path": path, "argv": argv, "fds": fds, **own}))


def start_python(boot: int, role: str, number: int, fds: tuple[int, ...]) -> int:
    """Starts an interpreter that runs `enter` and has these descriptors. Returns its pid."""
    import subprocess  # late: fork needs none of it

    if not sys.executable:
        raise RuntimeError(
            "this Python does not know its own executable (sys.executable is empty), and can start no other;"
            ' pass multiprocessing_context="fork" or backend="thread"'
        )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, "-c", _ENTER, str(boot), role, str(number)]
    # The mask survives exec: a Ctrl-C is held back until the child ignores it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    process.returncode = 0  # a Handle waits for the process: Popen shall neither wait nor warn
    return process.pid


# From here on: the code that runs in the fresh interpreter itself.


def enter(boot: dict[str, Any], role: str, number: int) -> NoReturn:
    """Becomes the worker with this number, or the template on the socket with this number."""
    sys.argv[:] = boot["argv"]
    settle(boot["lifeline"])
    requests = None
    if role == "template":
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where the parent ignores it, no exit status can be read
        requests = socket.socket(fileno=number)
    try:
        main, payload = unpack(boot["shipment"])
    except BaseException as exc:  # unpickling runs the user's code
        pid = os.getpid()
        if requests is not None:
            _fail(requests, exc, f"while the template of the workers (pid {pid}) unpacked the dataset")
        else:
            where = f"while worker {seat_of(number)} (pid {pid}) unpacked its dataset"
            leave_last_words(boot["words"], exc, where)
        os._exit(1)
    for name in ("shipment", "words", "boot"):
        os.close(boot[name])
    if requests is not None:
        _serve(requests, main, payload, boot["fds"], boot["lifeline"])
    os.close(boot["lifeline"])
    live(number, main, payload, boot["fds"])


def _serve(
    requests: socket.socket, main: Main, payload: object, fds: dict[str, int], lifeline: int
) -> NoReturn:
    """Is the template."""
    gc.freeze()  # the payload too: a collection in a worker copies none of its pages
    requests.sendall(_ANSWER.pack(_READY, os.getpid(), 0))
    while True:
        request = requests.recv(_REQUEST.size, socket.MSG_WAITALL)
        if len(request) < _REQUEST.size:
            os._exit(0)
        what, about = _REQUEST.unpack(request)
        if what == _REAP:
            requests.sendall(_ANSWER.pack(_REAPED, _reap(about), 0))
            continue
        try:
            pid = fork(quiet=True)  # quiet: no threads run in this process
        except OSError as exc:
            seat = seat_of(about)
            _fail(requests, exc, f"while worker {seat} was forked from the template (pid {os.getpid()})")
            continue
        if pid == 0:
            requests.close()
            live(about, main, payload, fds, lifeline)
        _announce(requests, pid)


def _announce(requests: socket.socket, pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as exc:
        os.kill(pid, signal.SIGKILL)
        _reap(pid)
        _fail(requests, exc, f"while a worker (pid {pid}) was forked from the template")
        return
    socket.send_fds(requests, [_ANSWER.pack(_STARTED, pid, 0)], [pidfd])
    os.close(pidfd)


def _reap(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return UNKNOWN


def _fail(requests: socket.socket, exc: BaseException, where: str) -> None:
    data = Failure.capture(exc, where=where)
    requests.sendall(_ANSWER.pack(_FAILED, 0, len(data)) + data)
