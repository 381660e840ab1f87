"""The life of a child process: it is forked, settles, runs `main`, and exits.

Settling gives a process the signals and the standard input of a worker, and ties its life to the parent's.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import NoReturn

Main = Callable[[int, object, Mapping[str, int]], None]
"""What a worker runs: `main(number, payload, fds)`."""

SEATS = 1 << 16
"""A worker's number is its id, which is never used again, times SEATS, plus its seat. Messages name the seat."""


def seat_of(number: int) -> int:
    return number % SEATS


# This process's own descriptor of the lifeline, once it has one.
_armed = -1


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
    _take_no_input()
    _arm(lifeline)


def _arm(lifeline: int) -> None:
    """Has the kernel kill this process when the parent's end of the lifeline is closed.

    The read end raises SIGKILL instead of SIGIO, which works inside a long C call too. It needs a file description
    of its own, because the owner and the signal belong to the description.
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
        return  # then an idle worker ends when the pipe of tokens is closed, and a busy one after its task
    watch = select.poll()
    watch.register(own, 0)  # POLLHUP is always reported
    if watch.poll(0):  # the parent was dead before the signal was set
        os.kill(os.getpid(), signal.SIGKILL)


def _take_no_input() -> None:
    if sys.__stdin__ is None:  # closed: descriptor 0 may be any file by now
        return
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    # A new stream: the old one may hold input that the parent has read ahead.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # None, closed, or a pipe that no process reads
            stream.flush()
