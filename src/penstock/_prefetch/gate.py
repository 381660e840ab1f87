"""The gate: two queues between the thread that reads the source and the consumer.

For each permit in the one queue the thread makes one batch and puts it into the other queue. There are `depth`
permits, and the consumer returns one with each batch that it takes: so at most `depth` batches are ahead, and no
other state is kept.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from contextlib import suppress
from queue import Empty as QueueEmpty
from queue import SimpleQueue
from typing import Any, NamedTuple

# Seconds that close() and the interpreter's exit wait for a source that is in the middle of a batch. The source
# cannot be interrupted: it finishes the batch in the background.
GRACE = 1.0

# Seconds. An interrupt that comes just before a wait does not end it, and is noticed after it.
LONGEST_WAIT = 1.0


class Sweep:
    """One reading of the source, from its beginning or from a state that was `loaded`.

    A permit is for a sweep, and a batch is of one. Batches of any sweep but the wanted one are dropped.
    """

    __slots__ = ("first", "is_over", "loaded", "opened")

    def __init__(self, loaded: bool, first: Any) -> None:
        self.loaded = loaded
        self.is_over = False  # True once the consumer has met its end
        self.first = first  # the source's state before the first batch, known when `opened` is set
        self.opened = threading.Event()
        if first is not None:
            self.opened.set()


class Made(NamedTuple):
    """What the thread made of one `next()` of the source."""

    sweep: Sweep | None
    batch: Any = None
    error: BaseException | None = None
    is_end: bool = False
    state: Any = None


class Gate:
    """What the thread and its consumer share while both wait.

    Neither queue takes a lock of Python's: a permit may be given inside the garbage collector.
    """

    __slots__ = ("made", "permits", "stopped")

    def __init__(self) -> None:
        self.permits: SimpleQueue[Sweep | None] = SimpleQueue()
        self.made: SimpleQueue[Made] = SimpleQueue()
        self.stopped = False

    def stop(self) -> None:
        """Ends the thread after the batch that it is making."""
        self.stopped = True
        self.permits.put(None)

    def take(self) -> Made:
        while True:
            with suppress(QueueEmpty):
                return self.made.get(timeout=LONGEST_WAIT)

    def drain(self) -> None:
        """Drops everything that was made."""
        with suppress(QueueEmpty):
            while True:
                self.made.get_nowait()


running: weakref.WeakKeyDictionary[threading.Thread, Gate] = weakref.WeakKeyDictionary()
"""The threads that were started, each with its gate."""


@atexit.register
def _stop_all() -> None:
    """Before the interpreter exits: a thread must not be inside of numpy when numpy is taken down."""
    threads = dict(running)
    for gate in threads.values():
        gate.stop()
    deadline = time.monotonic() + GRACE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
