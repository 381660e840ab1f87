"""The iterators of a loader: one epoch each, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from penstock._engine.engine import Engine
from penstock._engine.handout import Handout
from penstock._feed import Feed
from penstock._feed.base import Run
from penstock._resume.state import State
from penstock._session.foresight import NO_FORESIGHT, NoForesight
from penstock._session.measures import Measures
from penstock._system.ending import END, Instead, raises_instead
from penstock._system.interrupts import finalizer, interrupts_deferred
from penstock._wire.failure import annotate
from penstock._wire.task import Mended
from penstock.batch import Batch


class Told(Protocol):
    """What a reader reports to: `Progress`, or an object that passes it on later."""

    epoch: int

    def passed(self, step: int, mark: bytes | None) -> None: ...
    def finish(self, end: bytes | None) -> None: ...


class Setup(NamedTuple):
    """What a reader needs to know of its loader."""

    feed: Feed
    timeout: float | None
    max_errors: int | None
    release: Callable[[Engine], None]
    length: Callable[[], int]
    deliver: Callable[[Any], Any] | None
    measures: Measures
    tick: Callable[[Engine], None]


class Reader:
    """One epoch, batch by batch. It has its engine to itself until it ends or is dropped."""

    def __init__(self, loader: Setup, engine: Engine, run: Run, told: Told) -> None:
        self._loader = loader
        self.told = told
        self._engine: Engine | None = engine
        self._run = run
        self._plan: Any = run.plan
        self._feed = loader.feed
        self._deliver = loader.deliver
        self._timeout = loader.timeout
        self._meter = loader.measures.meter
        self._yielded = 0
        self.skipped: list[tuple[Any, Exception]] = []
        self.foresight: NoForesight = NO_FORESIGHT

    def _next(self) -> Handout:
        """The next batch; or an Instead, with no task."""
        while True:
            if self._engine is None:
                return _ENDED
            engine, delivery = self._engine, None
            if self._meter.due:  # before a batch is taken: this may call functions of the user's, which may raise
                self._loader.tick(engine)
            try:
                delivery = engine.next(self._timeout, self._run)
                if delivery.task is not None:
                    if delivery.task.step in self._run.repeated:
                        continue
                    self.told.passed(delivery.task.step, delivery.task.mark)
            except BaseException:
                if delivery is not None:  # an interrupt, and the batch is lost: nothing may come after it
                    engine.close()
                raise
            error = delivery.error
            if delivery.mended is not None:
                error = self._note(delivery.mended)
            if error is not None:
                return Handout(None, Instead(error))
            if delivery.task is None:
                self.told.finish(self._run.end)
                try:
                    if not self._run.is_left:  # else the figures are those of the next epoch
                        self._loader.measures.end_epoch()
                finally:
                    self._let_go(cancel=False)
                return _ENDED
            if delivery.rows or delivery.mended is None:
                break
            # Every sample of the batch failed and was skipped: so is the batch.
        self._yielded += 1
        if self._plan is None:
            self._feed.count(self._yielded)
        return delivery

    def _note(self, mended: Mended) -> BaseException | None:
        """Lists what failed on the way to a batch; returns the error that is one too many, if there is one."""
        most, errors = self._loader.max_errors, mended.errors
        self._meter.skipped += len(errors)
        room = len(errors) if most is None else most - len(self.skipped)
        self.skipped += errors[:room]
        if room >= len(errors):
            return None
        why = f"It is raised because max_errors={most}, and as many samples of this epoch have failed before it."
        error: BaseException = errors[room][1]
        return annotate(error, why)

    @property
    def steps_before(self) -> int:
        """The steps of this epoch that were handed out before the state it was resumed from."""
        begin: State | None = getattr(self.told, "begin", None)
        return 0 if begin is None else begin.steps + len(begin.beyond)

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        """The number of batches in the whole epoch."""
        steps = None if self._plan is None else self._plan.steps(self.told.epoch)
        return self._loader.length() if steps is None else steps

    def close(self) -> None:
        """Abandons the epoch. Steps that workers are doing are void and not waited for."""
        with interrupts_deferred():
            self._let_go(cancel=True)

    __del__ = finalizer(close)

    def _let_go(self, cancel: bool) -> None:
        engine, self._engine = getattr(self, "_engine", None), None
        if engine is None:
            return
        if cancel:
            self.foresight.close()
        if engine.closed:
            return
        if cancel:
            engine.cancel(run=self._run)
        if not self._run.is_left:
            self._loader.release(engine)

    def __reduce__(self) -> Any:
        raise TypeError("A loader's iterator cannot be pickled: it has workers. Pickle the loader, or its settings.")


_ENDED = Handout(None, END)


class Batches(Reader):
    def take(self) -> Any:
        """The next batch, or an Instead."""
        data = self._next().data
        return data if self._deliver is None or type(data) is Instead else self._deliver(data)

    __next__ = raises_instead(take)


class IndexedBatches(Reader):
    @raises_instead
    def __next__(self) -> Batch[Any] | Instead:
        task, data, rows, _, mended, _ = self._next()
        if task is None:
            instead: Instead = data
            return instead
        index, pad = self._feed.index(task, rows, mended), self._feed.pad(self._plan, task, mended)
        if self._deliver is not None:
            data = self._deliver(data)
        skipped = [] if mended is None else mended.errors
        return Batch(data, index, task.epoch, task.step, pad, skipped=skipped)
