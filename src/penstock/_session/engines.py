"""The engines of a loader, which are changed and closed together."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock._engine.engine import Engine
from penstock._engine.turn import INSIDE
from penstock._system.interrupts import LiveObjects, interrupts_deferred
from penstock._wire.updates import Change

# Limit on the bytes in an engine's log of updates. The log only grows, because it is not known how far each worker
# has read it. An engine with a longer log is closed before the next epoch: new workers have the current dataset.
_MOST_UPDATES = 64 << 20


class Engines:
    """The live engines of a loader.

    One idle engine is kept: the engine of the last epoch, which has the stream's state.
    """

    def __init__(self) -> None:
        self.live = LiveObjects[Engine]()
        # At most one. A deque, because any thread may put an engine here while another one takes it.
        self._idle: deque[Engine] = deque(maxlen=1)
        self._last: weakref.ref[Engine] | None = None
        self._changing: dict[int, threading.RLock] = {}

    def changing(self) -> threading.RLock:
        """The lock that is held while an epoch starts or the dataset changes: no worker starts during a change."""
        pid = os.getpid()  # a lock for each process: a fork may happen while another thread holds the parent's lock
        return self._changing.get(pid) or self._changing.setdefault(pid, threading.RLock())

    def all(self) -> list[Engine]:
        return list(self.live)

    def held(self, work: Callable[[list[Engine]], object]) -> None:
        """Calls `work(engines)` with this process's open engines, while no other thread can use them."""
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
        return [engine for engine in self.live if engine.is_ours() and not engine.closed]

    def _refuse_inside(self) -> None:
        """Raises RuntimeError if this thread is already using an engine. Waiting for this engine would deadlock."""
        lock: Any = self.changing()  # checked too: an engine that is being created is not in `live` yet
        if lock._is_owned() or any(engine.is_used_here() for engine in self.all()):
            raise RuntimeError(INSIDE)

    def update(self, change: Change, dataset: Any) -> None:
        self._refuse_inside()
        with self.changing():
            # Serialise first: if that fails, the local dataset is unchanged. All engines are held before the local
            # change: a worker that is forked in between would make the change twice.
            engines = [(engine, engine.backend.encode(change)) for engine in self.ours()]

            def make_change() -> None:
                change(dataset)
                for engine, encoded in engines:
                    engine.update(encoded)

            self._hold([engine for engine, _ in engines], make_change)

    def take(self) -> Engine | None:
        """Removes and returns the idle engine, or returns None if there is no usable idle engine."""
        engine = self._take_idle()
        if engine is not None and engine.job.log.end > _MOST_UPDATES:
            engine.close()
        # A forked child has a copy of the idle engine; its workers belong to the parent.
        usable = engine is not None and not engine.closed and engine.is_ours()
        return engine if usable else None

    def _take_idle(self) -> Engine | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def begun(self, engine: Engine) -> None:
        self._last = engine.reference

    def taken_back(self) -> list[Engine]:
        """Takes the engines from iterators that have handed out their last batch but not yet raised StopIteration."""
        if self._idle and len(self.live) == 1:  # between two epochs, in most programs
            return []
        return [engine for engine in self.ours() if engine not in self._idle and engine.take_back()]

    def put(self, engine: Engine) -> None:
        """Keeps an idle engine for the next epoch. If another engine is already idle, closes one of the two."""
        if engine.reference() is None:
            # The garbage collector found the engine in a cycle and has cleared all weak references to it. So the
            # engine is not in `live` any more, and updates would not reach it.
            engine.close()
            return
        stays, spare = engine, self._take_idle()
        if spare is not None and (self._last is None or self._last() is not engine):
            stays, spare = spare, engine
        self._idle.append(stays)
        if spare is not None:
            spare.close()

    def close(self) -> None:
        with interrupts_deferred():
            for engine in self.all():
                engine.close()
        self._idle.clear()  # last, because garbage collection may free a reader, which puts its engine here
