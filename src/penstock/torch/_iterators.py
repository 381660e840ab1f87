"""The iterators of a torch loader: subclasses of torch's iterators, with penstock's engine inside.

Everything around the engine stays torch's own: the order of random draws when an iterator is made, the warnings, the
name in a profile, and the attributes that frameworks look for.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from torch.autograd.profiler import record_function
from torch.utils.data import default_collate

from penstock._engine.engine import Engine
from penstock._feed.base import Begin, Run
from penstock._fill.cast import Into
from penstock._measure.meter import Meter, Stopwatch
from penstock._resume.reading import known
from penstock._schedule.assigned import Assigned
from penstock._session.measures import Measures
from penstock._system.ending import END, Instead, never_ends, raises_instead
from penstock._system.interrupts import finalizer, interrupts_deferred
from penstock._work.job import Job
from penstock.backends._process.backend import ProcessBackend, start
from penstock.backends._process.forking import breaks_in_child
from penstock.backends._process.methods import choose_method, configured_method, is_chosen
from penstock.torch import _private as private
from penstock.torch._collate import explained
from penstock.torch._core import Core, core_of
from penstock.torch._cursor import Cursor
from penstock.torch._measured import Measured, measured
from penstock.torch._status import begun_on_penstock
from penstock.torch._worker import Replica, sealed


class Inline(private.InlineIterator):  # type: ignore[misc]
    """Without workers: torch's plain loop."""

    @property
    def steps_before(self) -> int:
        """See `Reader.steps_before`."""
        return _steps_before(self._cursor)

    @never_ends
    def __init__(self, loader: Any) -> None:
        cursor = self._cursor = Cursor.of(loader)
        cursor.begin(partial(self._begin, loader), self)
        self._sampler_iter = cursor.keys(self)
        self._num_yielded += cursor.progress.steps  # SpeechBrain's patched constructor may have skipped some
        self._profile_name = private.profiled_as(private.InlineIterator)
        cast = getattr(loader, "_cast", None)
        self._into = None if cast is None else Into(cast.root(), np.empty)
        self._deliver = partial(private.pin, device=self._pin_memory_device) if self._pin_memory else None
        self._measures = measured(loader).measures
        self._measures.begin_epoch(next(measured(loader).runs))
        self._stopwatch = Stopwatch(self._measures.meter)
        _begun(loader, cursor)

    __len__ = never_ends(private.BaseIterator.__len__)

    def _begin(self, loader: Any) -> None:
        super().__init__(loader)
        fetcher = self._dataset_fetcher
        if fetcher.collate_fn is default_collate:
            fetcher.collate_fn = explained
        if self._cursor.is_stream:
            fetcher.collate_fn = never_ends(fetcher.collate_fn)  # it is called where the stream may end
            self._cursor.open_stream(fetcher, getattr(loader, "batch_size", None) or 1)

    @raises_instead
    def _next_data(self) -> Any:
        cursor, stopwatch = self._cursor, self._stopwatch
        if self._measures.meter.due:
            self._measures.tick()
        stopwatch.ask()
        try:
            index = self._next_index()
        except StopIteration:
            cursor.end()
            self._measures.end_epoch()
            return END
        except Exception:
            cursor.passed_inline(failed=True)
            raise
        ended, failed = False, True
        try:
            data = self._dataset_fetcher.fetch(index)
            failed = False
        except StopIteration:
            if not cursor.is_stream:
                raise
            ended = True
            self._measures.end_epoch()
            return END
        finally:
            cursor.end() if ended else cursor.passed_inline(failed=failed)
        rows = len(index) if private.is_batched(self) else 0
        if self._into is not None:
            data = self._into.finish(data, rows)
        stopwatch.deliver(1, rows or 1, 0)
        stopwatch.answer(ready=False)
        return data if self._deliver is None else self._deliver(data)


class Workers(private.WorkersIterator):  # type: ignore[misc]
    """torch's semantics: each worker has its own steps, seeds and copy of the dataset."""

    _measures: Measures

    @property
    def steps_before(self) -> int:
        """See `Reader.steps_before`."""
        return _steps_before(self._cursor)

    @never_ends
    def __init__(self, loader: Any) -> None:
        self._engine: Engine | None = None
        self._run: Run | None = None
        cursor = self._cursor = Cursor.of(loader)
        cursor.begin(partial(private.BaseIterator.__init__, self, loader), self, sampler=False)
        self._deliver = partial(private.pin, device=self._pin_memory_device) if self._pin_memory else None
        self._profile_name = private.profiled_as(private.WorkersIterator)
        if loader.prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0")
        self._runs = measured(loader).runs
        self._reset(loader, first_iter=True)

    __len__ = never_ends(private.BaseIterator.__len__)

    @never_ends
    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._run, engine = None, self._engine
        if engine is not None and (engine.closed or not engine.is_ours()):  # the parent's, in a forked child
            engine = None
        if engine is not None:
            if not self._cursor.is_stream and engine.take_back():
                self._measures.end_epoch()
            engine.cancel(self._timeout or None)
        if not first_iter:
            self._cursor = Cursor(loader, before=self._cursor, lives=True)
            self._cursor.restore()
        cursor, figures = self._cursor, measured(loader)
        figures.look(loader)
        self._measures = figures.measures
        if engine is None:
            if not cursor.is_stream:
                _end_those_that_are_done(figures)
            engine = self._engine = _new_engine(loader, self._base_seed, cursor, self._measures.meter)
            figures.engines.add(engine)
        cursor.begin(partial(private.BaseIterator._reset, self, loader, first_iter))
        steps, beyond = cursor.progress.steps, cursor.progress.beyond
        self._num_yielded += steps + len(beyond)
        keys = cursor.keys(self)
        if private.is_batched(loader):  # a task of a stream has the number of samples to read
            keys = map(len if cursor.is_stream else sealed, keys)
        at = Begin(steps, frozenset(beyond))
        run = self._run = Run(self._runs, 0, keys, None, at, seat=cursor.seat)
        self._measures.begin_epoch(run.number)
        engine.open(run)
        self._measures.started(engine)
        if cursor.is_tracked:
            loader._engine = weakref.ref(engine)
        self._workers = engine.backend.workers
        error, run.error = run.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, which must not hold it in turn
        _begun(loader, cursor)

    @raises_instead
    def _next_data(self) -> Any:
        if self._engine is None or self._run is None:  # closed, or the epoch could not begin
            return END
        if self._measures.meter.due:
            self._measures.tick()
        engine, run, delivery = self._engine, self._run, None
        try:
            delivery = engine.next(self._timeout or None, run)
            if delivery.task is not None:
                self._cursor.passed(delivery.task, delivery.worker)
        except BaseException:
            if delivery is not None:  # an interrupt has lost the batch: none may follow it
                engine.close()
            raise
        # Like torch, raises from the call in which the sampler was asked, although that was for a later step.
        error, run.error = run.error, None
        if error is None:
            error = delivery.error
        if error is not None:
            return Instead(error)
        if delivery.task is None:
            self._cursor.end(run.ends.items())
            if not run.is_left:  # else the figures are those of the next epoch
                self._measures.end_epoch()
            if not self._persistent_workers:
                self._shutdown_workers()
            return END
        return delivery.data if self._deliver is None else self._deliver(delivery.data)

    def _shutdown_workers(self) -> None:
        with interrupts_deferred():
            engine, self._engine = getattr(self, "_engine", None), None
            if engine is not None:
                engine.close()

    __del__ = finalizer(_shutdown_workers)


def _steps_before(cursor: Cursor) -> int:
    begin = cursor.progress.begin
    return begin.steps + len(begin.beyond)


class _Closed:
    """In the place of the batches of a closed iterator. The garbage collector may close it at any moment."""

    def __next__(self) -> Any:
        raise RuntimeError("This iterator was closed. Call iter(loader) for a new one.")


class Seeded(private.WorkersIterator):  # type: ignore[misc]
    """penstock's semantics (`seed=`): a batch does not depend on the worker that makes it."""

    # For an iterator whose constructor was interrupted.
    _core: Core | None = None
    _persistent_workers = False

    def __init__(self, loader: Any) -> None:
        self._stream: Any = _Closed()
        self._persistent_workers = loader.persistent_workers
        kind = private.WorkersIterator if loader.num_workers else private.InlineIterator
        self._profile_name = private.profiled_as(kind)
        self._reset(loader)

    @never_ends
    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._core = core = core_of(loader)
        core._take_back()
        self._stream = _Closed()  # gives its engine back
        self._stream = iter(core)
        self._handles: Any = self._stream._engine.backend.handles
        _begun(loader)

    def __next__(self) -> Any:
        with record_function(self._profile_name):
            return next(self._stream)

    def __len__(self) -> int:
        assert self._core is not None
        return len(self._core)

    @property
    def _workers(self) -> list[Any]:
        """The last worker of each seat, dead or alive."""
        return [self._handles[seat] for seat in sorted(self._handles)]

    def _shutdown_workers(self) -> None:
        with interrupts_deferred():
            self._stream = _Closed()
            if self._core is not None and self._persistent_workers:
                self._core.close()

    def _drop(self) -> None:
        self._stream = _Closed()
        core = self._core if self._persistent_workers else None
        if core is not None and (engine := core._engines.take()) is not None:
            engine.close()  # its workers are idle: no other iterator uses them

    __del__ = finalizer(_drop)


def _end_those_that_are_done(figures: Measured) -> None:
    """Ends the workers of earlier iterators that have handed out their last batch, and were not asked for the end."""
    done = [engine for engine in tuple(figures.engines) if engine.is_ours() and engine.take_back()]
    for engine in done:
        engine.close()
    if done:
        figures.measures.end_epoch()


def _begun(loader: Any, cursor: Cursor | None = None) -> None:
    begun_on_penstock(loader)
    if cursor is not None and cursor.is_tracked:
        loader._saved, loader._cursor = None, cursor


def _started(job: Job, context: Any) -> ProcessBackend:
    """A backend with torch's default start method: a program that works with torch's loader works here unchanged.

    Except if a forked worker could not use what the program uses: then a safe method, if the dataset can be sent.
    """
    if context is None or isinstance(context, ModuleType):  # fastai gives `multiprocessing` itself
        context = configured_method()
        if context == "fork" and breaks_in_child():
            with suppress(Exception):  # pickling runs the user's code
                return start(job, choose_method(None), explicit=False)
    return start(job, choose_method(context), explicit=is_chosen(context))


def _new_engine(loader: Any, base_seed: int, cursor: Cursor, meter: Meter) -> Engine:
    workers = loader.num_workers
    resumed = [(known(copy.mark), copy.more) for copy in cursor.copies]
    marks = (loader.snapshot_every_n_steps or 1) if cursor.is_tracked else 0
    job = Job(
        dataset=loader.dataset,
        fetch=None,  # the replica fetches by itself
        batched=private.is_batched(loader),
        collate_fn=None if loader.collate_fn is default_collate else loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        num_workers=workers,
        seed=base_seed,
        drop_last=loader.drop_last,
        cast=getattr(loader, "_cast", None),
        make_runner=partial(Replica, stream=cursor.is_stream, marks=marks, resumed=resumed),
        assigned=True,
    )
    backend = _started(job, loader.multiprocessing_context)
    try:
        window, once = loader.prefetch_factor * workers, not loader.persistent_workers
        scheduler = Assigned(window=window, workers=workers, in_order=loader.in_order, once=once)
        return Engine(backend, scheduler, job, retries=0, look_ahead=False, watch=backend.has_dead, meter=meter)
    except BaseException:
        backend.close()
        raise
