"""Samples from light items: a stream hands them out in the caller's process, and workers load them in parallel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any

from penstock._feed.base import Begin, Feed, Plan
from penstock._feed.drawing import Drawing, light_items
from penstock._feed.run import Run
from penstock._fill.out import Empty
from penstock._resume.reading import Reading
from penstock._wire.task import Task
from penstock._work.samples import plain
from penstock.plan import OrderPlan, Sequential, rest

if TYPE_CHECKING:
    from penstock._work.runner import Runner


class ItemFetch:
    """The worker's half: `load`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.look_up()

    def look_up(self) -> None:
        self._load: Callable[[Any], Any] = self._runner.job.dataset.load

    def gather(self, task: Task, empty: Empty) -> object:
        return NotImplemented

    def samples(self, task: Task) -> Sequence[Any]:
        items = plain(task.keys) if self._runner.job.batched else [task.keys]
        return self._runner.samples.fetch(self._load, items)

    def finish(self, task: Task) -> None:
        pass

    def names(self, task: Task) -> Sequence[Any]:
        return ()

    def key(self, task: Task, item: Any, row: int) -> int:
        """Its position: the items of a stream may be alike, their positions are not."""
        return self._runner.number(task.step) * self._runner.job.batch_size + row


class Stream(Feed):
    """What every stream has: a length that it promises, and no plan."""

    _promised: int | None = None

    def steps(self, epoch: int, plan: Plan | None) -> int:
        if not isinstance(self.dataset, Sized):
            raise TypeError(f"The stream {type(self.dataset).__name__} has no len(), so the loader has none.")
        options = self.options
        cut = options.batch_size, options.drop_last, False, *options.shard
        self._promised = OrderPlan(Sequential(len(self.dataset)), *cut).steps(0)
        return self._promised

    def count(self, yielded: int) -> None:
        if self._promised is not None and yielded == self._promised + 1:
            warnings.warn(
                f"The stream {type(self.dataset).__name__} said len() = {len(self.dataset)}, which is "
                f"{self._promised} batches, and yields more. Its __len__ is wrong.",
                stacklevel=4,
            )


class ByItem(Stream):
    """The caller's half: reads the light items."""

    names = "items", "item"
    fetch = ItemFetch

    def run(
        self, numbers: Iterator[int], epoch: int, seed: int, plan: Plan | None, at: Begin
    ) -> Run:
        options, reading = self.options, Reading(self.dataset)
        drawing = Drawing(seed, epoch, self._borrow)
        items = light_items(reading, at.mark, options.batch_size, options.drop_last, drawing)
        read = 0 if at.mark is None else at.mark.read
        steps = rest(items, at.steps, read, *options.shard, options.drop_last)
        return Run(next(numbers), epoch, steps, step=at.steps, skip=at.beyond, read_from=reading, what="the stream")
