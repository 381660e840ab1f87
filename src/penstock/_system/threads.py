"""Threads that penstock runs in the caller's process. They end before the interpreter does.

They are daemon threads, so that a program can exit while such a thread is only waiting for work. But Python may end a
daemon thread at any point by unwinding its stack, which aborts the process if C++ or Rust code (for example torch's)
is on the stack. So at exit, each thread is told to end, and has time to finish its current sample.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from penstock._system.interrupts import interrupts_deferred
from penstock._system.limits import room_for_tasks
from penstock._system.platform import HAS_PROCESSES, register_at_fork

GRACE = 1.0
"""Seconds that a prefetcher's `close()` waits for its thread. A slower thread finishes in the background."""

PATIENCE = 2.0
"""Seconds after which the interpreter, at exit, stops waiting for a thread that has used no CPU time.

Such a thread is waiting for something that may never happen, such as a network response, and cannot abort the process
while it waits. If a thread keeps computing, the interpreter waits without limit, as it does for `concurrent.futures`.
"""

_SILENCE = 10.0  # seconds of waiting at exit before a line on standard error says why


def has_gil() -> bool:
    """False on a Python without the GIL, unless an import has turned the GIL on."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


running: dict[threading.Thread, Callable[[], object]] = {}
"""The live threads, oldest first, each with the function that tells the thread to end."""

_ended: list[bool] = []  # not empty once the exit has ended all threads


def started(name: str, work: Callable[[], None], stop: Callable[[], object]) -> threading.Thread:
    """Starts a daemon thread that runs `work`. Any thread may call `stop`, which must tell the new one to end."""
    if _ended:
        raise RuntimeError(
            "The program is ending, so penstock can start no more threads: they would be cut off in the middle of a "
            "sample, and that may abort the process. In a function that atexit calls, use num_workers=0; or import "
            "penstock before you register that function."
        )

    def run() -> None:
        try:
            work()
        finally:
            # Not `thread`: if the thread never started, that would be a reference cycle.
            running.pop(threading.current_thread(), None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    refused = ""
    with interrupts_deferred():  # `Thread.start` waits for an Event
        running[thread] = stop
        try:
            thread.start()
        except BaseException as error:
            del running[thread]
            if not isinstance(error, RuntimeError):
                raise
            refused = str(error)
    if refused:  # raised here: an error with the first one as its context would keep the engine alive
        raise RuntimeError(f"A thread could not be started ({refused}): {room_for_tasks()}")
    return thread


@atexit.register
def end_all() -> None:
    said = time.monotonic() + _SILENCE
    # One after the other, oldest first: an older thread may wait for a batch that a younger thread makes.
    while oldest := [*running.copy().items()][:1]:
        ((thread, stop),) = oldest
        stop()
        said = _wait(thread, said)
        running.pop(thread, None)
    _ended.append(True)


def _wait(thread: threading.Thread, say_at: float) -> float:
    used, since = _processor_time(thread), time.monotonic()
    while thread.is_alive() and time.monotonic() < since + PATIENCE:
        thread.join(0.1)
        now_used = _processor_time(thread)
        if now_used != used:
            used, since = now_used, time.monotonic()
        if thread.is_alive() and time.monotonic() > say_at:
            say_at = float("inf")
            _say(thread)
    return say_at


def _processor_time(thread: threading.Thread) -> int:
    """Returns the thread's CPU time in clock ticks, or -1 if the thread has ended."""
    # From /proc, because `pthread_getcpuclockid` must not be called for a thread that has ended.
    if (
        not HAS_PROCESSES
    ):  # the time of all threads: the main thread only waits, and uses less than one tick in PATIENCE
        return int(time.process_time() * 100) if thread.is_alive() else -1
    with suppress(OSError, ValueError, IndexError):  # the thread has ended
        with open(f"/proc/self/task/{thread.native_id}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return -1


def _say(thread: threading.Thread) -> None:
    frame = sys._current_frames().get(thread.ident or 0)
    where = "" if frame is None else f", at {frame.f_code.co_filename}:{frame.f_lineno}"
    with suppress(Exception):  # standard error may be closed
        sys.stderr.write(
            f"penstock: the program has ended, but {thread.name} is still working on a sample{where}. Python waits "
            "for that sample, because a thread that is cut off may abort the process. Ctrl-C ends the waiting.\n"
        )
        sys.stderr.flush()


register_at_fork(after_in_child=running.clear)  # the threads exist in the parent only
