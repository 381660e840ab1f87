"""A run: one epoch being read, its steps drawn from the plan one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from penstock._at_work import StepSource, working_at
from penstock._resume.marks import taken
from penstock._resume.reading import Mark, Reading
from penstock._wire.failure import annotate
from penstock._wire.task import PULLED, Kind, Task
from penstock.plan import Draw, Plan


class Run:
    """The steps of one epoch, in order. Once one cannot be drawn there are no more.

    `keys` begins at `step`. Steps in `skip` were handed out before and are passed over: here, or in the `again` of a
    stream that cannot leave them out, by whoever they are delivered to. `reading` is what the keys are read from,
    where that may have a state. `seat` is whose the first step is, where that matters.
    """

    def __init__(
        self,
        numbers: Iterator[int],
        epoch: int,
        kind: Kind,
        keys: Iterator[Any],
        plan: Plan | None,
        step: int = 0,
        skip: frozenset[int] = frozenset(),
        reading: Reading | None = None,
        seat: int = 0,
    ) -> None:
        self.epoch = epoch
        self.seat = seat
        self.plan = plan
        self.error: Exception | None = None
        self.number = next(numbers)
        self.end: bytes | None = None  # once it has ended: the mark that the next epoch begins with
        self.ends: dict[int, bytes] = {}  # the same by worker, where each reads a stream of its own
        self._numbers = numbers
        self._kind = kind
        self._keys = keys
        self._take = keys.take if isinstance(keys, Draw) and kind is Kind.KEYS else None
        self._step = step
        self._skip = set() if kind in PULLED else set(skip)
        self.again = skip if kind in PULLED else frozenset()
        self._reading = reading

    def follow(self) -> Run | None:
        """The epoch after this one, where drawing it has no side effects."""
        plan = None if self.plan is None else self.plan.after()
        if plan is None:
            return None
        epoch = self.epoch + 1
        return Run(self._numbers, epoch, self._kind, plan.draw(epoch), plan)

    def draw(self, seq: int, most: int = 1) -> Task | None:
        """The next step as the task `seq`; None at the end, or where the user's code raised.

        It may be several steps, `most` of them, where looking so far ahead can do no harm.
        """
        task = self._draw(seq, 1 if self._skip else most)
        while task is not None and task.step in self._skip:
            self._skip.discard(task.step)
            task = self._draw(seq, 1)
        return task

    def _draw(self, seq: int, most: int) -> Task | None:
        if self.error is not None:
            return None
        count, mark = 1, None
        try:
            if self._take is not None:
                keys, count = self._take(most)
            else:
                keys = next(self._keys)
            if self._reading is not None:
                mark = taken(self._reading.source, self._reading.mark)
        except StopIteration:
            if self._reading is not None and self.end is None:
                self.end = taken(self._reading.source, self._reading.end)
            return None
        except Exception as error:
            what = "the stream" if self._kind in (Kind.ITEMS, Kind.ITEM) else "the sampler"
            annotate(error, f"While {what} was asked for step {self._step} of epoch {self.epoch}.")
            self.error = error
            return None
        task = Task(seq, self.number, self.epoch, self._step, self._kind, keys, count, mark)
        self._step += count
        return task


class Drawing:
    """Random numbers for what is read in the caller's process: a function of (seed, epoch, batch).

    So a sampler, or a stream's light items, are the same on every rank, and again when a run is resumed.
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
    """The light items of a stream from the mark on, in lists of a batch each, which are read alike on every rank."""
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
