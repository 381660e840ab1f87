"""Samples from a stream that one worker reads from its beginning to its end."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from penstock._feed.base import Begin, Plan
from penstock._feed.items import Stream
from penstock._feed.run import Run
from penstock._fill.out import Empty
from penstock._resume.marks import taken
from penstock._resume.reading import Mark, Reading
from penstock._wire.task import Opening, Task
from penstock._work.samples import StreamEnded
from penstock.plan._plan import check_reached

if TYPE_CHECKING:
    from penstock._work.runner import Runner


class StreamFetch:
    """The worker's half: reads the stream, and passes over the batches of other ranks."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._job = runner.job
        self._rank, self._world = runner.job.shard
        self._stream = Reading(())
        self._run = -1  # the run that the stream is open for
        self._replayed = 0  # so many batches were handed out before: what they raised was raised then
        self._restored = True  # the dataset was given the state that the stream was opened with
        self._ended = -1  # the run at whose end the dataset is

    def look_up(self) -> None:
        pass

    def gather(self, task: Task, empty: Empty) -> object:
        return NotImplemented

    def samples(self, task: Task) -> Sequence[Any]:
        runner, opening = self._runner, task.keys if isinstance(task.keys, Opening) else None
        count = task.keys if opening is None else opening.size
        if task.run != self._run:
            self._open(task, opening)
        self._pass_over(task, count, runner.number(task.step))
        if opening is not None:
            behind = task.step * self._world
            check_reached(behind - self._stream.read, behind, self._world)
        self._say(count)
        samples = self._stream.take(count)
        runner.mark = taken(self._stream.source, self._stream.mark)
        if not samples or (self._stream.ended and self._job.drop_last):
            self._end(task)
        return samples

    def finish(self, task: Task) -> None:
        """If ranks end together, a step counts only if every rank has a batch of it."""
        if self._job.drop_last and self._world > 1:
            count = task.keys.size if isinstance(task.keys, Opening) else task.keys
            self._pass_over(task, count, (task.step + 1) * self._world)
            if self._stream.ended:
                self._end(task)

    def names(self, task: Task) -> Sequence[Any]:
        return ()

    def key(self, task: Task, item: Any, row: int) -> Any:
        return item

    def _end(self, task: Task) -> NoReturn:
        self._runner.mark = taken(self._stream.source, self._stream.end)
        self._ended = task.run if self._restored else -1
        raise StreamEnded

    def _say(self, count: int) -> None:
        self._runner.doing(f"the stream's next {count} samples, ", None)

    def _pass_over(self, task: Task, count: int, until: int) -> None:
        """Reads batches that were handed out elsewhere: by other ranks, or before this run was resumed.

        Each is read with the random numbers that it was read with there, so that the stream is the same.
        """
        if self._stream.read >= until:
            return

        def before(number: int) -> None:
            if number > 0:  # the first has those that the stream was opened with
                self._runner.reseed(task.epoch, number)
            self._say(count)

        self._stream.pass_over(until, count, self._replayed, before)
        self._runner.reseed(task.epoch, until)

    def _open(self, task: Task, opening: Opening | None) -> None:
        runner = self._runner
        self._run = task.run
        mark: Mark | None = None
        self._replayed = 0
        if opening is not None:
            self._replayed = opening.replayed
            if opening.after != self._ended or self._ended < 0:
                mark = opening.mark
        runner.doing("iter(dataset), ", None)
        if runner.number(task.step) > 0:
            runner.reseed(task.epoch, 0)
        self._stream = stream = Reading(self._job.dataset)
        anew, self._ended = stream.open(mark), -1
        # At the end of an epoch nothing is read, so nothing was restored: the next epoch restores the state.
        self._restored = mark is None or not mark.at_end
        if anew:
            runner.reseed(task.epoch, stream.read)


class ByStream(Stream):
    """The caller's half: says how many samples to read for each step."""

    names = "pull", "pull_one"
    fetch = StreamFetch
    one_reader = True

    _last_run = -1

    def check(self) -> None:
        options = self.options
        if options.on_error == "skip":
            raise ValueError(
                f'on_error="skip" needs samples that are fetched one by one, and {type(self.dataset).__name__} makes '
                "them in its __iter__, which an exception ends. Let it yield light items and define load(item), or "
                "catch the exception there."
            )
        if options.num_workers > 1:
            warnings.warn(
                f"A stream is read by one reader, so {options.num_workers - 1} of num_workers={options.num_workers} "
                "have nothing to do and are not started. If the stream hands out light items and defines load(item), "
                "all workers load in parallel.",
                stacklevel=5,
            )

    def run(
        self, numbers: Iterator[int], epoch: int, seed: int, plan: Plan | None, at: Begin
    ) -> Run:
        size, number = self.options.batch_size or 1, next(numbers)
        # The reader passes over what was handed out before.
        replayed = at.steps * self.options.shard.world
        after = -1 if at.resumed else self._last_run
        first = [Opening(size, at.mark, replayed, after)] if at.steps or at.mark is not None else []
        self._last_run = number
        keys = itertools.chain(first, itertools.repeat(size))
        return Run(number, epoch, keys, step=at.steps, repeated=at.beyond, what="the stream")
