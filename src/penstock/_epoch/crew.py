"""The crew of a loader: an engine with its workers, made from the settings and kept between epochs."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import ExitStack
from typing import Any

from penstock._epoch.engine import Engine
from penstock._options import Options
from penstock._schedule import Scheduler
from penstock._wire.task import MOST_STEPS, PULLED, Kind
from penstock._wire.updates import Change
from penstock._work.job import Job
from penstock.backends._base import Backend
from penstock.backends._inline import InlineBackend

# Bytes of updates, which are kept for workers that are still to read them, and nobody knows how far each is. A crew
# that has more is not used for another epoch: new workers have the dataset as it is.
_MOST_UPDATES = 64 << 20


class Crews:
    """The engines of one loader: at most one is idle and waits for the next epoch.

    If there are several, it is the one that the last epoch was begun on: its worker has what a stream keeps.
    """

    def __init__(self) -> None:
        self.live: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._idle: Engine | None = None
        self._last: weakref.ref[Engine] | None = None
        self._changing: dict[int, threading.RLock] = {}

    def changing(self) -> threading.RLock:
        """For whoever begins an epoch or changes the dataset: no worker is started with half of a change.

        By process: a child may have been forked while another thread had it.
        """
        return self._changing.setdefault(os.getpid(), threading.RLock())

    def update(self, change: Change, dataset: Any) -> None:
        """Changes the dataset, here and in all workers."""
        if any(engine.is_in_use_here() for engine in tuple(self.live)):  # before anything is waited for
            raise RuntimeError(
                "The loader cannot be changed from inside of its own next() or update(), as by a signal handler."
            )
        with self.changing(), ExitStack() as held:
            engines = [engine for engine in tuple(self.live) if engine.is_ours() and not engine.closed]
            # First: what cannot be sent changes nothing here either.
            sent = [engine.packed(change) for engine in engines]
            # A worker that was forked in between would make the change twice.
            for engine in engines:
                held.enter_context(engine.held())
            change(dataset)
            for engine, packed in zip(engines, sent, strict=True):
                engine.update(packed)

    def take(self) -> Engine | None:
        engine, self._idle = self._idle, None
        if engine is not None and engine.job.log.end > _MOST_UPDATES:
            engine.close()
        # A forked child has a copy of the idle engine; its workers belong to the parent.
        usable = engine is not None and not engine.closed and engine.is_ours()
        return engine if usable else None

    def begun(self, engine: Engine) -> None:
        """An epoch was begun on it."""
        self._last = weakref.ref(engine)

    def put(self, engine: Engine) -> None:
        spare: Engine | None = engine
        if self._idle is None or (self._last is not None and self._last() is engine):
            spare, self._idle = self._idle, engine
        if spare is not None:
            spare.close()

    def close(self) -> None:
        for engine in tuple(self.live):
            engine.close()
        self._idle = None  # not before: a collection of garbage may free a reader, which puts its engine here


def workers(options: Options, kind: Kind) -> int:
    """How many are of use: a stream that a worker reads has one reader."""
    return min(options.num_workers, 1) if kind in PULLED else options.num_workers


def window(options: Options, kind: Kind) -> int:
    """How many tasks may be ahead of the caller."""
    return max(1, workers(options, kind) * (options.prefetch_factor or 1))


def new_engine(job: Job, options: Options, kind: Kind) -> Engine:
    scheduler = Scheduler(
        window=window(options, kind),
        workers=max(1, job.num_workers),
        retries=options.retries,
        in_order=options.in_order,
        room=MOST_STEPS,
    )
    return Engine(
        _new_backend(job, options),
        scheduler,
        job,
        retries=options.retries,
        # A step must not be late because others are done with it, or not be handed out as soon as it is done.
        bundles=options.timeout == 0 and options.in_order,
        # Threads share the dataset with the caller, who may change it before the next epoch.
        look_ahead=options.persistent_workers and options.backend == "process",
    )


def _new_backend(job: Job, options: Options) -> Backend:
    if options.backend == "inline":
        return InlineBackend(job)
    if options.backend == "thread":
        from penstock.backends._threads import ThreadBackend

        return ThreadBackend(job)
    from penstock.backends._process.backend import ProcessBackend
    from penstock.backends._process.methods import choose_method

    method = choose_method(options.multiprocessing_context)
    return ProcessBackend(job, method, explicit=options.multiprocessing_context is not None)
