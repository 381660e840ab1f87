"""A run: one epoch that is being read, its steps drawn one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock._resume.reading import Reading, opened, taken
from penstock._wire.failure import annotate
from penstock._wire.task import Opening, Task
from penstock.plan import Draw, Plan


class Run:
    """The steps of one epoch, in order. Once a step cannot be drawn there are no more.

    `keys` begins at `step`. Steps in `skip` were handed out before and are left out. `read_from` is the sampler or
    stream that the keys come from, if it may have a state, called `what` in errors. `numbers` has those of all runs.

    If one worker reads a stream, the steps that were handed out before cannot be left out: the consumer skips
    those in `repeated`.
    """

    def __init__(
        self,
        numbers: Iterator[int],
        epoch: int,
        keys: Iterator[Any],
        plan: Plan | None = None,
        *,
        step: int = 0,
        skip: frozenset[int] = frozenset(),
        repeated: frozenset[int] = frozenset(),
        read_from: Reading | None = None,
        what: str = "the sampler",
        seat: int = 0,
    ) -> None:
        self.number = next(numbers)
        self.epoch = epoch
        self.plan = plan
        self.seat = seat
        self.repeated = repeated
        self.error: BaseException | None = None
        self.is_over = False
        self.end: bytes | None = None  # once it has ended: the mark that the next epoch begins with
        self.ends: dict[int, bytes] = {}  # the same by worker, if each reads a stream of its own
        self._numbers = numbers
        self._keys = keys
        # Several steps at once only if they are batches of a known order: looking ahead does no harm there.
        bundled = isinstance(keys, Draw) and keys.batched
        self._take = keys.take if bundled else None  # type: ignore[attr-defined]
        self._step = step
        self._skip = set(skip)
        self._reading = read_from
        self._what = what

    def follow(self) -> Run | None:
        """The run of the next epoch, if drawing it has no side effects."""
        plan, epoch = None if self.plan is None else self.plan.after(), self.epoch + 1
        return None if plan is None else Run(self._numbers, epoch, plan.draw(epoch), plan)

    def draw(self, seq: int, most: int = 1) -> Task | None:
        """The next step, or up to `most` steps, as the task `seq`; None at the end, or if the user's code raised."""
        task = self._draw(seq, 1 if self._skip else most)
        while task is not None and task.step in self._skip:
            self._skip.discard(task.step)
            task = self._draw(seq, 1)
        return task

    def _draw(self, seq: int, most: int) -> Task | None:
        if self.is_over or self.error is not None:
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
            self.is_over = True
            if self._reading is not None and self.end is None:
                self.end = taken(self._reading.source, self._reading.end)
            return None
        except Exception as error:
            annotate(error, f"While {self._what} was asked for step {self._step} of epoch {self.epoch}.")
            self.error = error
            return None
        task = Task(seq, self.number, self.epoch, self._step, keys, count, mark)
        self._step += count
        return task

    def continued(self, task: Task, position: bytes | None) -> Task:
        """A task of a stream for a new reader, which opens the stream at this position first."""
        mark = opened(position)
        if mark is None or isinstance(task.keys, Opening):  # the first task of the run says where it begins
            return task
        return task._replace(keys=Opening(task.keys, mark, mark.read))
