"""The life of an engine: one thread at a time uses it, and any thread may end it at any moment."""

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
    """The base class of `Engine`: decides which thread uses the backend, and when the workers end."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._turn = Turn()
        # Ends the workers if the engine is garbage collected and was not closed.
        last = (close_at_last, backend.close, self._turn, os.getpid()) if not backend.leaves_nothing else (bool,)
        self._finalizer = weakref.finalize(self, *last)
        self._finalizer.atexit = False  # `at_exit` does that
        ends_at_exit(self)

    @property
    def closed(self) -> bool:
        """True if the workers have ended, or will end as soon as the thread that uses the engine is done."""
        return bool(self._turn.ended_by)

    def is_ours(self) -> bool:
        """True if this process has made the engine. False in a forked child."""
        return self._turn.is_ours()

    def is_used_here(self) -> bool:
        """True if this thread is already using the engine, further up in its stack."""
        return self.is_ours() and self._turn.is_used_here()

    def held(self, work: Callable[[], object], wait: bool = True) -> bool:
        """Calls `work` while only this thread uses the engine, and returns True.

        Waits for a thread that is in `next`; later calls of `next` wait for `work`. With `wait=False`, returns False
        instead of waiting. Any exception in `work` ends the workers: Ctrl-C may come in the middle of a list of
        commands.
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
            if turn.holder is hold:
                self._end(f"was ended by {type(error).__name__}")
            raise
        finally:
            if turn.holder is hold:
                turn.holder = None
                self._let_go()

    def close(self) -> None:
        """Ends the workers, or wakes the thread that waits for a batch, which then ends them. Batches stay valid."""
        with interrupts_deferred():
            self._turn.ended_by = self._turn.ended_by or "was closed"
            if self.is_ours() and not self._end_if_free():
                self.backend.wake()

    def at_exit(self) -> None:
        """Ends the workers, unless a daemon thread uses the engine: then they end with this process."""
        self._finalizer()

    def _let_go(self) -> None:
        """Called when the turn is free: ends the workers if another thread called close(), wakes waiting threads."""
        if self._turn.ended_by and self._finalizer.alive:
            self._end_if_free()
        if self._turn.waiting:
            self._turn.changes.tell()

    def _end_if_free(self) -> bool:
        """Ends the workers, and returns True. False if another thread uses the engine, which will end them."""
        return self.held(partial(self._end, self._turn.ended_by), wait=False)

    def _end(self, by: str) -> None:
        """Ends the workers. `by` completes the sentence "This iterator ..."."""
        raise NotImplementedError

    # Runs before `_finalizer` does by itself, and defers interrupts. If one comes at its very entry, `_finalizer`
    # still runs.
    __del__ = finalizer(lambda engine: engine._finalizer())
