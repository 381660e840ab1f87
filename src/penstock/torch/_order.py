"""The order of one epoch as a torch loader's sampler gives it, and what it takes to draw the rest of it again."""

from __future__ import annotations

import copy
import inspect
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock._resume.marks import opened, taken
from penstock._resume.progress import Progress
from penstock._resume.reading import Mark, Reading, by_next, has_state, renew
from penstock.torch import _generators as generators
from penstock.torch import _private as private

# torch's own, whose ways are known: they have no state, and draw at random from a generator that they were given, or
# else from torch's global one. Their subclasses are a caller's own.
_RANDOM = {RandomSampler, SubsetRandomSampler, WeightedRandomSampler}
_TORCHS = {*_RANDOM, SequentialSampler, DistributedSampler}


class Order:
    """The keys of each step of an epoch, from the first step that was not handed out on.

    `origin` is what they come from, for a state: it is None until the sampler was asked for its first keys. `begin`
    is the mark that a sampler with a state begins with: that of a state, or the end of the epoch before.
    """

    def __init__(self, loader: Any, progress: Progress, begin: bytes | Mark | None) -> None:
        self._index = index = private.index_sampler(loader)
        self._batched = type(index) is BatchSampler
        self.sampler: Any = index.sampler if self._batched else index
        self._is_torchs = type(self.sampler) in _TORCHS
        self._progress = progress
        self.generators = generators.given_to(loader, index, getattr(index, "sampler", None))
        self._before: dict[str, Any] = {}
        self._origin: dict[str, Any] | None = None
        self._torch: torch.Tensor | None = None
        self._given: list[torch.Tensor | str] | None = None
        self._begin = begin
        self._first = progress.steps
        self._renewed = False
        self._marks: deque[tuple[int, bytes | None]] = deque()
        self._last = -1  # once the sampler has ended: after so many steps
        self.end: bytes | None = None  # and then, the mark that the next epoch begins with

    # What a state holds of it.

    @property
    def about(self) -> dict[str, Any]:
        """What must be the same where the order is drawn again."""
        size = self._index.batch_size if self._batched else None
        return {
            "order": type(self.sampler).__name__,
            "samples": len(self.sampler) if self._is_torchs else None,
            "batch_size": size,
            "drop_last": self._index.drop_last if self._batched else None,
        }

    @property
    def origin(self) -> dict[str, Any] | None:
        before, self._torch = self._torch, None
        if before is not None and self._origin is not None:
            self._origin |= self._drawn_from(before)
        return self._origin

    def _drawn_from(self, before: torch.Tensor) -> dict[str, Any]:
        """What torch's sampler has drawn from its global generator, which was in this state."""
        if type(self.sampler) is not RandomSampler:
            return {"torch": generators.text_of(before)}
        again = torch.Generator()
        again.set_state(before)
        return {"seed": torch.empty((), dtype=torch.int64).random_(generator=again).item()}

    @property
    def given(self) -> list[str]:
        """The generators that were given to the loader: as they were before the sampler drew, or as they are.

        As they are is also how the next epoch finds them, once the sampler has ended.
        """
        given = self._given
        if given is None or self._progress.steps == self._last:
            return [generators.text_of(each.get_state()) for each in self.generators]
        texts = [each if isinstance(each, str) else generators.text_of(each) for each in given]
        given[:] = texts  # it takes 15 us
        return texts

    @property
    def mark(self) -> Mark | None:
        """Where a sampler with a state was when it had given the last of the steps that were handed out.

        What it says before the first is not asked for: some begin anew only when they are asked for a key.
        """
        steps = self._progress.steps
        if steps == self._first:
            return opened(self._begin)
        return opened(next((mark for step, mark in self._marks if step == steps), None))

    # How it is drawn.

    def restore(self) -> None:
        """Makes a sampler what it was at the end of the epoch before, if that is its mark. It draws from nobody."""
        mark = opened(self._begin)
        if mark is None or mark.states is None or not mark.kept:
            return
        given = [each.get_state() for each in self.generators]
        with generators.lent({}):
            renew(self.sampler, mark.kept)
        for each, state in zip(self.generators, given, strict=True):
            each.set_state(state)
        self._renewed = True

    def prepare(self) -> None:
        """Torch is about to begin its index sampler."""
        if not self._batched and not self._is_torchs:
            self._before = generators.take()
            self._given = [each.get_state() for each in self.generators]

    def fresh(self, begun: Iterator[Any]) -> Iterator[Any]:
        """A whole epoch. `begun` is the iterator of the index sampler that torch has made."""
        if not self._has_drawn(begun):
            return self._from_first(begun)
        self._note(self._before)
        return self._marked_from(begun) if self._has_state(begun) else begun

    def _from_first(self, begun: Iterator[Any]) -> Iterator[Any]:
        """The same, for what draws only when it is asked for its first keys, which is now."""
        self._given = [each.get_state() for each in self.generators]
        self._note({})
        if self._is_torchs:
            if type(self.sampler) in _RANDOM and self.sampler.generator is None:
                self._torch = torch.get_rng_state()
            yield from begun
            return
        before = generators.take()
        source = self._source(begun)
        if self._has_state(source):
            self._note(before)
            yield from self._marked_from(source)
            return
        steps = self._steps(by_next(source))
        first = list(islice(steps, 1))
        self._note(before)
        yield from chain(first, steps)

    def _note(self, before: dict[str, Any]) -> None:
        """The sampler has begun, and was asked to when the global generators were in these states."""
        after = generators.take() if before else {}
        self._origin = {name: state for name, state in before.items() if after[name] != state}
        epoch = getattr(self.sampler, "epoch", None)
        if isinstance(epoch, int) and hasattr(self.sampler, "set_epoch"):
            self._origin["epoch"] = epoch

    def resumed(
        self, begun: Iterator[Any], origin: dict[str, Any], states: dict[str, Any], given: list[str]
    ) -> Iterator[Any]:
        """The rest of an epoch: from this origin (`states` are those in it), or else from the mark on."""
        self._origin, self._given = dict(origin), [*given]
        mark = None if self._renewed else opened(self._begin)
        if mark is not None or not self._has_drawn(begun):
            generators.set_all(self.generators, given)
        return self._rest(begun, states, mark)

    def _rest(self, begun: Iterator[Any], states: dict[str, Any], mark: Mark | None) -> Iterator[Any]:
        origin, steps = self._origin or {}, self._progress.steps
        if "epoch" in origin:
            self.sampler.set_epoch(origin["epoch"])
        with generators.lent(states):
            if mark is not None:
                reading = Reading(self.sampler)
                reading.open(mark)
                rest = self._marked(reading)
            elif self._is_torchs:
                skip = steps * self._index.batch_size if self._batched else steps
                rest = self._steps(_from(self.sampler, origin.get("seed"), skip))
            elif self._has_state(source := self._source(begun)) and not steps:
                rest = self._marked_from(source)
            else:
                rest = _passed(self._steps(by_next(source)), steps)
        yield from rest

    def _has_drawn(self, begun: Iterator[Any]) -> bool:
        """Whether the sampler may have drawn already: a caller's own that makes its iterator when torch asks."""
        return not (self._batched or self._is_torchs or inspect.isgenerator(begun))

    def _steps(self, keys: Iterator[Any]) -> Iterator[Any]:
        return (
            iter(BatchSampler(keys, self._index.batch_size, self._index.drop_last)) if self._batched else keys
        )

    def _source(self, begun: Iterator[Any]) -> Iterator[Any]:
        """The sampler's own iterator."""
        return iter(self.sampler) if self._batched else begun

    def _has_state(self, source: Iterator[Any]) -> bool:
        return has_state(self.sampler) or has_state(source)

    def _marked_from(self, source: Iterator[Any]) -> Iterator[Any]:
        reading = Reading(self.sampler, renewed=self._renewed)
        reading.begin(source)
        return self._marked(reading)

    def _marked(self, reading: Reading) -> Iterator[Any]:
        """The steps of a sampler that has a state, which is kept for each of them until it was handed out."""
        size = self._index.batch_size if self._batched else 1
        step = self._progress.steps
        while (keys := reading.take(size)) and (len(keys) == size or not self._index.drop_last):
            step += 1
            self._keep(step, taken(self.sampler, reading.mark))
            if reading.ended:
                self._last = step
            yield keys if self._batched else keys[0]
        self.end = taken(self.sampler, reading.end)

    def _keep(self, step: int, mark: bytes | None) -> None:
        """After so many steps the sampler is there. Marks from before what was handed out are of no use any more."""
        while self._marks and self._marks[0][0] < self._progress.steps:
            self._marks.popleft()
        self._marks.append((step, mark))


def _from(sampler: Any, seed: int | None, skip: int) -> Iterator[Any]:
    """The keys of a sampler without those that it gives first: at once, where it is known what it does."""
    if type(sampler) is SequentialSampler:
        return iter(range(len(sampler.data_source))[skip:])
    if seed is not None:
        sampler = copy.copy(sampler)
        sampler.generator = torch.Generator().manual_seed(seed)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.generator is not None:
        n = len(sampler.data_source)
        if sampler.num_samples == n:
            return _shuffled(n, sampler.generator, skip)
    return _passed(by_next(iter(sampler)), skip)


def _shuffled(n: int, generator: torch.Generator, skip: int) -> Iterator[int]:
    """As torch's RandomSampler, which draws once more than it needs: its generator may be used again."""
    yield from torch.randperm(n, generator=generator)[skip:].tolist()
    torch.randperm(n, generator=generator)


def _passed(steps: Iterator[Any], skip: int) -> Iterator[Any]:
    """What is left after so many. The sampler has begun in any case: it draws now, if that is what it does first."""
    deque(islice(steps, skip), maxlen=0)
    return steps if skip else chain(list(islice(steps, 1)), steps)
