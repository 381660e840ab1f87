"""The interpreter's exit: what penstock ends then, and in which order.

Python ends a program like this: it waits for non-daemon threads; calls what was registered with atexit, the latest
first; stops handling signals; ends each daemon thread as soon as it asks for the GIL; and clears the modules, in an
order that depends on who refers to whom. So:

- What is open is closed by atexit, while everything still works and after the last thread of the user that counts.
- No thread of ours is left when daemon threads are ended. Such an end unwinds the thread's stack, and where code of
  C++ or Rust is on it, the process aborts.
- From then on, finalizers do nothing (`_interrupts.over`): the globals that they need may be gone already, and the
  system takes back what is left.
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Protocol

from penstock._system import threads
from penstock._system.interrupts import Living, interrupts_deferred, over


class _Open(Protocol):
    def at_exit(self) -> None:
        """Ends it. No other thread of the user's counts any more, but a daemon thread may be using it."""


_open = Living[_Open]()


def ends_at_exit(one: _Open) -> None:
    """The interpreter's exit calls `one.at_exit()`, if the object is alive then."""
    _open.add(one)


# What is registered later is called earlier: so this comes before `threads.end_all`. An interrupt in one of the two
# does not keep the other from its work.
@atexit.register
def _end_all() -> None:
    over.append(True)
    # Signals that come meanwhile (SIGCHLD, of each worker) are handled at the end of the block, and not later, when
    # Python has forgotten its handlers.
    with interrupts_deferred():
        for one in reversed(list(_open)):
            one.at_exit()


def rest_if_over() -> None:
    """Never returns to a daemon thread of the user's, if the program is ending.

    Such a thread will be ended soon. Until then, an error about what was closed would only be noise.
    """
    thread = threading.current_thread()
    if over and thread.daemon and thread not in threads.running:
        while True:
            time.sleep(3600)
