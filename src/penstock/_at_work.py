"""Records which sample or step each thread is computing, for `penstock.rng()` and `penstock.get_worker_info()`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.random import Generator  # the import takes 15 ms, so only programs that draw numbers do it

    from penstock._measure.cached import CacheCounts


class Source:
    """The sample or step that a thread is computing."""

    part: Sequence[int] | None = None  # the rows that a nested dataset was asked for; None: all rows of the step

    @property
    def cache(self) -> CacheCounts | None:
        return None

    def rng(self) -> Generator:
        raise NotImplementedError

    def rng_of(self, key: Any) -> Generator:
        """Returns a new random number generator for the sample with this key."""
        raise NotImplementedError

    def each(self, keys: Sequence[Any]) -> Iterator[Any]:
        return iter(keys)

    def rows_asked_for(self) -> Sequence[int]:
        return ()


class _AtWork(threading.local):
    """Each thread's current `Source`. In threads that a dataset has started, it is None, and `rng()` raises."""

    source: Source | None = None


at_work = _AtWork()


@contextmanager
def among(rows: Sequence[int], n: int) -> Iterator[None]:
    """Inside the `with` block, `each()` treats `rows` as the only rows of the step, which has `n` rows in total."""
    source = at_work.source
    if source is None:
        yield
        return
    outer, asked = source.part, source.rows_asked_for()
    # If the counts differ, the dataset was not asked for the rows of the step.
    source.part = [asked[row] for row in rows] if len(asked) == n else ()
    try:
        yield
    finally:
        source.part = outer


class _Parts(Source):
    """A source for samples with parts, such as packed documents. `rng()` depends on the key of the current part."""

    def __init__(self, keys: Sequence[Any], outer: Source) -> None:
        self._keys, self._outer = keys, outer
        self._now: int | None = None  # index of the current key, while a dataset loops over them
        self._rngs: dict[int, Generator] = {}

    @property
    def cache(self) -> CacheCounts | None:
        return self._outer.cache

    def rng(self) -> Generator:
        if self._now is None:
            return self._outer.rng()
        if self._now not in self._rngs:
            self._rngs[self._now] = self._outer.rng_of(self._keys[self._now])
        return self._rngs[self._now]

    def rng_of(self, key: Any) -> Generator:
        return self._outer.rng_of(key)

    def each(self, keys: Sequence[Any]) -> Iterator[Any]:
        rows = self.rows_asked_for()
        if self._now is not None or len(keys) != len(rows):
            yield from keys
            return
        try:
            for self._now, key in zip(rows, keys, strict=True):
                yield key
        finally:
            self._now = None

    def rows_asked_for(self) -> Sequence[int]:
        return range(len(self._keys)) if self.part is None else self.part


@contextmanager
def parts_of_samples(keys: Sequence[Any]) -> Iterator[None]:
    """Inside the `with` block, `rng()` and `each()` work on parts of samples. `keys` are the parts' keys."""
    if at_work.source is None:
        yield
        return
    with working_at(_Parts(keys, at_work.source)):
        yield


@contextmanager
def working_at(source: Source) -> Iterator[None]:
    """Makes `rng()` use this source inside the `with` block. Blocks can be nested."""
    outer, at_work.source = at_work.source, source
    try:
        yield
    finally:
        at_work.source = outer


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Describes one worker.

    `id` is a number from 0 to `num_workers - 1`, where `num_workers` is the number of workers that the loader started
    with. Workers that are added while the loader runs may have higher ids. A worker that replaces a crashed one gets
    the same id. `seed` is the loader's seed plus the id. `dataset` is the worker's copy of the dataset (threads share
    one object).

    >>> import penstock
    >>> data = penstock.dataset(range(4)).map(lambda number: penstock.get_worker_info().num_workers)
    >>> with penstock.DataLoader(data, num_workers=2) as loader:
    ...     [batch.item() for batch in loader]
    [2, 2, 2, 2]
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


# With backend="thread" a worker is one thread of this process. In a worker process, all threads belong to the one
# worker, including those that the dataset starts.
_of_thread = threading.local()
_of_process: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Returns the `WorkerInfo` of the calling worker, or None outside of workers and with `num_workers=0`.

    >>> import penstock
    >>> penstock.get_worker_info() is None
    True
    """
    info: WorkerInfo | None = getattr(_of_thread, "info", None)
    return _of_process if info is None else info


def is_worker_process() -> bool:
    return _of_process is not None


def set_worker_info(info: WorkerInfo | None, *, of_process: bool) -> None:
    global _of_process
    if of_process:
        _of_process, _of_thread.info = info, None  # the thread that forked this process may be a worker itself
    else:
        _of_thread.info = info
