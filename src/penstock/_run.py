"""A run: one epoch being read, its steps drawn from the plan one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from penstock._work.failure import annotate
from penstock._work.rng import StepSource, working_at
from penstock._work.task import Kind, Task
from penstock.plan import Draw, Plan


class Run:
    """The steps of one epoch, in order. Once one cannot be drawn there are no more.

    `keys` begins at `step`. Steps in `skip` are passed over: they were handed out before.
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
    ) -> None:
        self.epoch = epoch
        self.plan = plan
        self.error: Exception | None = None
        self._numbers = numbers
        self._number = next(numbers)
        self._kind = kind
        self._keys = keys
        self._take = keys.take if isinstance(keys, Draw) and kind is Kind.KEYS else None
        self._step = step
        self._skip = skip

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
            self._skip -= {task.step}
            task = self._draw(seq, 1)
        return task

    def _draw(self, seq: int, most: int) -> Task | None:
        if self.error is not None:
            return None
        count = 1
        try:
            if self._take is not None:
                keys, count = self._take(most)
            else:
                keys = next(self._keys)
        except StopIteration:
            return None
        except Exception as error:
            what = "the stream" if self._kind in (Kind.ITEMS, Kind.ITEM) else "the sampler"
            annotate(error, f"While {what} was asked for step {self._step} of epoch {self.epoch}.")
            self.error = error
            return None
        task = Task(seq, self._number, self.epoch, self._step, self._kind, keys, count)
        self._step += count
        return task


def light_items(
    dataset: Any, batch_size: int | None, drop_last: bool, seed: int, epoch: int
) -> Iterator[Any]:
    """The light items of a stream, in lists of one batch each, which are read alike on every rank."""
    from penstock._work.randomness import READ, borrowed_generators  # late: see InlineBackend

    size = batch_size or 1
    items: Iterator[Any] | None = None
    for number in itertools.count():
        of = seed, epoch, number, READ
        with borrowed_generators(*of), working_at(StepSource(*of)):
            items = iter(dataset) if items is None else items
            chunk = list(itertools.islice(items, size))
        if chunk and (len(chunk) == size or not drop_last):
            yield chunk[0] if batch_size is None else chunk
        if len(chunk) < size:
            return
