"""The engines of a loader: made by its semantics, kept between epochs, changed and closed together."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock._engine.engine import Engine
from penstock._engine.turn import INSIDE
from penstock._system.interrupts import LiveObjects, interrupts_deferred
from penstock._wire.updates import Change

# Bytes of updates: they are kept for workers that still have to read them, and how far each worker is, is not known.
# An engine that has more is not used for another epoch: new workers have the dataset as it is.
_MOST_UPDATES = 64 << 20


class Engines:
    """At most one engine is idle and waits for the next epoch.

    If there are several, it is the one that began the last epoch: its worker has the state that a stream keeps.
    """

    def __init__(self) -> None:
        self.live = LiveObjects[Engine]()
        self._idle: Engine | None = None
        self._last: weakref.ref[Engine] | None = None
        self._changing: dict[int, threading.RLock] = {}

    def changing(self) -> threading.RLock:
        """A lock for beginning an epoch and for changing the dataset: no worker starts with half of a change.

        By process: a child may have been forked while another thread had it.
        """
        pid = os.getpid()
        return self._changing.get(pid) or self._changing.setdefault(pid, threading.RLock())

    def all(self) -> list[Engine]:
        """The engines that are alive."""
        return list(self.live)

    def held(self, work: Callable[[list[Engine]], object]) -> None:
        """Calls `work` with all engines of this process, while this thread alone uses them."""
        self._refuse_inside()
        with self.changing():
            engines = self.ours()
            self._hold(engines, partial(work, engines))

    def _hold(self, engines: list[Engine], work: Callable[[], object]) -> None:
        if engines:
            engines[0].held(partial(self._hold, engines[1:], work))
        else:
            work()

    def ours(self) -> list[Engine]:
        """The engines that serve this process."""
        return [engine for engine in self.all() if engine.is_ours() and not engine.closed]

    def _refuse_inside(self) -> None:
        """Before anything is waited for: raises for a thread that would wait for itself.

        Also for one that is in the middle of a start or a change: `live` does not have the engine that is being made.
        """
        lock: Any = self.changing()
        if lock._is_owned() or any(engine.is_used_here() for engine in self.all()):
            raise RuntimeError(INSIDE)

    def update(self, change: Change, dataset: Any) -> None:
        """Changes the dataset, here and in all workers."""
        self._refuse_inside()
        with self.changing():
            # Serialised first: if that fails, the local dataset is unchanged. And all engines are held before the
            # local change: a worker that was forked in between would make the change twice.
            engines = [(engine, engine.backend.encode(change)) for engine in self.ours()]

            def make_change() -> None:
                change(dataset)
                for engine, encoded in engines:
                    engine.update(encoded)

            self._hold([engine for engine, _ in engines], make_change)

    def take(self) -> Engine | None:
        engine, self._idle = self._idle, None
        if engine is not None and engine.job.log.end > _MOST_UPDATES:
            engine.close()
        # A forked child has a copy of the idle engine; its workers belong to the parent.
        usable = engine is not None and not engine.closed and engine.is_ours()
        return engine if usable else None

    def begun(self, engine: Engine) -> None:
        """An epoch was begun on it."""
        self._last = engine.reference

    def taken_back(self) -> list[Engine]:
        """Those whose iterators have handed out their last batch, and were not asked for the end: they are free."""
        return [engine for engine in self.ours() if engine is not self._idle and engine.take_back()]

    def put(self, engine: Engine) -> None:
        if engine.reference() is None:
            # The garbage collector found it in a cycle, and has cleared all weak references: it is not in `live` any
            # more, so updates would not reach it.
            engine.close()
            return
        spare: Engine | None = engine
        if self._idle is None or (self._last is not None and self._last() is engine):
            spare, self._idle = self._idle, engine
        if spare is not None:
            spare.close()

    def close(self) -> None:
        with interrupts_deferred():
            for engine in self.all():
                engine.close()
        self._idle = None  # not before: a collection of garbage may free a reader, which puts its engine here
