"""torch's semantics, and the sessions of loaders with torch's semantics."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

from torch.utils.data import default_collate

from penstock._engine.engine import Engine
from penstock._feed.base import Begin, Run
from penstock._options import OPTIONS, shown_names
from penstock._resume.reading import known
from penstock._schedule.assigned import Assigned
from penstock._session.measures import Measures
from penstock._session.reading import Reader
from penstock._session.session import Session
from penstock._work.job import Job
from penstock.backends import Backend
from penstock.backends._process.backend import start
from penstock.backends._process.forking import breaks_in_child
from penstock.backends._process.methods import configured_method
from penstock.stats import Stats
from penstock.torch import _private as private
from penstock.torch._collate import with_tensors
from penstock.torch._core import core_of
from penstock.torch._cursor import Cursor
from penstock.torch._sampling import in_arrays
from penstock.torch._worker import Replica, sealed

_SHOWN = [name for name in shown_names() if OPTIONS[name].face.is_theirs]


class TorchSession(Session):
    """The session of a loader with torch's semantics. Copies settings, because it must not refer to the loader."""

    def __init__(self, loader: Any) -> None:
        self._shown: dict[str, Any] = {}
        super().__init__(f"{type(loader).__name__}({type(loader.dataset).__name__})", self._shown.copy)
        self.look(loader)

    def look(self, loader: Any) -> None:
        self.knows_end = not private.is_stream(loader)
        self._shown.update({name: getattr(loader, name) for name in _SHOWN if hasattr(loader, name)})
        backend = "process" if loader.num_workers else "inline"
        self._shown.update(backend=backend, seed=None, one_reader=False, face="penstock.torch")


# Not stored on the loader, because it may be of torch's own class, and libraries read its `vars`.
sessions: weakref.WeakKeyDictionary[Any, TorchSession] = weakref.WeakKeyDictionary()


def session_of(loader: Any) -> TorchSession:
    found = sessions.get(loader)
    if found is None:
        found = sessions[loader] = TorchSession(loader)
    return found


def measures_of(loader: Any) -> Measures:
    seeded = getattr(loader, "_ours", {}).get("seed") is not None
    session: Session = core_of(loader) if seeded else session_of(loader)
    return session.measures


def stats(loader: Any) -> Stats:
    """Returns the figures of a loader that runs on penstock's engine, as `penstock.DataLoader.stats` does.

    After `enable()`, the loader may also be of torch's own class.

    >>> import penstock.torch
    >>> loader = penstock.torch.DataLoader(range(8), batch_size=2)
    >>> batches = list(loader)
    >>> penstock.torch.stats(loader).life.batches
    4
    """
    return measures_of(loader).stats()


class TorchSemantics:
    """torch's rules: each worker has its own steps, its own random generators and its own copy of the dataset.

    Each epoch has its own instance. Instances are not kept, because they refer to the loader. `iterator` is torch's
    iterator, which holds the base seed of the workers.
    """

    max_errors = None

    def __init__(self, loader: Any, iterator: Any, cursor: Cursor) -> None:
        self._loader = loader
        self.timeout: float | None = iterator._timeout or None
        self.deliver = delivery(iterator)
        self.ends_workers = not iterator._persistent_workers
        self._iterator, self._cursor = iterator, cursor

    def job(self) -> Job:
        loader, cursor = self._loader, self._cursor
        resumed = [(known(copy.mark), copy.more) for copy in cursor.copies]
        marks = (loader.snapshot_every_n_steps or 1) if cursor.is_tracked else 0
        return Job(
            dataset=loader.dataset,
            fetch=None,  # the replica fetches by itself
            collate_fn=None if loader.collate_fn is default_collate else with_tensors(loader.collate_fn),
            worker_init_fn=loader.worker_init_fn,
            num_workers=loader.num_workers,
            seed=self._iterator._base_seed,
            drop_last=loader.drop_last,
            batched=private.is_batched(loader),
            cast=getattr(loader, "_cast", None),
            make_runner=partial(Replica, stream=cursor.is_stream, marks=marks, resumed=resumed),
            assigned=True,
        )

    def scheduler(self) -> Assigned:
        loader, workers = self._loader, self._loader.num_workers
        window, once = loader.prefetch_factor * workers, not loader.persistent_workers
        return Assigned(window=window, workers=workers, in_order=loader.in_order, once=once)

    def backend(self, job: Job) -> Backend:
        """Returns a backend with torch's start method.

        If a library would fail in a forked child, a safe start method is used, provided that the job can be pickled.
        """
        context = self._loader.multiprocessing_context
        if context is None or isinstance(context, ModuleType):  # fastai gives `multiprocessing` itself
            context = configured_method()
            if context == "fork" and breaks_in_child():
                with suppress(Exception):  # pickling runs the user's code
                    return start(job, None)
        return start(job, context)

    def manner(self) -> dict[str, Any]:
        return {}  # nothing is bundled, retried or read ahead of the epoch

    def run(self, session: Session) -> Run:
        """Returns a run over the remaining steps. torch has already called `iter()` on the sampler."""
        cursor = self._cursor
        begun = self._iterator._sampler_iter
        if cursor.is_stream:
            keys = cursor.keys(begun)
            if private.is_batched(self._loader):  # a task has the number of samples to read
                keys = map(len, keys)
        else:
            keys = cursor.keys(in_arrays(self._loader._index_sampler, begun))
            if private.is_batched(self._loader):
                keys = map(sealed, keys)
        at = Begin(cursor.progress.steps, frozenset(cursor.progress.beyond))
        # As in torch, an error of the sampler is raised by the call that reads the sampler, although that call reads
        # the keys of a later step.
        return Run(session.runs, 0, keys, None, at, seat=cursor.seat, raises_at_once=True)


def delivery(iterator: Any) -> Callable[[Any], Any] | None:
    """Returns the function that pins a batch's memory, as torch does, or None if batches are not pinned."""
    return partial(private.pin, device=iterator._pin_memory_device) if iterator._pin_memory else None


class TorchReader(Reader):
    """Reads one epoch for an iterator that owns the workers. Stops non-persistent workers when the epoch ends.

    This class has no finalizer, because the iterator has one, and an interrupt in a nested finalizer may be lost.
    """

    def __init__(
        self, session: Session, semantics: TorchSemantics, engine: Engine, run: Run, position: Cursor
    ) -> None:
        super().__init__(session, semantics, engine, run, position)
        self._ends_workers = semantics.ends_workers

    def _leave(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None and self._ends_workers:
            self._session.release(engine)
