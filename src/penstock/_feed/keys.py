"""The feed for datasets with `__getitem__`, whose samples are fetched by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock._feed.base import AnyPlan, Begin, Feed, Now, Run, as_index
from penstock._fill.cast import Empty
from penstock._printable import counted
from penstock._resume.reading import Mark, Reading, has_state
from penstock._system.interrupts import import_whole
from penstock._system.panics import ordinary
from penstock._wire.task import Mended, Task
from penstock._work.fetch import Fetch
from penstock._work.job import Job
from penstock._work.samples import plain
from penstock.errors import CollateError
from penstock.plan import ComputedPlan, Order, OrderPlan, SamplerPlan, Sequential, Shuffled
from penstock.plan._blocks import WINDOW
from penstock.plan._order import Passes
from penstock.plan._samplers import BatchSampler, order_of
from penstock.source._dataset import mistaken, mistaken_keys
from penstock.source._nested import blocks_of, method_of, pass_of, shown

if TYPE_CHECKING:
    from penstock._feed.planner import Planner


class KeyFetch(Fetch):
    """The worker's part of the feed: calls the dataset's `__gather__`, `__getitems__` or `__getitem__`."""

    _one_by_one: Task | None = None  # the task whose samples are fetched one by one, because some fail
    _getitems: Callable[[Any], Any] | None = None
    _gather: Callable[[Any, Any], Any] | None = None

    def look_up(self) -> None:
        self._dataset, self._batched = self._job.dataset, self._job.batched
        if self._batched:
            self._getitems = method_of(self._dataset, "__getitems__")
            self._gather = method_of(self._dataset, "__gather__")

    def gather(self, task: Task, empty: Empty) -> tuple[object, int] | None:
        if self._gather is None:
            return None
        self._focus.doing("__gather__ of samples ", task.keys)
        try:
            # The keys of items that are made of documents are tuples, and form no array.
            keys = task.keys if _are_items(task.keys) else np.asarray(task.keys)
            batch = self._gather(keys, empty)
            return None if batch is NotImplemented else (batch, len(task.keys))
        except CollateError as error:
            self._focus.name_rows(error)
            raise
        except BaseException as error:
            if not self._may_go_on(error, task):
                raise
            return None

    def samples(self, task: Task) -> tuple[Sequence[Any], Mended | None]:
        keys = plain(task.keys) if self._batched else [task.keys]
        if self._getitems is not None and self._one_by_one is not task:
            self._focus.doing("__getitems__ of samples ", keys)
            try:
                samples: Sequence[Any] = self._getitems(keys)
            except BaseException as error:
                if not self._may_go_on(error, task):
                    raise
            else:
                if len(samples) == len(keys):
                    return samples, None
                raise ValueError(
                    f"__getitems__ returned {counted(len(samples), 'sample')} for {counted(len(keys), 'key')}. "
                    "It must return one for each key, in the order of the keys."
                )
        return self._samples.fetch(self._dataset.__getitem__, keys)

    def _may_go_on(self, error: BaseException, task: Task) -> bool:
        """True if the samples of a failed batch may be fetched one by one, to find out which samples fail."""
        if not self._samples.mends or not isinstance(ordinary(error), Exception):
            self._focus.name_sample()
            return False
        self._one_by_one = task
        self._focus.doing("", None)
        return True

    @staticmethod
    def names(job: Job, task: Task) -> Sequence[Any]:
        keys: Sequence[Any] = plain(task.keys) if job.batched else [task.keys]
        return keys


def refuse_samplers(dataset: Any, sampler: Any, batch_sampler: Any) -> None:
    """Raises ValueError if a mixture is given a sampler: a mixture decides the order of its samples itself."""
    # Not in `ByKey.check`, because libraries give a loader that they rebuild a batch sampler that wraps the loader's.
    if (sampler is None and batch_sampler is None) or method_of(dataset, "__order__") is None:
        return
    setting = "sampler=" if batch_sampler is None else "batch_sampler="
    raise ValueError(
        f"{setting} is not possible with {shown(dataset)}, because a mixture decides the order of its samples "
        f"itself, and its shares would be lost. Leave {setting} out, or select samples of its sources before they "
        "are mixed."
    )


def _are_items(keys: Any) -> bool:
    return type(keys) is list and len(keys) > 0 and type(keys[0]) is tuple


class ByKey(Feed):
    """The caller's part of the feed. Keys come from one of penstock's orders or from the user's sampler."""

    names = "keys", "key"
    fetch = KeyFetch
    knows_end = True
    _planner: Planner | None = None

    def check(self) -> None:
        mistake = mistaken(self.dataset)
        if mistake is not None:
            raise TypeError(f"The dataset {mistake}")
        if not hasattr(self.dataset, "__getitem__"):
            raise TypeError(
                f"{type(self.dataset).__name__} has no __getitem__, so it is not a dataset. Give it __getitem__ and "
                "__len__, or derive from penstock.IterableDataset for a stream."
            )
        given = self.options.sampler is not None or self.options.batch_sampler is not None
        self.makes_items = not given and method_of(self.dataset, "__windows__") is not None
        if self.makes_items:
            self._check_items()
        self.has_order = not given and method_of(self.source, "__order__") is not None
        mixture = method_of(self.source, "__mixture__")
        if mixture is not None:
            import_whole("penstock.source._history")
            from penstock.source._history import WeightHistory  # late: few programs need it

            self.history = WeightHistory.of(mixture)
        given = given or self.has_order
        if not given and not isinstance(self.source, Sized):
            raise TypeError(
                f"{type(self.source).__name__} has no __len__, which the order of its samples needs. Define it, or "
                "pass sampler= or batch_sampler=."
            )
        mistake = None if given else mistaken_keys(self.dataset)
        if mistake is not None:
            raise TypeError(f"The dataset {mistake}")
        if self.options.shuffle == "blocks":
            self._order(0)  # raises now, and not in the first epoch, if the dataset has no blocks

    @property
    def order_name(self) -> str:
        order = self.read_from()
        if order is None:
            if self.options.shuffle == "blocks":
                return "shuffled by blocks"
            return "shuffled" if self.options.shuffle else "in sequence"
        drawn = " with a generator" if getattr(order, "generator", None) is not None else ""
        return type(order).__name__ + drawn

    def read_from(self) -> Any:
        options = self.options
        return options.sampler if options.batch_sampler is None else options.batch_sampler

    def length(self) -> int | None:
        source = self.source
        # The length of a mixture depends on its weights, and it has a state of its own.
        has_length = isinstance(source, Sized) and not self._is_endless() and pass_of(source) is None
        return len(source) if has_length else None

    def _is_endless(self) -> bool:
        return getattr(self.source, "endless", False) is True

    @property
    def source(self) -> Any:
        return self.dataset.documents if self.makes_items else self.dataset

    def _check_items(self) -> None:
        name, options = type(self.dataset).__name__, self.options
        if not self.batched:
            raise ValueError(
                f"batch_size=None is not possible with a {name}, whose samples are made of documents and come in "
                "batches. Use batch_size=1."
            )
        if options.batch_tokens is not None or options.balance is not None:
            setting = "balance=" if options.batch_tokens is None else "batch_tokens="
            raise ValueError(
                f"{setting} is for samples that differ in length, but those of a {name} are planned to have one "
                "length. Use batch_size=."
            )
        if options.last_batch == "rollover":
            raise ValueError(
                f'last_batch="rollover" is not possible with a {name}: how many samples an epoch has is known only '
                'after all of them were planned. Use "keep", "drop" or "pad".'
            )
        if options.on_error == "replace" and options.batch_size == 1:
            raise ValueError(
                f'With a {name}, on_error="replace" takes the replacement from the same batch, and with batch_size=1 '
                'there is no other sample in it. Use larger batches, or on_error="skip".'
            )

    def keeps_state(self) -> bool:
        return has_state(self.dataset)

    def plan(self, seed: int) -> AnyPlan:
        options = self.options
        sampler, batched = options.batch_sampler, True
        if sampler is None:
            order = self._order(seed)
            if order is not None:
                return self._computed(order, seed)
            sampler, batched = options.sampler, False
        if options.last_batch in ("pad", "rollover"):
            raise ValueError(
                f'last_batch="{options.last_batch}" was given for a {type(sampler).__name__} whose order was known. '
                "The sampler has been changed since then (it got a generator, or keys that are not integers from 0 "
                "on), so its last batch is no longer known in advance. Undo the change, or make another loader."
            )
        return SamplerPlan(sampler, options.batch_size, options.drop_last, batched, *options.shard)

    def _computed(self, order: Order, seed: int) -> ComputedPlan:
        options = self.options
        if options.batch_tokens is None and options.balance is None and not self.makes_items:
            padded, rollover = options.last_batch == "pad", options.last_batch == "rollover"
            return OrderPlan(order, options.batch_size, options.drop_last, padded, *options.shard, rollover=rollover)
        if self._planner is None:
            import_whole("penstock._feed.planner")
            from penstock._feed.planner import Planner  # late: few programs need it

            self._planner = Planner()
        return self._planner.plan(self, order, seed)

    def forget(self) -> None:
        self._planner = None

    def _order(self, seed: int) -> Order | None:
        """Returns the order of the keys as a computable `Order`, or None if the sampler must be iterated."""
        if self.options.sampler is not None:
            return order_of(self.options.sampler, seed)
        source = self.source
        if self.has_order:
            window = self.options.window or WINDOW
            order: Order = (
                source.__order__(seed, window) if self.history is None else self.history.order(seed, window)
            )
            return order
        once = pass_of(source)
        if once is not None and self.options.shuffle != "blocks":
            return Passes(once, seed if self.options.shuffle else None)
        n = 0 if once is not None else len(source)
        if self.options.shuffle == "blocks":
            return blocks_of(source).order(self.options.window or 1, seed)
        return Shuffled(n, seed) if self.options.shuffle else Sequential(n)

    def run(self, numbers: Iterator[int], epoch: int, seed: int, plan: AnyPlan | None, at: Begin) -> Run:
        if isinstance(plan, ComputedPlan):
            return Run(numbers, epoch, plan.draw(epoch, at.steps), plan, at, local_rows=self.local_rows)
        assert plan is not None
        # A plain sequence draws no random numbers, and seeding the generators takes 50 µs for each batch.
        plain = type(plan.sampler) in (list, tuple, range, np.ndarray)
        reading = Reading(plan.sampler) if plain else _DrawnKeys(plan.sampler, partial(self.drawing, seed, epoch))
        reading.open(at.mark)
        steps = plan.draw(epoch, at.steps, reading.take, reading.read, reading.is_broken)
        return Run(numbers, epoch, steps, plan, at, read_from=reading, local_rows=self.local_rows)

    def replacements(self, plan: AnyPlan | None) -> Order | None:
        # A replacement from elsewhere could be longer than a budget allows, or a document in place of a row of them.
        return plan.order if self.options.on_error == "replace" and isinstance(plan, OrderPlan) else None

    def steps(self, epoch: int, plan: AnyPlan | None) -> int:
        assert plan is not None
        if isinstance(plan, ComputedPlan) and self._is_endless():
            raise TypeError(f"{self.dataset!r} has no end, so the loader has no len().")
        steps = plan.steps(epoch)
        if steps is None:
            source = self.dataset if isinstance(plan, ComputedPlan) else self.read_from()
            raise TypeError(f"{type(source).__name__} has no len(), so the loader has none.")
        return steps

    def index(self, task: Task, rows: int, mended: Mended | None) -> NDArray[np.uint64] | None:
        if mended is not None:
            return as_index(mended.keys)
        return as_index(task.keys if self.batched else [task.keys])

    def pad(self, plan: AnyPlan | None, task: Task, mended: Mended | None) -> int:
        assert plan is not None
        pad = plan.pad(task.epoch, task.step)
        if pad and mended is not None and self.local_rows is None:  # otherwise no sample is left out
            rows = len(task.keys) if self.batched else 1
            return sum(row >= rows - pad for row in mended.rows)
        return pad

    def sampler(self, now: Now) -> Any:
        return Keys(now) if self.read_from() is None else self.options.sampler

    def batch_sampler(self, now: Now) -> Any:
        if self.options.batch_sampler is not None or not self.batched:
            return self.options.batch_sampler
        if self.options.batch_tokens is not None:
            return BatchesOfKeys(now)
        return BatchSampler(self.sampler(now), self.options.batch_size or 1, self.options.drop_last)


class _DrawnKeys(Reading):
    """Reads a sampler that may draw random numbers. `drawing` seeds the generators for each read."""

    def __init__(self, sampler: Any, drawing: Callable[..., Any]) -> None:
        super().__init__(sampler)
        self._drawing = drawing

    def open(self, mark: Mark | None = None) -> bool:
        draws_again: bool = self._drawing(-1, super().open, mark)
        return draws_again

    def take(self, size: int, through: Callable[[Iterator[Any]], Iterator[Any]] = iter) -> list[Any]:
        keys: list[Any] = self._drawing(self.read, super().take, size, through)
        return keys


class Keys:
    """The keys of the loader's current epoch, in order."""

    def __init__(self, now: Now) -> None:
        self._now = now

    def __iter__(self) -> Iterator[Any]:
        plan, epoch = self._plan()  # now, and not when the first key is asked for: the epoch may be another then
        return chain.from_iterable(map(_listed, plan.draw(epoch)))

    def __len__(self) -> int:
        plan, epoch = self._plan()
        steps = plan.steps(epoch)
        if steps is None:
            raise TypeError("The epoch has no end, and so no len().")
        if not isinstance(plan, OrderPlan):
            return sum(map(len, plan.draw(epoch)))
        last = steps - 1
        return 0 if last < 0 else last * (plan.batch_size or 1) + np.size(plan.keys(epoch, last))

    def _plan(self) -> tuple[ComputedPlan, int]:
        plan, epoch = self._now()
        assert isinstance(plan, ComputedPlan)
        if type(plan) is not OrderPlan:
            return plan, epoch
        whole = plan.world == 1 and not plan.padded and not plan.rollover
        return OrderPlan(plan.order, None) if whole else plan, epoch


def _listed(keys: Any) -> list[Any]:
    found: list[Any] = keys if isinstance(keys, list) else np.atleast_1d(keys).tolist()
    return found


class BatchesOfKeys:
    """The batches of the loader's current epoch, in order, each as a list of keys."""

    def __init__(self, now: Now) -> None:
        self._now = now

    def __iter__(self) -> Iterator[list[Any]]:
        plan, epoch = self._computed()
        return map(plain, plan.draw(epoch))

    def __len__(self) -> int:
        plan, epoch = self._computed()
        steps = plan.steps(epoch)
        if steps is None:
            raise TypeError("The epoch has no end, and so no len().")
        return steps

    def _computed(self) -> tuple[ComputedPlan, int]:
        plan, epoch = self._now()
        assert isinstance(plan, ComputedPlan)
        return plan, epoch
