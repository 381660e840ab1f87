"""The epochs of a loader, and the progress of one: the steps that were handed out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from penstock._resume.reading import Mark, has_state
from penstock._resume.state import State
from penstock.plan import OrderPlan, Plan, SamplerPlan, Sequential, Shuffled


class Progress:
    """The steps of one epoch that were handed out, and the position of its sampler or stream after them."""

    def __init__(self, begin: State, plan: Plan | None) -> None:
        self.epoch = begin.epoch
        self.is_over = False
        self._plan = plan
        self._begin = begin
        self._about = begin.about
        # The number of steps without a gap, the steps beyond with their marks, and the last mark: one value that is
        # replaced and never changed, so that another thread may take a state at any moment.
        self._at: tuple[int, Mapping[int, bytes | None], bytes | None]
        self._at = begin.steps, dict.fromkeys(begin.beyond), None
        self._end: bytes | None = None

    def passed(self, step: int, mark: bytes | None) -> None:
        """The step was handed out, as a batch or as an error; `mark`: see `Task`."""
        steps, beyond, last = self._at
        if step != steps:
            self._at = steps, {**beyond, step: mark}, last
            return
        steps, last = steps + 1, mark or last
        if beyond:
            left = dict(beyond)
            while steps in left:
                steps, last = steps + 1, left.pop(steps) or last
            beyond = left
        self._at = steps, beyond, last

    def finish(self, end: bytes | None) -> None:
        """The epoch is over; `end`: see `Run`."""
        # An epoch without batches keeps no mark: the next one must not have to have some.
        self._end = end if self.steps else None
        self.is_over = True

    @property
    def steps(self) -> int:
        return self._at[0]

    @property
    def began_at_end(self) -> bool:
        """True if the epoch was resumed at its end: no live object has the state that the mark describes."""
        mark = self._begin.mark
        return isinstance(mark, Mark) and mark.at_end

    @property
    def mark(self) -> bytes | Mark | None:
        """The mark of the last step that was handed out, or of an earlier one; at the end, for the next epoch."""
        return self._end if self.is_over else self._at[2] or self._begin.mark

    @property
    def beyond(self) -> list[int]:
        """The steps that were handed out early."""
        return sorted(self._at[1])

    def as_dict(self) -> dict[str, Any]:
        """The state, without seed and dataset."""
        (steps, beyond, mark), plan, consumed = self._at, self._plan, None
        if not steps and not beyond:
            consumed = 0
        elif "sampler" not in self._about:  # once in an epoch: hashing many keys takes time
            self._about = {**self._about, "sampler": content(plan, self._about.get("length"))}
        if isinstance(plan, OrderPlan) and consumed is None:
            consumed = plan.consumed(self.epoch, steps)
        state = State(self.epoch, steps, tuple(beyond), None, self._about, consumed, mark or self._begin.mark)
        return state.as_dict()


class Epochs:
    """The epochs of a loader. A loader that replaces it takes them over."""

    def __init__(self) -> None:
        self.next = 0
        self.begun: int | None = None
        self.progress: Progress | None = None  # of the epoch that was begun last
        self.loaded: State | None = None

    @property
    def current(self) -> int:
        """The epoch that was begun last; before the first `iter()`, the epoch that it will begin."""
        return self.next if self.begun is None else self.begun

    def set(self, epoch: int) -> None:
        self.next, self.begun = epoch, None
        self.progress = self.loaded = None

    def load(self, state: State) -> None:
        """The next epoch continues from this state."""
        self.set(state.epoch)
        self.loaded = state

    def start(self) -> State:
        """The state that the next epoch starts from."""
        if self.loaded is not None:
            return self.loaded
        before = self.progress
        return State(self.next, 0, mark=before.mark if before is not None and before.is_over else None)

    def restores(self) -> bool:
        """True if the sampler or stream must load its state: no live object has the state that the mark describes."""
        return self.loaded is not None or (self.progress is not None and self.progress.began_at_end)

    def begin(self, progress: Progress) -> None:
        """An epoch was begun. In this order: another thread may take a state between any two assignments."""
        self.progress, self.loaded = progress, None
        self.begun, self.next = self.next, self.next + 1

    def copy(self) -> Epochs:
        """A copy with its own progress: batches that are handed out later do not move it."""
        made = copy.copy(self)
        made.progress = copy.copy(self.progress)
        return made


def content(plan: Plan | None, length: int | None) -> str | None:
    """A short description of the sampler's keys, to notice that a state was taken with another sampler.

    None if the length of the dataset says as much, if the sampler has a state itself, or if nothing is known.
    """
    if isinstance(plan, OrderPlan):
        order: Any = plan.order
        if order in (Sequential(length or 0), Shuffled(length or 0, getattr(order, "seed", 0))):
            return None
        digest = blake2b(digest_size=8)
        _digest(digest, order)
        return f"{order.size(0)} keys, {digest.hexdigest()}"
    if not isinstance(plan, SamplerPlan) or has_state(plan.sampler):
        return None
    number = None
    with suppress(Exception):  # the user's code, and no reason to have no state
        number = len(plan.sampler)  # type: ignore[arg-type]
    size = getattr(plan.sampler, "batch_size", None) if plan.batched else None
    known = [f"{number} {'batches' if plan.batched else 'keys'}"] if number is not None else []
    return " ".join(known + ([f"of {size}"] if isinstance(size, int) else [])) or None


def _digest(digest: blake2b, value: Any) -> None:
    """Hashes all fields of an order except the seed, which a state has in a field of its own."""
    if is_dataclass(value):
        digest.update(type(value).__name__.encode())
        for part in fields(value):
            if part.name != "seed":
                _digest(digest, getattr(value, part.name))
    elif isinstance(value, np.ndarray):
        digest.update(np.ascontiguousarray(value).data)
    else:
        digest.update(f" {value} ".encode())
