"""A run: one epoch being read, its steps drawn from the plan one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock._work.failure import annotate
from penstock._work.rng import StepSource, working_at
from penstock._work.task import Kind, Task
from penstock.plan import Draw, Plan


class Run:
    """The steps of one epoch, in order. Once one cannot be drawn there are no more."""

    def __init__(
        self,
        numbers: Iterator[int],
        epoch: int,
        kind: Kind,
        keys: Iterator[Any],
        plan: Plan | None,
        seed: int,
    ) -> None:
        self.epoch = epoch
        self.plan = plan
        self.error: Exception | None = None
        self._numbers = numbers
        self._number = next(numbers)
        self._kind = kind
        self._reads = kind in (Kind.ITEMS, Kind.ITEM)
        self._keys = keys
        self._take = keys.take if isinstance(keys, Draw) and kind is Kind.KEYS else None
        self._seed = seed
        self._step = 0

    def follow(self) -> Run | None:
        """The epoch after this one, where drawing it has no side effects."""
        if self.plan is None or not self.plan.repeatable:
            return None
        epoch = self.epoch + 1
        return Run(self._numbers, epoch, self._kind, self.plan.draw(epoch), self.plan, self._seed)

    def draw(self, seq: int, most: int = 1) -> Task | None:
        """The next step as the task `seq`; None at the end, or where the user's code raised.

        It may be several steps, `most` of them, where looking so far ahead can do no harm.
        """
        if self.error is not None:
            return None
        count = 1
        try:
            if self._take is not None:
                keys, count = self._take(most)
            elif self._reads:
                from penstock._work.randomness import READ, borrowed_generators  # late: see InlineBackend

                of = self._seed, self.epoch, self._step, READ
                with borrowed_generators(*of), working_at(StepSource(*of)):
                    keys = next(self._keys)
            else:
                keys = next(self._keys)
        except StopIteration:
            return None
        except Exception as error:
            what = "the stream" if self._reads else "the sampler"
            annotate(error, f"While {what} was asked for step {self._step} of epoch {self.epoch}.")
            self.error = error
            return None
        task = Task(seq, self._number, self.epoch, self._step, self._kind, keys, count)
        self._step += count
        return task
