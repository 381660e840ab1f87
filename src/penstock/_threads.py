"""Threads that penstock runs beside the caller, in its process: daemons, which end before the interpreter does."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable

from penstock._interrupts import interrupts_deferred

GRACE = 1.0
"""Seconds that the interpreter's exit, and `close()` of a prefetcher, wait for a thread.

Code of the user's in it cannot be interrupted: it finishes in the background.
"""

running: dict[threading.Thread, Callable[[], object]] = {}
"""The threads that have not ended, and how each is told to end."""


def started(name: str, work: Callable[[], None], stop: Callable[[], object]) -> threading.Thread:
    """A thread that was started. `stop()` makes it end soon, and may be called at any instruction of any thread."""

    def run() -> None:
        try:
            work()
        finally:
            running.pop(thread, None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    with interrupts_deferred():  # `Thread.start` waits for an Event
        running[thread] = stop
        try:
            thread.start()
        except BaseException:
            del running[thread]
            raise
    return thread


@atexit.register
def _stop_all() -> None:
    """Before the interpreter exits: a thread must not be inside of numpy when numpy is taken down."""
    threads = dict(running)
    for stop in threads.values():
        stop()
    deadline = time.monotonic() + GRACE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
