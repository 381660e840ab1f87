"""What is read in the caller's process: samplers, and the light items of a stream."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from penstock._at_work import working_at
from penstock._resume.reading import Mark, Reading

if TYPE_CHECKING:
    from numpy.random import Generator


class StepSource:
    """A step whose samples are not made here: a stream's light items are read for it."""

    part: Sequence[int] | None = None

    def __init__(self, seed: int, epoch: int, step: int, use: int) -> None:
        self._of = seed, epoch, step, use
        self._rng: Generator | None = None

    def rng(self) -> Generator:
        if self._rng is None:
            from penstock._work.seeding import generator  # late: see InlineBackend

            self._rng = generator(*self._of)
        return self._rng

    def each(self, keys: Sequence[Any]) -> Iterator[Any]:
        return iter(keys)

    def rows_asked_for(self) -> Sequence[int]:
        return ()


class Drawing:
    """Random numbers for what is read in the caller's process: a function of (seed, epoch, batch).

    So a sampler, or the light items of a stream, are the same on every rank, and again when a run is resumed.
    `borrow` sets the global generators for a block and puts them back.
    """

    def __init__(
        self, seed: int, epoch: int, borrow: Callable[..., AbstractContextManager[object]] | None
    ) -> None:
        self._of = seed, epoch
        self._borrow = borrow

    @contextmanager
    def __call__(self, number: int) -> Iterator[None]:
        from penstock._work.seeding import READ, borrowed_generators  # late: see InlineBackend

        of = *self._of, number, READ
        with (self._borrow or borrowed_generators)(*of), working_at(StepSource(*of)):
            yield


class SamplerReading(Reading):
    """The keys of a sampler that may draw random numbers."""

    def __init__(self, sampler: Iterable[Any], drawing: Drawing) -> None:
        super().__init__(sampler)
        self._drawing = drawing

    def open(self, mark: Mark | None = None) -> bool:
        with self._drawing(-1):
            return super().open(mark)

    def take(self, size: int) -> list[Any]:
        with self._drawing(self.read):
            return super().take(size)


def light_items(
    reading: Reading, mark: Mark | None, batch_size: int | None, drop_last: bool, drawing: Drawing
) -> Iterator[Any]:
    """The light items of a stream from the mark on, in lists of one batch each, read alike on every rank."""
    size = batch_size or 1
    first = 0 if mark is None else mark.read
    for number in itertools.count(first):
        anew = False
        with drawing(number):
            if number == first:
                anew = reading.open(mark)
            items = [] if anew else reading.take(size)
        if anew:
            with drawing(number):
                items = reading.take(size)
        if items and (len(items) == size or not drop_last):
            yield items[0] if batch_size is None else items
        if reading.ended:
            return
