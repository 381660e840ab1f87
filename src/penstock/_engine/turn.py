"""Decides which thread may use an engine: one thread at a time. Any thread may end the engine at any moment.

    turn   FREE --take--> HELD (by one call, in one thread) --let_go--> FREE
           FREE or HELD --end--> ended: the holder ends the engine when letting go. If there is no holder, the caller
                                 of `end` ends the engine.

A thread that wants to change something gets the turn before threads that call `next()`. A thread that wants a batch
waits until such a change is done. It is an error if two threads ask one iterator for a batch at the same time.

Taking the turn and letting go must survive Ctrl-C at any instruction (see `_system/interrupts.py`). So a thread
creates its hold, a tuple that identifies the call, before it takes the turn. Only that thread lets go, by a plain
assignment in a `finally`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import get_ident

from penstock._system.interrupts import LOOK_AGAIN, InterruptSafeCondition, interrupts_after
from penstock._system.platform import register_at_fork

NEXT, CHANGE = "next", "change"

Hold = tuple[int, str]
"""The id of a thread, and what the thread wants to do: NEXT or CHANGE."""

INSIDE = "The loader cannot be changed from inside of its own next(), iter() or update(), as by a signal handler."

# A forked child replaces this object. Comparing it costs less than the system call for the process id.
_this_process = object()


def _be_another_process() -> None:
    global _this_process
    _this_process = object()


register_at_fork(after_in_child=_be_another_process)


class Turn:
    """The right to use an engine, held by one thread at a time.

    `ended_by` says why the engine has ended or is about to end. Until then, it is "".
    """

    def __init__(self) -> None:
        self.changes = InterruptSafeCondition()  # wakes waiting threads when the turn is free
        self.holder: Hold | None = None  # the holder lets go without the lock
        self.waiting: dict[int, Hold] = {}  # by the id of the hold; changed without the lock, so iterate over a copy
        self.ended_by = ""
        self.after: object = None  # see `close_at_last`
        self._process = _this_process

    def is_ours(self) -> bool:
        return self._process is _this_process

    def take(self, hold: Hold) -> None:
        with self.changes.lock:
            if self.holder is None and not self.waiting:
                self.holder = hold
                return
        self._wait(hold)

    def take_if_free(self, hold: Hold) -> bool:
        with self.changes.lock:
            if self.holder is None:
                self.holder = hold
        return self.holder is hold

    def _wait(self, hold: Hold) -> None:
        try:
            self.waiting[id(hold)] = hold
            while True:
                with self.changes.lock:
                    if self.holder is None and (hold[1] is CHANGE or not self._is_to_change()):
                        self.holder = hold
                        return
                    self._refuse(hold)
                    bell = self.changes.bell()
                bell.acquire(timeout=LOOK_AGAIN)
        finally:
            self.waiting.pop(id(hold), None)

    def _is_to_change(self) -> bool:
        return any(use is CHANGE for _, use in self.waiting.copy().values())

    def _refuse(self, hold: Hold) -> None:
        """Raises an error if waiting would deadlock.

        If the hold is for `next`, also raises if the engine has ended or if another thread is calling `next`.
        """
        if hold[1] is CHANGE:
            if self.is_used_here():
                raise RuntimeError(INSIDE)
            return
        if self.ended_by:
            raise self.closed_error()
        if self.is_used_here() or (hold[0], CHANGE) in self.waiting.copy().values():
            raise RuntimeError("The loader was asked for a batch from inside of its own next() or update().")
        holder = self.holder
        if holder is not None and holder[1] is NEXT:
            raise RuntimeError(
                "Two threads asked one iterator for a batch at the same time. To deal the batches of one epoch to "
                "several threads, give each thread one of the iterators that loader.share(n) returns; for an epoch "
                "of its own, give it its own iter(loader)."
            )

    def closed_error(self) -> RuntimeError:
        return RuntimeError(f"This iterator {self.ended_by}. Call iter(loader) for a new one.")

    def is_used_here(self) -> bool:
        """True if this thread is already using the engine, further up its call stack."""
        holder = self.holder
        return holder is not None and holder[0] == get_ident()


def close_at_last(close: Callable[[], None], turn: Turn, pid: int) -> None:
    """Stops the workers of an engine that was garbage collected."""
    # In a forked child the workers belong to the parent, and a thread of the parent may hold the turn's lock.
    # At the interpreter's exit a daemon thread may be inside `next`. It is left alone: the workers end with us.
    turn.after = interrupts_after()  # kept in the turn, because it must outlive this call and the engine
    with turn.after:
        if os.getpid() == pid and turn.take_if_free((get_ident(), CHANGE)):
            turn.ended_by = turn.ended_by or "was closed"
            close()
