"""The part of a loader that penstock's and torch's semantics share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock._engine.engine import Engine
from penstock._session.engines import Engines
from penstock._session.measures import Measures

if TYPE_CHECKING:
    from penstock._session.semantics import Semantics


class Session:
    """A loader's engines and statistics.

    A session does not refer to the loader, because a reference would keep the workers alive.
    """

    def __init__(self, name: str, settings: Callable[[], Mapping[str, Any]]) -> None:
        self.runs = itertools.count()  # numbers the runs
        # No finalizer closes the engines: it would keep them alive, and an engine may keep the loader alive.
        self.engines = Engines()
        self.measures = Measures(name, settings, self.engines.ours)

    def hire(self, semantics: Semantics) -> Engine:
        """Creates an engine that follows `semantics`. The workers start when an epoch is opened."""
        job = semantics.job()
        backend = semantics.backend(job)
        try:
            engine = Engine(backend, semantics.scheduler(), job, meter=self.measures.meter, **semantics.manner())
        except BaseException:
            backend.close()
            raise
        self.engines.live.add(engine)
        return engine

    def tick(self, engine: Engine) -> None:
        """Updates the measurements.

        The thread that reads from the engine calls this several times a second, between two calls to `engine.next`.
        """
        self.measures.tick()

    knows_end = True  # False for a stream, whose last batch is not known in advance

    def take_back(self) -> None:
        """Ends the epochs of iterators that have handed out their last batch but not yet raised StopIteration.

        About half of all training loops take a fixed number of batches and never call `next()` again.
        """
        free = self.engines.taken_back() if self.knows_end else []
        for engine in free:
            self.release(engine)
        if free:
            self.measures.end_epoch()

    def release(self, engine: Engine) -> None:
        """Closes an engine whose epoch is over. A subclass may keep the engine instead."""
        engine.close()

    @property
    def workers(self) -> list[Any]:
        return [worker for engine in self.engines.all() for worker in engine.backend.workers]

    def close(self) -> None:
        """Stops the workers. A later epoch starts new workers."""
        self.take_back()  # an iterator that has handed out its last batch is at its end, and must not raise
        self.engines.close()
        self.measures.close()
