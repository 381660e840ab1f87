"""Makes the plans that need more than an order: sample lengths, or a dataset that packs documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.plan import ComputedPlan, Order, Selected
from penstock.plan._balance import BalancedPlan
from penstock.plan._budget import WINDOW, BudgetPlan, BudgetWindows, LengthTable
from penstock.plan._windows import WindowPlan, Windows
from penstock.source._nested import blocks_of, lengths_within, shown
from penstock.source._stages import MeasuredDataset

if TYPE_CHECKING:
    from penstock._feed.keys import ByKey


WINDOW_OF_MIXTURE = 1 << 15
"""The number of samples in a window. The samples of a mixture are divided into batches window by window.

New weights apply from the next window on.
"""


class Planner:
    """Makes a loader's plans. Keeps the last plan, because the plan's windows may be needed again."""

    def __init__(self) -> None:
        self._last: ComputedPlan | None = None
        self._seed: int | None = None  # of the last windows that a dataset has made
        self._table: tuple[int | None, LengthTable] | None = None  # with the number of samples at that time

    def plan(self, feed: ByKey, order: Order, seed: int) -> ComputedPlan:
        """Returns the plan that the loader needs now: the same object as before if nothing has changed."""
        plan = self._made(feed, order, seed)
        if self._last is None or self._last != plan:
            self._last = plan
        return self._last

    def _made(self, feed: ByKey, order: Order, seed: int) -> ComputedPlan:
        options = feed.options
        if options.batch_tokens is not None:
            windows = self._budget(feed, order, seed)
            return BudgetPlan(windows, options.drop_last, *options.shard, power=options.power)
        shape = options.batch_size or 1, options.drop_last, options.last_batch == "pad", *options.shard
        if options.balance is not None:
            lengths, together = self._cut_lengths(feed), options.accumulate
            return BalancedPlan(order, *shape, lengths=lengths, power=options.power, accumulate=together)
        return WindowPlan(self._windows(feed, order, seed), *shape, order=order)

    def _windows(self, feed: ByKey, order: Order, seed: int) -> Windows:
        before, of = self._last, seed if feed.options.shuffle or feed.has_order else None
        if isinstance(before, WindowPlan) and (before.order, self._seed) == (order, of):
            return before.windows
        self._seed = of
        made: Windows = feed.dataset.__windows__(order, of)
        return made

    def _budget(self, feed: ByKey, order: Order, seed: int) -> BudgetWindows:
        """Returns the windows within which samples are divided into batches."""
        options, pad, before = feed.options, feed.options.padding, self._last
        most = None if pad is None else pad.max_length
        made = BudgetWindows(
            order,
            self._lengths(feed),
            options.batch_tokens or 1,
            seed=seed if feed.has_order or _is_random(order) else None,
            max_length=options.max_length if most is None else most,
            truncates=most is not None,
            batch_multiple=options.batch_multiple,
            multiple=1 if pad is None else pad.multiple,
            buckets=options.buckets or (),
            window=_samples_at_once(feed),
        )
        if isinstance(before, BudgetPlan) and before.windows == made:
            return before.windows
        if options.sampler is None:  # otherwise some samples may never be needed
            made.check()
        return made

    def _cut_lengths(self, feed: ByKey) -> LengthTable:
        """Returns the length of each sample after `pad` has truncated the sample."""
        lengths, pad, before = self._lengths(feed), feed.options.padding, self._last
        if pad is None or pad.max_length is None:
            return lengths
        cut = LengthTable(np.minimum(lengths.numbers, pad.max_length))
        return before.lengths if isinstance(before, BalancedPlan) and before.lengths == cut else cut

    def _lengths(self, feed: ByKey) -> LengthTable:
        """Returns the length of each sample. The lengths are looked up again if the number of samples has changed."""
        n = feed.length()
        if self._table is None or self._table[0] != n:
            self._table = n, LengthTable(_measured(feed))
        return self._table[1]


def _is_random(order: Any) -> bool:
    return getattr(order.order if isinstance(order, Selected) else order, "seed", None) is not None


def _samples_at_once(feed: ByKey) -> int:
    """Returns how many samples are divided into batches together.

    With `shuffle="blocks"`, the result is at most the number of samples in one window of blocks.
    """
    if feed.history is not None:
        return min(WINDOW, WINDOW_OF_MIXTURE)
    if feed.options.shuffle != "blocks" or feed.has_order:
        return WINDOW
    blocks = blocks_of(feed.source)
    each = -(-int(blocks.edges[-1]) // max(1, len(blocks)))
    return min(WINDOW, max(1, each * (feed.options.window or 1)))


def _measured(feed: ByKey) -> NDArray[np.int64]:
    given, dataset = feed.options.lengths, feed.dataset
    if given is None:
        found = lengths_within(dataset)
        if found is None:
            setting = "batch_tokens=" if feed.options.batch_tokens is not None else "balance="
            raise TypeError(
                f"{setting} needs the length of each sample, but {shown(dataset)} has no __lengths__. Pass lengths=: "
                "an array with one length for each sample, or a function that returns the length of a sample (all "
                "samples are read once)."
            )
        return found()
    return MeasuredDataset(dataset, given, "lengths=").__lengths__()
