"""The lifetime of an engine. One thread at a time may use the engine. Any thread may end it at any moment."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from threading import get_ident

from penstock._engine.turn import CHANGE, Turn, close_at_last
from penstock._system.exit import ends_at_exit
from penstock._system.interrupts import finalizer, interrupts_deferred
from penstock.backends import Backend


class EngineLifetime:
    """Decides which thread uses the backend, and when the workers are stopped."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._turn = Turn()
        # Stops the workers if the engine is garbage collected before it was closed.
        last = (close_at_last, backend.close, self._turn, os.getpid()) if not backend.leaves_nothing else (bool,)
        self._finalizer = weakref.finalize(self, *last)
        self._finalizer.atexit = False  # `at_exit` does that
        ends_at_exit(self)

    @property
    def closed(self) -> bool:
        """True if the workers have been stopped, or will be stopped as soon as no thread uses the engine."""
        return bool(self._turn.ended_by)

    def is_ours(self) -> bool:
        """False in a forked child of the process that created the engine."""
        return self._turn.is_ours()

    def is_used_here(self) -> bool:
        return self.is_ours() and self._turn.is_used_here()

    def held(self, work: Callable[[], object], wait: bool = True) -> bool:
        """Calls `work` while no other thread can use the engine.

        If `wait` is False, returns False instead of waiting for another thread.
        """
        turn, hold = self._turn, (get_ident(), CHANGE)
        try:
            if wait:
                turn.take(hold)
            if not turn.take_if_free(hold):
                return False
            work()
            return True
        except BaseException as error:
            if turn.holder is hold:  # a list of commands may be only half carried out, for example after Ctrl-C
                self._end(f"was ended by {type(error).__name__}")
            raise
        finally:
            if turn.holder is hold:
                turn.holder = None
                self._let_go()

    def close(self) -> None:
        """Stops the workers. Batches stay valid.

        If another thread is using the engine, wakes that thread, which then stops the workers.
        """
        with interrupts_deferred():
            self._turn.ended_by = self._turn.ended_by or "was closed"
            if self.is_ours() and not self._end_if_free():
                self.backend.wake()

    def at_exit(self) -> None:
        """Stops the workers. If a daemon thread is using the engine, the workers end with this process instead."""
        self._finalizer()

    def _let_go(self) -> None:
        """Stops the workers if another thread has called close(). Wakes the threads that wait for the engine."""
        if self._turn.ended_by and self._finalizer.alive:
            self._end_if_free()
        if self._turn.waiting:
            self._turn.changes.tell()

    def _end_if_free(self) -> bool:
        """Stops the workers, or returns False if another thread is using the engine and will stop them."""
        return self.held(partial(self._end, self._turn.ended_by), wait=False)

    def _end(self, by: str) -> None:
        """Stops the workers. `by` completes the error message "This iterator ...", for example with "was closed"."""
        raise NotImplementedError

    # This runs before `_finalizer` would run on its own, and it defers interrupts. If an interrupt comes at its very
    # entry, `_finalizer` still runs.
    __del__ = finalizer(lambda engine: engine._finalizer())
