"""The engines of a loader: made from its settings, kept between epochs, changed and closed together."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from penstock._epoch.engine import Engine
from penstock._epoch.turn import INSIDE
from penstock._feed import Feed
from penstock._options import Options
from penstock._schedule.onereader import OneReader
from penstock._schedule.scheduler import Scheduler
from penstock._wire.task import MOST_STEPS
from penstock._wire.updates import Change
from penstock._work.runner import Job
from penstock.backends import make

# Bytes of updates: they are kept for workers that still have to read them, and how far each worker is, is not known.
# An engine that has more is not used for another epoch: new workers have the dataset as it is.
_MOST_UPDATES = 64 << 20


class Engines:
    """At most one engine is idle and waits for the next epoch.

    If there are several, it is the one that began the last epoch: its worker has the state that a stream keeps.
    """

    def __init__(self) -> None:
        self.live: weakref.WeakSet[Engine] = weakref.WeakSet()
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
        """The engines that are alive. While they are counted, another thread may begin an epoch on a new one."""
        while True:
            with suppress(RuntimeError):  # "Set changed size during iteration"
                return list(self.live)

    @contextmanager
    def held(self, prepare: Callable[[Engine], Any] = lambda engine: None) -> Iterator[list[tuple[Engine, Any]]]:
        """All engines of this process, each with what `prepare` made of it before any of them was held."""
        if any(engine.is_used_here() for engine in self.all()):  # before anything is waited for
            raise RuntimeError(INSIDE)
        with self.changing(), ExitStack() as held:
            engines = [engine for engine in self.all() if engine.is_ours() and not engine.closed]
            prepared = [(engine, prepare(engine)) for engine in engines]
            for engine in engines:
                held.enter_context(engine.held())
            yield prepared

    def update(self, change: Change, dataset: Any) -> None:
        """Changes the dataset, here and in all workers."""
        # Serialised first: if that fails, the local dataset is unchanged. And all engines are held before the local
        # change: a worker that was forked in between would make the change twice.
        with self.held(lambda engine: engine.backend.encode(change)) as engines:
            change(dataset)
            for engine, encoded in engines:
                engine.update(encoded)

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
        for engine in self.all():
            engine.close()
        self._idle = None  # not before: a collection of garbage may free a reader, which puts its engine here


def workers(num_workers: int, feed: Feed) -> int:
    """How many workers are of use: a stream has one reader."""
    return min(num_workers, 1) if feed.one_reader else num_workers


def window(num_workers: int, options: Options, feed: Feed) -> int:
    """How many tasks may be ahead of the caller."""
    return max(1, workers(num_workers, feed) * (options.prefetch_factor or 1))


def new_engine(job: Job, options: Options, feed: Feed) -> Engine:
    ahead, retries, in_order = window(options.num_workers, options, feed), options.retries, options.in_order
    scheduler: Scheduler
    if feed.one_reader and options.num_workers:
        scheduler = OneReader(window=ahead, retries=retries, in_order=in_order)
    else:
        size = max(1, job.num_workers)
        scheduler = Scheduler(window=ahead, workers=size, retries=retries, in_order=in_order, room=MOST_STEPS)
    return Engine(
        make(options.backend, job, options.multiprocessing_context),
        scheduler,
        job,
        retries=retries,
        # A step must not be late because others are done with it, nor wait for others once it is done.
        bundles=options.timeout == 0 and in_order and not feed.one_reader,
        look_ahead=options.persistent_workers,
    )
