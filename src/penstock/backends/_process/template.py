"""The child's side of a start: from birth to `main` to exit, and the template that forks further workers.

Two kinds of process begin here. A worker settles (signals, standard input, lifeline) and runs `main`. The
template settles, unpacks the payload once, and then forks a worker at each request of the parent: they
all share its one copy of the payload. It answers over a socket, one reply to each request:

    request  START worker | REAP pid
    reply    READY | STARTED pid, with a pidfd | REAPED exit code | FAILED, with the exception

It reaps only when told to, so a pid it has reported cannot come to mean another process.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import socket
import struct
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from penstock._wire.failure import Failure
from penstock._wire.shipment import unpack

Main = Callable[[int, object, Mapping[str, int]], None]

REQUEST = struct.Struct("=Bq")  # what, worker or pid
REPLY = struct.Struct("=Bqq")  # what, pid or exit code, bytes that follow
START, REAP, READY, STARTED, REAPED, FAILED = range(6)

LAST_WORDS = struct.Struct("=qq")  # pid, bytes that follow

UNKNOWN = 256  # stands for the exit code where nobody could read it; none is so large

# This process's own end of its lifeline, once it has one.
_armed = -1


def fork(*, quiet: bool) -> int:
    """os.fork, the child with every signal blocked until it has settled.

    A signal handler of the parent that raises would otherwise unwind the child into the parent's code.
    """
    for stream in (sys.stdout, sys.stderr):  # else both processes print what is still buffered
        _flush(stream)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = -1
    try:
        if quiet:
            # Not safe beside a thread that does the same; the worst that comes of it is that this
            # one warning stays ignored.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
                pid = os.fork()
        else:
            pid = os.fork()
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def live(
    worker: int, main: Main, payload: object, fds: Mapping[str, int], lifeline: int | None = None
) -> NoReturn:
    """Be a worker until `main` returns, then exit: nothing of the parent's is run or returned into."""
    code = 1
    try:
        if lifeline is not None:
            settle(lifeline)
            os.close(lifeline)
        main(worker, payload, fds)
        code = 0
    except SystemExit as leaving:
        code = _exit_code(leaving)
    except BaseException:  # nothing may unwind into the parent's code
        _report(f"penstock worker {worker} (pid {os.getpid()}) ended with an exception:\n")
    finally:
        _flush(sys.stdout)
        _flush(sys.stderr)
        os._exit(code)


def settle(lifeline: int) -> None:
    """Give this process a worker's signals and standard input, and tie its life to the parent's."""
    # What the parent left as cyclic garbage is the parent's to finalize; and a collection that looks
    # at inherited objects would copy the pages that they are on.
    gc.freeze()
    signal.set_wakeup_fd(-1)  # else our signals would wake the parent's event loop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent answers it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _take_no_input()
    _arm(lifeline)


def _arm(lifeline: int) -> None:
    """Have the kernel kill this process when the parent's end of the lifeline is closed.

    The read end raises SIGKILL instead of SIGIO, so it works inside a long C call too. It needs a file
    description of its own, because the owner and the signal belong to the description.
    Refused: PR_SET_PDEATHSIG, which fires when the thread that forked ends, not the process.
    """
    global _armed
    if _armed >= 0:  # inherited: it kills the process we were forked from, not us
        os.close(_armed)
        _armed = -1
    try:
        own = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        _armed = own
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return  # then an idle worker ends when the token pipe does, a busy one after its task
    watch = select.poll()
    watch.register(own, 0)  # POLLHUP is always reported
    if watch.poll(0):  # the parent was dead before the signal was set
        os.kill(os.getpid(), signal.SIGKILL)


def _take_no_input() -> None:
    if sys.__stdin__ is None:  # closed: 0 may be any file by now
        return
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    # A new one: the old may hold what the parent has read and not yet used.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115


# A fresh interpreter enters here; `boot` is what `Launcher._pack` wrote.


def enter(boot: dict[str, Any], role: str, number: int) -> NoReturn:
    """Be the process that was asked for: worker `number`, or the template on socket `number`."""
    sys.argv[:] = boot["argv"]
    settle(boot["lifeline"])
    if role == "template":
        _serve(boot, number)
    _work(boot, number)


def _work(boot: dict[str, Any], worker: int) -> NoReturn:
    try:
        main, payload = unpack(boot["shipment"])
    except BaseException as exc:  # unpickling runs the user's code
        data = Failure.capture(exc, where=f"while worker {worker} (pid {os.getpid()}) unpacked its dataset")
        os.write(boot["words"], LAST_WORDS.pack(os.getpid(), len(data)) + data)
        os._exit(1)
    for name in ("lifeline", "shipment", "words", "boot"):
        os.close(boot[name])
    live(worker, main, payload, boot["fds"])


def _serve(boot: dict[str, Any], number: int) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where the parent ignores it, there is no status
    requests = socket.socket(fileno=number)
    try:
        main, payload = unpack(boot["shipment"])
    except BaseException as exc:  # unpickling runs the user's code
        _fail(requests, exc, f"while the template of the workers (pid {os.getpid()}) unpacked the dataset")
        os._exit(1)
    for name in ("shipment", "words", "boot"):
        os.close(boot[name])
    gc.freeze()  # the payload too: a collection in a worker copies none of its pages
    requests.sendall(REPLY.pack(READY, os.getpid(), 0))
    while True:
        request = requests.recv(REQUEST.size, socket.MSG_WAITALL)
        if len(request) < REQUEST.size:
            os._exit(0)
        what, about = REQUEST.unpack(request)
        if what == REAP:
            requests.sendall(REPLY.pack(REAPED, _reap(about), 0))
            continue
        try:
            pid = fork(quiet=True)  # quiet: this process runs nobody's threads
        except OSError as exc:
            _fail(requests, exc, f"while worker {about} was forked from the template (pid {os.getpid()})")
            continue
        if pid == 0:
            requests.close()
            live(about, main, payload, boot["fds"], boot["lifeline"])
        _announce(requests, pid)


def _announce(requests: socket.socket, pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as exc:
        os.kill(pid, signal.SIGKILL)
        _reap(pid)
        _fail(requests, exc, f"while a worker (pid {pid}) was forked from the template")
        return
    socket.send_fds(requests, [REPLY.pack(STARTED, pid, 0)], [pidfd])
    os.close(pidfd)


def _reap(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return UNKNOWN


def _fail(requests: socket.socket, exc: BaseException, where: str) -> None:
    data = Failure.capture(exc, where=where)
    requests.sendall(REPLY.pack(FAILED, 0, len(data)) + data)


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _report(heading: str) -> None:
    with suppress(BaseException):  # no standard error, or an exception that cannot be shown
        sys.stderr.write(heading + traceback.format_exc())


def _flush(stream: Any) -> None:
    with suppress(Exception):  # None, closed, or a pipe that nobody reads
        stream.flush()
