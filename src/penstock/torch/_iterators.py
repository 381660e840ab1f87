"""The iterators of a torch loader: subclasses of torch's iterators that use penstock's engine.

Everything around the engine is torch's own: the order of random draws when an iterator is created, the warnings, the
name in profiles, and the attributes that frameworks read.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any

import numpy as np
from torch.autograd.profiler import record_function
from torch.utils.data import default_collate

from penstock._engine.engine import Engine
from penstock._fill.cast import FieldMemory
from penstock._measure.meter import Stopwatch
from penstock._session.reading import Batches
from penstock._system.ending import END, never_ends, raises_instead
from penstock._system.interrupts import finalizer, interrupts_deferred
from penstock.torch import _private as private
from penstock.torch._collate import explained, with_tensors
from penstock.torch._core import Core, core_of
from penstock.torch._cursor import Cursor
from penstock.torch._semantics import TorchReader, TorchSemantics, delivery, session_of
from penstock.torch._status import begun_on_penstock


class _Unprofiled(private.BaseIterator):  # type: ignore[misc]
    """Skips torch's own `__next__`, which spends 12 us on a profiler range even if no profiler is active.

    torch's `__next__` is still called in three cases: a profiler is active, the program has replaced this method, or
    the dataset is a stream. For streams, torch's method warns about wrong lengths.
    """

    _cursor: Cursor

    def __next__(self) -> Any:
        theirs = super().__next__
        if self._cursor.is_stream or private.is_profiled() or getattr(theirs, "__func__", None) is not private.NEXT:
            return theirs()
        data = self._next_data()
        self._num_yielded += 1
        return data


class Inline(_Unprofiled, private.InlineIterator):  # type: ignore[misc]
    """The iterator of a loader without workers. Runs torch's own loop in the caller's process."""

    _sampler_iter: Any

    @never_ends
    def __init__(self, loader: Any) -> None:
        cursor = self._cursor = Cursor.of(loader)
        cursor.begin(partial(self._begin, loader), self)
        keys, beyond = cursor.keys(self._sampler_iter), cursor.progress.begin.beyond
        self._sampler_iter = _except(keys, cursor.progress.steps, beyond) if beyond else keys
        self.steps_before = cursor.steps_before
        self._num_yielded += self.steps_before  # SpeechBrain's patched constructor may have skipped some
        self._profile_name = private.profiled_as(private.InlineIterator)
        cast = getattr(loader, "_cast", None)
        self._into = None if cast is None else FieldMemory(cast.root(), np.empty)
        self._deliver = delivery(self)
        session = session_of(loader)
        self._measures = session.measures
        self._measures.begin_epoch(next(session.runs))
        self._stopwatch = Stopwatch(self._measures.meter)
        _begun(loader, cursor)

    __len__ = never_ends(private.BaseIterator.__len__)

    def _begin(self, loader: Any) -> None:
        super().__init__(loader)
        fetcher = self._dataset_fetcher
        fetcher.collate_fn = explained if fetcher.collate_fn is default_collate else with_tensors(fetcher.collate_fn)
        if self._cursor.is_stream:
            # A StopIteration from collate_fn would look like the stream's end.
            fetcher.collate_fn = never_ends(with_tensors(fetcher.collate_fn))
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
            return self._end()
        except Exception:
            cursor.passed_inline(failed=True)
            raise
        try:
            data = self._dataset_fetcher.fetch(index)
        except BaseException as error:
            if cursor.is_stream and isinstance(error, StopIteration):
                return self._end()
            cursor.passed_inline(failed=True)
            raise
        cursor.passed_inline(failed=False)
        rows = len(index) if private.is_batched(self) else 0
        if self._into is not None:
            data = self._into.finish(data, rows)
        stopwatch.deliver(1, rows or 1, 0)
        stopwatch.answer(ready=False)
        return data if self._deliver is None else self._deliver(data)

    def _end(self) -> Any:
        self._cursor.finish(None, {})
        self._measures.end_epoch()
        return END


class Workers(_Unprofiled, private.WorkersIterator):  # type: ignore[misc]
    """The iterator of a loader with workers and torch's semantics.

    Persistent workers live as long as the iterator; other workers live until the end of the epoch.
    """

    _engine: Engine | None = None
    _reader: TorchReader | None = None  # None: closed, or the epoch could not begin

    @never_ends
    def __init__(self, loader: Any) -> None:
        cursor = self._cursor = Cursor.of(loader)
        cursor.begin(partial(private.BaseIterator.__init__, self, loader), self, sampler=False)
        self._profile_name = private.profiled_as(private.WorkersIterator)
        if loader.prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0")
        self._session = session_of(loader)
        self._reset(loader, first_iter=True)

    __len__ = never_ends(private.BaseIterator.__len__)

    @never_ends
    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._reader, engine, session = None, self._engine, self._session
        if engine is not None and (engine.closed or not engine.is_ours()):  # in a forked child, it is the parent's
            engine = None
        if engine is not None:
            if not self._cursor.is_stream and engine.take_back():
                session.measures.end_epoch()
            engine.cancel(self._timeout or None)
        if not first_iter:
            self._cursor = Cursor(loader, before=self._cursor, lives=True)
            self._cursor.restore()
        cursor = self._cursor
        semantics = TorchSemantics(loader, self, cursor)
        session.look(loader)
        if engine is None:
            session.take_back()
            engine = self._engine = session.hire(semantics)
        cursor.begin(partial(private.BaseIterator._reset, self, loader, first_iter))
        self.steps_before = cursor.steps_before
        self._num_yielded += self.steps_before
        run = semantics.run(session)
        session.measures.begin_epoch(run.number)
        self._reader = reader = TorchReader(session, semantics, engine, run, cursor)
        reader.start()
        if cursor.is_tracked:
            loader._engine = weakref.ref(engine)
        self._workers = engine.backend.workers
        error = run.take_error()
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame, which must not refer back to it
        _begun(loader, cursor)

    @raises_instead
    def _next_data(self) -> Any:
        return END if self._reader is None else self._reader.take()

    def _shutdown_workers(self) -> None:
        with interrupts_deferred():
            engine, self._engine, self._reader = self._engine, None, None
            if engine is not None:
                engine.close()

    __del__ = finalizer(_shutdown_workers)


class _ClosedBatches:
    """Replaces the batches of a closed iterator: `next()` raises an error.

    The garbage collector may close an iterator at any time.
    """

    def __next__(self) -> Any:
        raise RuntimeError("This iterator was closed. Call iter(loader) for a new one.")


class Seeded(private.WorkersIterator):  # type: ignore[misc]
    """The iterator of a loader with penstock's semantics (`seed=`)."""

    # Needed by `__del__` if the constructor was interrupted.
    _core: Core | None = None
    _persistent_workers = False

    def __init__(self, loader: Any) -> None:
        self._stream: Any = _ClosedBatches()
        self._persistent_workers = loader.persistent_workers
        kind = private.WorkersIterator if loader.num_workers else private.InlineIterator
        self._profile_name = private.profiled_as(kind)
        self._reset(loader)

    @never_ends
    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._core = core = core_of(loader)
        core.take_back()
        self._stream = _ClosedBatches()  # the previous stream returns its engine
        self._stream = core.begin(Batches)
        self._handles: Any = self._stream._engine.backend.handles
        _begun(loader)

    def __next__(self) -> Any:
        if not private.is_profiled():
            return next(self._stream)
        with record_function(self._profile_name):
            return next(self._stream)

    def __len__(self) -> int:
        assert self._core is not None
        return self._core.length()

    @property
    def _workers(self) -> list[Any]:
        """The most recent worker in each seat, dead or alive."""
        return [self._handles[seat] for seat in sorted(self._handles)]

    def _shutdown_workers(self) -> None:
        with interrupts_deferred():
            self._stream = _ClosedBatches()
            if self._core is not None and self._persistent_workers:
                self._core.close()

    def _drop(self) -> None:
        self._stream = _ClosedBatches()
        core = self._core if self._persistent_workers else None
        if core is not None and (engine := core.engines.take()) is not None:
            engine.close()  # its workers are idle: no other iterator uses them

    __del__ = finalizer(_drop)


def _except(keys: Iterator[Any], first: int, beyond: Collection[int]) -> Iterator[Any]:
    """Returns the keys of the steps from `first` on, without those in `beyond`, which have been handed out."""
    steps = zip(count(first), keys, strict=False)  # not a generator, which an exception of the sampler would end
    return map(itemgetter(1), filter(lambda step: step[0] not in beyond, steps))


def _begun(loader: Any, cursor: Cursor | None = None) -> None:
    begun_on_penstock(loader)
    if cursor is not None and cursor.is_tracked:
        loader._saved, loader._cursor = None, cursor
