"""Closes penstock's objects and ends its threads at the interpreter's exit, in a safe order.

Python ends a program in these steps: it waits for non-daemon threads; it calls the functions registered with atexit,
the last registered one first; it stops handling signals; it ends each daemon thread as soon as the thread asks for
the GIL; and it clears the modules, in an order that depends on their references. Therefore:

- Open objects are closed by an atexit function, while everything still works.
- No thread of penstock is left when Python ends daemon threads (see `threads`).
- Once the atexit function has started, finalizers do nothing (see `interrupts.over`). A finalizer might need
  globals that are gone. The operating system releases whatever is left.
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Protocol

from penstock._system import threads
from penstock._system.interrupts import LiveObjects, interrupts_deferred, over


class _Open(Protocol):
    def at_exit(self) -> None:
        """Closes the object. Only daemon threads can still be using it, because all other threads have ended."""


_open = LiveObjects[_Open]()


def ends_at_exit(one: _Open) -> None:
    """Registers an object whose `at_exit()` is called when the interpreter exits, if the object is still alive."""
    _open.add(one)


# atexit calls the last registered function first, so this one runs before `threads.end_all`. They are two
# functions, so that an interrupt in one of them does not prevent the other.
@atexit.register
def _end_all() -> None:
    over.append(True)
    # Signals that arrive here (a SIGCHLD for each worker) are handled at the end of the block, and not later,
    # when Python has dropped its handlers.
    with interrupts_deferred():
        for one in reversed(list(_open)):
            one.at_exit()


def rest_if_over() -> None:
    """Blocks forever if the program is exiting and the current thread is one of the user's daemon threads."""
    thread = threading.current_thread()
    if over and thread.daemon and thread not in threads.running:
        # Python will end the thread soon. Until then, an error about a closed object would only be noise.
        while True:
            time.sleep(3600)
