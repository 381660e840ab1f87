"""Decides whether this process may be forked. A fork is safe only while the process has a single thread.

A forked child gets copies of all locks and thread pools, but only one thread: a copy of the one that called fork. A
lock that another thread held stays locked forever in the child, and a thread pool waits forever for its threads.

Counting threads is not enough: OpenBLAS stops its threads before a fork, libgomp does not, and the system does not
tell which library started a thread. So penstock makes a trial fork, whose child exits at once. The child of a real
fork would lack the threads that survive the trial fork.
"""

from __future__ import annotations

import ctypes
import gc
import operator
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from itertools import tee

from penstock._system.interrupts import block_signals, set_blocked_signals
from penstock.backends._native_threads import stop_openblas

# Libraries that refuse to work in a forked child, or do not work there, even if they have no threads yet.
_NEVER_FORKED = ("jax", "jaxlib", "tensorflow", "grpc")

# Seconds to wait for a new jemalloc thread to take its name.
_NAMING = 0.1

_PF_EXITING = 0x4  # Linux's flag for an exiting thread, which runs no more code of the program

_Thread = tuple[int, int]  # thread id and start time, because the system reuses ids

_stayed: frozenset[_Thread] = frozenset()  # the other threads that were still alive after the last trial


def obstacle() -> str:
    """Returns why forking this process is unsafe (such as "it has 2 other threads"), or "" if forking is safe."""
    for name in _NEVER_FORKED:
        if name in sys.modules:
            return f"it has imported {name}"
    count = threading.active_count() - 1 or len(_left_after_a_trial())
    return f"it has {other_threads(count)}" if count else ""


def breaks_in_child() -> bool:
    """True if the program uses a library that fails or warns in a forked child: JAX, or numba with OpenMP."""
    # Other libraries and threads are a risk too, but torch's own loader accepts that risk.
    return "jax" in sys.modules or "numba.np.ufunc.omppool" in sys.modules


def other_threads(count: int) -> str:
    return f"{count} other thread{'s' * (count != 1)}"


def threads_beside() -> int:
    """Returns the number of threads that a forked child would lack."""
    try:
        return len(_others())
    except OSError:
        return threading.active_count() - 1


def _left_after_a_trial() -> frozenset[_Thread]:
    """Returns the threads that a forked child would lack, or a dummy entry if threads cannot be listed."""
    global _stayed
    try:
        others = _others()
        if not others or others & _stayed:
            return others
        stop_openblas()  # may save the trial, which takes as long as a fork
        if not _others():
            return frozenset()
        _fork_for_trial()
        _stayed = _others()
        # After a fork, jemalloc starts a new thread, which at first has no name of its own.
        until = time.monotonic() + (_NAMING if "pyarrow" in sys.modules else 0)
        while _stayed and time.monotonic() < until:
            time.sleep(0.001)
            _stayed = _others()
    except OSError:  # no /proc, or no memory for another process: nothing is known about threads
        return frozenset({(0, 0)})
    return _stayed


def _others() -> frozenset[_Thread]:
    """Returns the live threads except the calling one. Omits jemalloc's threads, which are harmless in a fork."""
    tasks = os.listdir("/proc/self/task")
    if len(tasks) == 1:
        return frozenset()
    found, own = set[_Thread](), threading.get_native_id()
    for task in map(int, tasks):
        if task != own:
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                with open(f"/proc/self/task/{task}/stat") as file:
                    head, _, tail = file.read().rpartition(")")
                fields = tail.split()
                # A joined thread may still be listed for a while as it exits.
                if not int(fields[6]) & _PF_EXITING and not head.endswith("(jemalloc_bg_thd"):
                    found.add((task, int(fields[19])))
    return frozenset(found)


def _fork_for_trial() -> None:
    """Forks a child that exits at once. Runs `pthread_atfork` handlers, but not Python's (`os.register_at_fork`)."""
    # The child must not run any signal handler, garbage collection or bytecode: between two bytecode instructions the
    # interpreter may hand the GIL to a waiting thread, which does not exist in the child, so the child would hang.
    libc = ctypes.PyDLL(None, use_errno=True)  # PyDLL: the child holds the GIL, too
    collecting = gc.isenabled()
    before = block_signals()
    gc.disable()
    try:
        forked, pids = tee(map(operator.call, (libc.fork,)))
        deque(map(libc._exit, filter(operator.not_, forked)), 0)  # one call to C code, during which the child exits
        pid = next(pids)
    finally:
        if collecting:
            gc.enable()
        set_blocked_signals(before)
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    with suppress(ChildProcessError):  # the program ignores SIGCHLD, or its handler has reaped the child
        os.waitpid(pid, 0)
