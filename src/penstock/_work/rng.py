"""`penstock.rng()`: random numbers that belong to the sample at work, whoever works at it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from numpy.random import Generator  # 15 ms, which only those pay who draw


class Source(Protocol):
    """What can tell which sample or step is at work."""

    def rng(self) -> Generator: ...


class _AtWork(threading.local):
    """What this thread is at. A thread that the dataset starts is at nothing: see the message below."""

    source: Source | None = None


at_work = _AtWork()


def rng() -> Generator:
    """The random generator of the sample that is being made: a function of (seed, epoch, key).

    Call it inside `__getitem__` or a stream's `load`. Whoever makes the sample, in whichever backend, gets
    the same numbers; a second call for the same sample goes on drawing. Where the work is for a whole
    step (`collate_fn`, `__getitems__`, a stream's `__iter__`) it is a function of (seed, epoch, step).
    Making it takes some 8 µs, asking again less than one.

    >>> import penstock
    >>> class Dice(penstock.Dataset[int]):
    ...     def __len__(self) -> int:
    ...         return 4
    ...     def __getitem__(self, key: int) -> int:
    ...         return int(penstock.rng().integers(1, 7))
    >>> [batch.tolist() for batch in penstock.DataLoader(Dice(), batch_size=4, seed=0)]
    [[5, 2, 1, 5]]
    """
    source = at_work.source
    if source is None:
        raise RuntimeError(
            "penstock.rng() belongs to a sample or a step, and no loader is at one in this thread. Call it inside "
            "__getitem__, __getitems__, load, a stream's __iter__ or collate_fn, in the thread that the loader calls "
            "them in (what several threads draw from one generator has no order). In a loader of penstock.torch it "
            "needs seed=: without, random numbers are torch's. Elsewhere: numpy.random.default_rng()."
        )
    return source.rng()


class StepSource:
    """A step whose samples are not made here: a stream's light items are read for it."""

    def __init__(self, seed: int, epoch: int, step: int, use: int) -> None:
        self._of = seed, epoch, step, use
        self._rng: Generator | None = None

    def rng(self) -> Generator:
        if self._rng is None:
            from penstock._work.randomness import generator

            self._rng = generator(*self._of)
        return self._rng


@contextmanager
def working_at(source: Source) -> Iterator[None]:
    """For the block, `rng()` asks this source. A loader may be iterated in another's dataset."""
    outer, at_work.source = at_work.source, source
    try:
        yield
    finally:
        at_work.source = outer
