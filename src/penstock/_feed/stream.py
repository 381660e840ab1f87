"""Feeds for streams.

Either one worker reads the whole stream, or the caller reads light items (such as file names) from the stream, and
all workers load the samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from time import perf_counter_ns
from typing import Any

from penstock._feed.base import AnyPlan, Begin, Feed, Run
from penstock._measure.gauges import Slow
from penstock._resume.reading import Mark, Reading, taken
from penstock._system.warnings import warn_caller
from penstock._wire.task import Mended, Opening, Task
from penstock._work.fetch import Fetch
from penstock._work.job import Job
from penstock._work.samples import plain
from penstock.plan import END, Calls, OrderPlan, Rest, Sequential
from penstock.plan._plan import check_reached
from penstock.source._dataset import to_load_in_parallel


class Stream(Feed):
    """Base class of both feeds for streams.

    A stream has no plan. The length of a stream is known only if the stream has a `__len__`.
    """

    _promised: int | None = None

    def read_from(self) -> Any:
        return self.dataset

    def steps(self, epoch: int, plan: AnyPlan | None) -> int:
        if not isinstance(self.dataset, Sized):
            raise TypeError(f"The stream {type(self.dataset).__name__} has no len(), so the loader has none.")
        options = self.options
        cut = options.batch_size, options.drop_last, False, *options.shard
        self._promised = OrderPlan(Sequential(len(self.dataset)), *cut).steps(0)
        return self._promised

    def count(self, yielded: int) -> None:
        if self._promised is not None and yielded == self._promised + 1:
            warn_caller(
                f"The stream {type(self.dataset).__name__} said len() = {len(self.dataset)}, which is "
                f"{self._promised} batch{'es' * (self._promised != 1)}, but it yields more. Correct its __len__.",
                UserWarning,
            )


# ---- light items ----------------------------------------------------------------------------------


class ItemFetch(Fetch):
    """The worker's part of the feed for light items (such as file names): passes items to the dataset's `load`."""

    def look_up(self) -> None:
        self._load: Callable[[Any], Any] = self._job.dataset.load

    def samples(self, task: Task) -> tuple[Sequence[Any], Mended | None]:
        items = plain(task.keys) if self._job.batched else [task.keys]
        return self._samples.fetch(self._load, items)

    @staticmethod
    def key(job: Job, task: Task, item: Any, row: int) -> int:
        """Returns the position of an item in the stream. Unlike items, positions are unique."""
        row = row if job.local_rows is None else job.local_rows[row]
        return job.number(task.step) * job.batch_size + row


class ByItem(Stream):
    """The caller's part of the feed for light items (such as file names): reads the items from the stream."""

    names = "items", "item"
    fetch = ItemFetch

    def run(self, numbers: Iterator[int], epoch: int, seed: int, plan: AnyPlan | None, at: Begin) -> Run:
        reading, first = Reading(self.dataset), 0 if at.mark is None else at.mark.read
        items = Calls(partial(self._items, reading, at.mark, first, seed, epoch), first)
        steps = Rest(items, at.steps, first, *self.options.shard, self.options.drop_last, reading.is_broken)
        rows = self.local_rows
        left = steps.simplified()
        return Run(numbers, epoch, left, None, at, read_from=reading, what="the stream", local_rows=rows)

    def _items(self, reading: Reading, mark: Mark | None, first: int, seed: int, epoch: int, number: int) -> Any:
        """Returns the light items of batch `number`, or END if too few are left. All ranks get the same items."""
        size = self.options.batch_size or 1

        def read() -> list[Any] | None:
            return None if number == first and reading.open(mark) else reading.take(size)

        items = self.drawing(seed, epoch, number, read)
        if items is None:
            items = self.drawing(seed, epoch, number, reading.take, size)
        if not items or (len(items) < size and self.options.drop_last):
            return END
        return items[0] if self.options.batch_size is None else items


# ---- one reader -----------------------------------------------------------------------------------


class StreamFetch(Fetch):
    """The worker's part of the feed for a stream with one reader: skips the batches of other ranks."""

    _stream: Reading
    _run = -1  # the run that the stream is open for
    _since = 0  # the first batch of this run; exceptions of earlier batches were raised before it was resumed
    _restored = True  # the dataset has loaded the state that the stream was opened with
    _ended = -1  # the run that the dataset has read to its end; -1 if none

    def samples(self, task: Task) -> tuple[Sequence[Any], Mended | None] | None:
        self.mark = None
        gauge, opening = self._focus.gauge, task.keys if isinstance(task.keys, Opening) else None
        if task.run != self._run:
            self._open(task, opening)
        self._pass_over(self._job.number(task.step))
        if not self._job.drop_last or self._stream.read >= task.step * self._job.shard[1]:
            self._stream.raise_last_error(self._since)
        if opening is not None and not self._stream.is_broken():
            world = self._job.shard[1]
            behind = task.step * world
            check_reached(behind - self._stream.read, behind, world)
        self._say()
        try:
            timed = partial(self._timed, task, self._stream.read) if gauge.times else iter
            samples = self._stream.take(self._job.batch_size, timed)
        finally:  # a batch that raised counts as read too
            self.mark = taken(self._stream.source, self._stream.mark)
        if not samples or (self._stream.ended and self._job.drop_last):
            if self._stream.read > task.step * self._job.shard[1]:
                self._stream.raise_last_error(self._since)
            self._end(task)
            return None
        return samples, None

    def _timed(self, task: Task, number: int, items: Iterator[Any]) -> Iterator[Any]:
        """Yields the items of batch `number`, and measures the time for each item."""
        gauge = self._focus.gauge
        gauge.begin_epoch(task.epoch)
        before = perf_counter_ns()
        for position, item in enumerate(items, number * self._job.batch_size):
            now = perf_counter_ns()
            if gauge.sample(now - before):
                gauge.note(Slow(now - before, task.epoch, task.step, str(position)))
            before = now
            yield item

    def counts(self, task: Task) -> bool:
        after = (task.step + 1) * self._job.shard[1]
        self._pass_over(after)
        is_complete = self._stream.is_broken() and self._stream.read == after
        if not self._stream.ended or is_complete:
            return True
        self._stream.raise_last_error(self._since)
        self._end(task)
        return False

    def _end(self, task: Task) -> None:
        self.mark = taken(self._stream.source, self._stream.end)
        self._ended = task.run if self._restored else -1

    def _say(self) -> None:
        n = self._job.batch_size
        self._focus.doing(f"the stream's next {'sample' if n == 1 else f'{n} samples'}, ", None)

    def _pass_over(self, until: int) -> None:
        """Reads and discards all batches before batch `until`, each with its own random numbers.

        These batches belong to other ranks, or were handed out before a resume.
        """
        if self._stream.read >= until:
            return

        def before(number: int) -> None:
            if number > 0:  # the first batch has the random numbers that the stream was opened with
                self._focus.draw_for(number)
            self._say()

        self._stream.pass_over(until, self._job.batch_size, before)
        self._focus.draw_for(until)

    def _open(self, task: Task, opening: Opening | None) -> None:
        job = self._job
        self._run = task.run
        opening = opening or Opening(0, None)
        mark: Mark | None = None if 0 <= self._ended == opening.after else opening.mark
        self._since = job.number(task.step - 1) + 1
        self._focus.doing("iter(dataset), ", None)
        if job.number(task.step) > 0:
            self._focus.draw_for(0)
        self._stream = stream = Reading(job.dataset)
        draws_again, self._ended = stream.open(mark), -1
        # With a mark at the end of an epoch, nothing is read and no state is restored: the next epoch restores it.
        self._restored = mark is None or not mark.at_end
        if draws_again:
            self._focus.draw_for(stream.read)


class ByStream(Stream):
    """The caller's part of the feed for a stream with one reader. Each task says how many samples to read."""

    names = "pull", "pull_one"
    fetch = StreamFetch
    one_reader = True

    _last_run = -1

    def check(self) -> None:
        options = self.options
        if options.on_error == "skip":
            raise ValueError(
                f'on_error="skip" needs samples that are fetched one by one, and {type(self.dataset).__name__} makes '
                f"them in its __iter__, which an exception ends. {to_load_in_parallel(self.dataset)}; or catch the "
                "exception there."
            )
        if options.num_workers > 1:
            warn_caller(
                f"A stream is read by one reader, so {options.num_workers - 1} of num_workers={options.num_workers} "
                f"have nothing to do and are not started. {to_load_in_parallel(self.dataset)}.",
                UserWarning,
            )

    def run(self, numbers: Iterator[int], epoch: int, seed: int, plan: AnyPlan | None, at: Begin) -> Run:
        size = self.options.batch_size or 1
        # The reader skips the steps that were already handed out.
        after = -1 if at.resumed else self._last_run
        first = [Opening(size, at.mark, after)] if at.steps or at.mark is not None else []
        keys = itertools.chain(first, itertools.repeat(size))
        run = Run(numbers, epoch, keys, None, at, repeats=True, what="the stream")
        self._last_run = run.number
        return run
