"""A backend that one thread at a time uses, and that any thread may end at any moment."""

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
    """The life of an engine: which thread has its turn, and how its workers end."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._turn = Turn()
        # Ends the workers of an engine that was not closed.
        last = (close_at_last, backend.close, self._turn, os.getpid()) if not backend.leaves_nothing else (bool,)
        self._finalizer = weakref.finalize(self, *last)
        self._finalizer.atexit = False  # `at_exit` is for that
        ends_at_exit(self)

    @property
    def closed(self) -> bool:
        """True if its workers have ended, or will end as soon as the thread that uses it lets go."""
        return bool(self._turn.ended_by)

    def is_ours(self) -> bool:
        """True if it belongs to this process, and not to the one that this was forked from."""
        return self._turn.is_ours()

    def is_used_here(self) -> bool:
        """True if this thread is in the middle of using it."""
        return self.is_ours() and self._turn.is_used_here()

    def held(self, work: Callable[[], object], wait: bool = True) -> bool:
        """Calls `work` for this thread alone: waits for a thread that is in `next`, and the next one has to wait.

        With `wait=False` it returns False if another thread uses the engine. Whatever is raised ends the workers:
        Ctrl-C may come in the middle of a list of commands.
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
        """Ends the workers, or wakes the thread that waits for a batch and ends them. Batches stay valid."""
        with interrupts_deferred():
            self._turn.ended_by = self._turn.ended_by or "was closed"
            if self.is_ours() and not self._end_if_free():
                self.backend.wake()

    def at_exit(self) -> None:
        """Ends the workers, unless a daemon thread is using the engine: then they end with this process."""
        self._finalizer()

    def _let_go(self) -> None:
        """The turn is free: ends the workers if another thread has called close(), and wakes threads that wait."""
        if self._turn.ended_by and self._finalizer.alive:
            self._end_if_free()
        if self._turn.waiting:
            self._turn.changes.tell()

    def _end_if_free(self) -> bool:
        """Ends the workers, unless a thread uses the engine, which will do it."""
        return self.held(partial(self._end, self._turn.ended_by), wait=False)

    def _end(self, by: str) -> None:
        with interrupts_deferred():
            self._turn.ended_by = by
            self._on_end()
            self.backend.close()
            # Not before: if an error comes in between, the finalizer does the rest.
            self._finalizer.detach()
            self._on_ended()

    def _on_end(self) -> None:
        """Called before the workers end, perhaps twice."""

    def _on_ended(self) -> None:
        """Called after the workers have ended."""

    # First, with interrupts deferred. If one comes at its very entry, `_finalizer` still runs.
    __del__ = finalizer(lambda engine: engine._finalizer())
