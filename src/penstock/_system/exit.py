"""What penstock ends at the interpreter's exit, and in which order.

Python ends a program in this order: it waits for non-daemon threads; calls the functions registered with atexit, last
registered first; stops handling signals; ends each daemon thread as soon as the thread asks for the GIL; and clears
the modules, in an order that depends on their references. So:

- Open objects are closed by atexit, after the user's non-daemon threads and while everything still works.
- No thread of penstock is left when Python ends daemon threads. That unwinds a thread's stack, and aborts the process
  if C++ or Rust code is on the stack.
- From then on, finalizers do nothing (`interrupts.over`): the globals that they need may be gone, and the system
  takes back what is left.
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
        """Ends the object. Of the user's threads, only daemon threads may still be using it."""


_open = LiveObjects[_Open]()


def ends_at_exit(one: _Open) -> None:
    """Registers an object: if it is alive at the interpreter's exit, `one.at_exit()` is called."""
    _open.add(one)


# atexit calls the last registered function first, so this one runs before `threads.end_all`. Two functions: an
# interrupt in one of them does not prevent the other.
@atexit.register
def _end_all() -> None:
    over.append(True)
    # Signals that arrive here (a SIGCHLD for each worker) are handled at the end of the block, and not later,
    # when Python has dropped its handlers.
    with interrupts_deferred():
        for one in reversed(list(_open)):
            one.at_exit()


def rest_if_over() -> None:
    """Blocks a daemon thread of the user for ever, if the program is ending.

    Python will end the thread soon. Until then, an error about a closed object would only be noise.
    """
    thread = threading.current_thread()
    if over and thread.daemon and thread not in threads.running:
        while True:
            time.sleep(3600)
