"""The loop behind every `next()`, and the iterators with penstock's semantics. Each iterator reads one epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock._engine.engine import Engine
from penstock._engine.result import StepResult
from penstock._feed.base import Run
from penstock._resume.commits import Commits
from penstock._resume.state import State
from penstock._system.ending import END, NoBatch, raises_instead
from penstock._system.interrupts import finalizer, interrupts_deferred
from penstock._system.warnings import warn_caller
from penstock._wire.failure import annotate, safe_text
from penstock._wire.task import Mended, shorten_key
from penstock.batch import Batch
from penstock.source._nested import method_of

if TYPE_CHECKING:
    from penstock._session.foresight import Foresight
    from penstock._session.seeded import SeedSession
    from penstock._session.semantics import Position, Semantics
    from penstock._session.session import Session


_MANY = 16  # a warning is given if every sample of an epoch's first 16 batches has failed


class Reader:
    """The loop behind every `next()`. A reader keeps its engine until the epoch ends or the reader is dropped."""

    # Called with the number of batches that were handed out, if the dataset is a stream.
    _count: Callable[[int], None] | None = None

    # The semantics are not kept: torch's refer to the loader.
    def __init__(self, session: Session, semantics: Semantics, engine: Engine, run: Run, position: Position) -> None:
        self._session = session
        self.position = position
        self._engine: Engine | None = engine
        self._run = run
        self._deliver = semantics.deliver
        self._timeout = semantics.timeout
        self._max_errors = semantics.max_errors
        self._meter = session.measures.meter
        # Held while a step is counted, so that no change redraws a step that was already taken from the engine.
        self.passing: Any = threading.RLock()
        self._yielded = 0
        self._lost = 0  # batches whose samples all failed
        self._has_given = run.begins_later  # True after any other batch, and in a run that begins at a later step
        self.skipped: list[tuple[Any, Exception]] = []

    def start(self) -> None:
        """Opens the epoch on the engine. The engine starts the workers if they are not running yet."""
        assert self._engine is not None
        self._engine.open(self._run)
        self._session.measures.started(self._engine)

    def take(self) -> Any:
        """Returns the next batch, converted for the caller, or a NoBatch if the epoch is over or a batch failed."""
        data = self._next().data
        return data if self._deliver is None or type(data) is NoBatch else self._deliver(data)

    def _next(self) -> StepResult:
        """Returns the next batch and its task.

        If the epoch is over or a batch failed, returns a NoBatch, and None in place of the task.
        """
        while True:
            run = self._run
            engine, delivery = self._engine, None
            if engine is None:
                return _ENDED
            if self._meter.due:  # before a batch is taken: this may call the user's functions, which may raise
                self._session.tick(engine)
            try:
                delivery = engine.next(self._timeout, run)
                task = delivery.task
                if task is not None:
                    with self.passing:
                        # Another thread may have changed what comes next: see `redraw`.
                        if task.run != self._run.number or task.step in run.repeated:
                            continue
                        self.position.passed(task.step, task.mark, delivery.worker)
            except BaseException:
                if delivery is not None:  # an interrupt: the batch is lost, so no later batch may be handed out
                    engine.close()
                raise
            error = delivery.error
            if delivery.mended is not None:
                error = self._note(delivery.mended)
            if run.error is not None and run.raises_at_once:
                error = run.take_error()
            if error is not None:
                return StepResult(None, NoBatch(error))
            if task is None:
                self.position.finish(run.end, run.ends)
                try:
                    if not run.is_left:  # otherwise the figures are already those of the next epoch
                        self._session.measures.end_epoch()
                finally:
                    self._leave()
                if 0 < self._lost < _MANY and not self._has_given:
                    self._warn_of_loss("")
                return _ENDED
            if delivery.rows or delivery.mended is None:
                break
            # Every sample of the batch failed and was skipped, so the batch is skipped too.
            self._lost += 1
            if self._lost == _MANY and not self._has_given:
                self._warn_of_loss(" so far")
        self._has_given = True
        if self._count is not None:
            self._yielded += 1
            self._count(self._yielded)
        return delivery

    def _warn_of_loss(self, until: str) -> None:
        key, error = self.skipped[0]
        warn_caller(
            f"Every sample of epoch {self._run.epoch}{until} has failed and was skipped ({len(self.skipped):,}, with "
            f'on_error="skip"). Sample {shorten_key(key, str)} raised {type(error).__name__}: '
            f"{safe_text(error)[:300]}. loader.skipped lists the errors."
        )

    def _note(self, mended: Mended) -> BaseException | None:
        """Adds a batch's failed samples to `skipped`. Returns the first error beyond `max_errors`, or None."""
        most, errors = self._max_errors, mended.errors
        self._meter.troubles.mine().skipped += len(errors)
        room = len(errors) if most is None else most - len(self.skipped)
        self.skipped += errors[:room]
        if room >= len(errors):
            return None
        why = f"It is raised because max_errors={most}: before it, that many samples of this epoch had failed."
        error: BaseException = errors[room][1]
        return annotate(error, why)

    def _leave(self) -> None:
        raise NotImplementedError


class SeedReader(Reader):
    _session: SeedSession
    _foresight: Foresight | None = None

    def __init__(self, session: SeedSession, engine: Engine, run: Run, position: Position) -> None:
        super().__init__(session, session, engine, run, position)
        self._feed = session.feed
        self._plan: Any = run.plan
        if run.plan is None:
            self._count = session.feed.count
        self._foresight = session.foresight

    @property
    def steps_before(self) -> int:
        """The number of steps handed out before the epoch was resumed, or 0 if it was not resumed."""
        begin: State | None = getattr(self.position, "begin", None)
        return 0 if begin is None else begin.steps + len(begin.beyond)

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        steps = None if self._plan is None else self._plan.steps(self._run.epoch)
        return self._session.length() if steps is None else steps

    def redraw(self, run: Run) -> None:
        """Continues the epoch with other keys. Call this inside `Engines.held`, while holding the lock `passing`."""
        if self._engine is not None:
            self._run, self._plan, self._foresight = run, run.plan, self._session.foresight
            self._engine.reopen(run)

    def is_on(self, engine: Engine) -> bool:
        return self._engine is engine

    def close(self) -> None:
        """Abandons the epoch without waiting for steps in progress."""
        with interrupts_deferred():
            self._let_go(cancel=True)

    __del__ = finalizer(close)

    def _leave(self) -> None:
        self._let_go(cancel=False)

    def _let_go(self, cancel: bool) -> None:
        engine, self._engine = getattr(self, "_engine", None), None
        if engine is None:
            return
        if cancel and self._foresight is not None:
            self._foresight.close()
        if engine.closed:
            return
        if cancel:
            engine.cancel(run=self._run)
        if not self._run.is_left:
            self._session.release(engine)

    def __reduce__(self) -> Any:
        raise TypeError("A loader's iterator cannot be pickled: it has workers. Pickle the loader, or its settings.")


_ENDED = StepResult(None, END)


class Batches(SeedReader):
    __next__ = raises_instead(Reader.take)


class IndexedBatches(SeedReader):
    def __init__(self, session: SeedSession, engine: Engine, run: Run, position: Position) -> None:
        super().__init__(session, engine, run, position)
        self._names = method_of(session.dataset, "names_of")

    def _batch(self) -> Batch[Any] | NoBatch:
        task, data, rows, _, mended, _ = self._next()
        if task is None:
            instead: NoBatch = data
            return instead
        index, pad = self._feed.index(task, rows, mended), self._feed.pad(self._plan, task, mended)
        if self._deliver is not None:
            data = self._deliver(data)
        skipped = [] if mended is None else mended.errors
        sources = None if self._names is None else self._names(task.keys if mended is None else mended.keys)
        at = {"epoch": task.epoch, "step": task.step, "pad": pad}
        return self._session.made(data, rows, index=index, **at, skipped=skipped, sources=sources)

    __next__ = raises_instead(_batch)


class CommitBatches(IndexedBatches):
    """An iterator over batches that stay open until they are committed."""

    position: Commits

    def __init__(self, session: SeedSession, engine: Engine, run: Run, position: Commits) -> None:
        super().__init__(session, engine, run, position)
        position.run = run

    def redraw(self, run: Run) -> None:
        super().redraw(run)
        self.position.run = run

    @raises_instead
    def __next__(self) -> Batch[Any] | NoBatch:
        batch = self._batch()
        if isinstance(batch, NoBatch):
            self.position.settle()
        else:
            self.position.hold()
            object.__setattr__(batch, "_pass", self.position.number)
        return batch
