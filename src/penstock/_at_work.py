"""What the calling thread is working on: the sample or step that `penstock.rng()` asks for, and its worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.random import Generator  # 15 ms, which only those pay who draw


class Source(Protocol):
    """What can tell which sample or step is at work. `part`: only these rows of it are asked for."""

    part: Sequence[int] | None

    def rng(self) -> Generator: ...
    def each(self, keys: Sequence[Any]) -> Iterator[Any]: ...
    def rows_asked_for(self) -> Sequence[int]: ...


class _AtWork(threading.local):
    """What this thread is at. A thread that the dataset starts is at nothing: see the message below."""

    source: Source | None = None


at_work = _AtWork()


@contextmanager
def among(rows: Sequence[int], n: int) -> Iterator[None]:
    """For the block, `each(keys)` is about these rows of the n that a dataset was asked for."""
    source = at_work.source
    if source is None:
        yield
        return
    outer, asked = source.part, source.rows_asked_for()
    # Otherwise the n are not the step's, and no part of them is.
    source.part = [asked[row] for row in rows] if len(asked) == n else ()
    try:
        yield
    finally:
        source.part = outer


@contextmanager
def working_at(source: Source) -> Iterator[None]:
    """For the block, `rng()` asks this source. A loader may be iterated in another's dataset."""
    outer, at_work.source = at_work.source, source
    try:
        yield
    finally:
        at_work.source = outer


# With backend="thread" several workers are in one process, and each is one thread. A worker process is
# one worker with all its threads, also those that the dataset starts.
_of_thread = threading.local()
_of_process: Any = None


def current_worker() -> Any:
    """The WorkerInfo of the worker that is calling; None outside of workers."""
    info = getattr(_of_thread, "info", None)
    return _of_process if info is None else info


def is_worker_process() -> bool:
    """Whether this process is a worker, and nothing else."""
    return _of_process is not None


def set_worker_info(info: Any, *, of_process: bool) -> None:
    global _of_process
    if of_process:
        _of_process = info
    else:
        _of_thread.info = info
