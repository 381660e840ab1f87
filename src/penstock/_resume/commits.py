"""Epochs in which a batch counts as consumed when the consumer commits the batch, not when it is handed out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from penstock._resume.state import MOST_BEYOND, Epochs, Progress, State, with_later
from penstock._system.interrupts import interrupts_deferred
from penstock.batch import Batch
from penstock.errors import StateError
from penstock.plan import ComputedPlan, Plan

_UNKNOWN = (
    "Step {step} of epoch {epoch} was not handed out by this loader, or was handed out before load_state_dict() or "
    "set_epoch(): such a batch comes again, and only its new copy can be committed. Commit each batch with the "
    "loader whose batches() made it."
)


class Commits(Progress):
    """The committed steps of one epoch. A step without a batch counts as committed."""

    run: Any = None  # the run that the epoch's steps come from

    def __init__(self, begin: State, plan: Plan | None) -> None:
        super().__init__(begin, plan)
        # Identifies the batches of this epoch, also after they were pickled. Not from a generator of the user.
        self.number = int.from_bytes(os.urandom(7), "big")
        # A step goes from `_last` to `_open`, and from there to the committed steps, and for a moment it is in both
        # places. Other threads, which take no lock, look for it in this order, so that they do not miss it.
        self._open: dict[int, bytes | None] = {}  # the marks of the steps that were handed out and not committed
        self._last: tuple[int, bytes | None] | None = None  # it is not known yet whether this step has a batch
        self._reached = max([begin.steps, *(step + 1 for step in begin.beyond)])
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("run", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    def __copy__(self) -> Commits:
        made: Any = super().__copy__()
        made._open = self._open.copy()
        return made  # type: ignore[no-any-return]

    # Called by the thread that reads the epoch.

    def passed(self, step: int, mark: bytes | None, worker: int = -1) -> None:
        self.settle()
        self._last = step, mark
        self._reached = max(self._reached, step + 1)

    def hold(self) -> None:
        """Keeps the most recent step open until its batch is committed."""
        assert self._last is not None
        step, mark = self._last
        self._open[step], self._last = mark, None

    def settle(self) -> None:
        """Counts the most recent step as committed, unless `hold` was called for that step."""
        if self._last is not None:
            with interrupts_deferred(), self._lock:
                super().passed(*self._last)
            self._last = None

    def finish(self, end: bytes | None, ends: Mapping[int, bytes] = {}) -> None:  # never changed
        self.settle()
        super().finish(end, ends)

    # Called by any thread.

    def commit(self, step: int) -> bool:
        """Commits an open step. Returns False if the step was already committed. Raises KeyError if it is unknown."""
        with interrupts_deferred(), self._lock:
            if step in self._open:
                super().passed(step, self._open[step])
                del self._open[step]
                return True
            if step < self.steps or step in self._beyond:
                return False
        raise KeyError(step)

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def reached(self) -> int:
        return self._reached

    def handed_out(self) -> tuple[int, list[int]]:
        last, opened = self._last, self._open.copy()
        steps, beyond = super().handed_out()
        found = sorted(step for step in {*beyond, *opened, *(last or ())[:1]} if step >= steps)
        first = next((at for at, step in enumerate(found, steps) if at != step), steps + len(found))
        return first, found[first - steps :]

    @property
    def is_read(self) -> bool:
        if self.is_over or (self.run is not None and self.run.is_left):
            return True
        if isinstance(self.plan, ComputedPlan):
            return not self.plan.has(self.epoch, self._reached)
        steps = None if self.plan is None else self.plan.steps(self.epoch)
        return steps is not None and self._reached >= steps

    @property
    def is_complete(self) -> bool:
        return self.is_read and self._last is None and not self._open


class CommittedEpochs(Epochs):
    """The epochs of a loader with `commit=True`. Batches of an epoch may stay open after the next epoch has begun."""

    progress_type = Commits

    def __init__(self) -> None:
        super().__init__()
        self._counts = 0, 0  # committed batches, and repeated commits
        self._lock = threading.RLock()
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    def _forget(self) -> None:
        # The epochs that are not complete, oldest first, with all epochs after them; and the epochs after these, of a
        # state that was loaded. The tuple is replaced as a whole: see `Progress`.
        self._now: tuple[tuple[Commits, ...], tuple[State, ...]] = (), ()
        self._complete = set[int]()

    def figures(self) -> tuple[int, int, int]:
        """Returns three counts: committed batches, repeated commits, and open batches."""
        return *self._counts, sum(each.open for each in self._now[0])

    def commit(self, batch: Batch[Any]) -> None:
        number = batch._pass
        found = next((each for each in self._now[0] if each.number == number), None)
        if found is None and number not in self._complete:
            raise ValueError(_UNKNOWN.format(step=batch.step, epoch=batch.epoch))
        try:
            with interrupts_deferred(), self._lock:
                is_first = found is not None and found.commit(batch.step)
                committed, twice = self._counts
                self._counts = committed + is_first, twice + (not is_first)
        except KeyError:
            raise ValueError(_UNKNOWN.format(step=batch.step, epoch=batch.epoch)) from None

    @property
    def later(self) -> tuple[State, ...]:
        return super().later or self._now[1]

    def check_read(self) -> None:
        last: Any = self.progress
        if self.loaded is None and last is not None and not last.is_read:
            raise RuntimeError(
                f"Epoch {last.epoch} was not read to its end: {last.reached} of its steps were handed out. With "
                "commit=True the next epoch begins after that, because every batch must be committed or come again. "
                "To read on, also from the open batches, call load_state_dict(state_dict()); to give up the rest of "
                f"the epoch and the open batches, call set_epoch({self.next})."
            )

    def set(self, epoch: int) -> None:
        last: Any = self.progress
        continues = epoch == self.next and self.loaded is None and (last is None or last.is_read)
        if not continues:
            self._forget()
        super().set(epoch)

    def load(self, state: State) -> None:
        self._forget()
        super().load(state)

    def start(self) -> State:
        fresh, waiting = super().start(), self._now[1]
        if self.loaded is not None or not waiting:
            return fresh
        return waiting[0]._replace(mark=fresh.mark, later=waiting[1:])

    def begin(self, progress: Progress) -> None:
        assert isinstance(progress, Commits)
        self._now = (*self._incomplete(), progress), progress.begin.later
        super().begin(progress)

    def _incomplete(self) -> tuple[Commits, ...]:
        """Returns the oldest incomplete epoch and all later epochs. The later epochs may be complete."""
        begun, _ = self._now
        while begun and begun[0].is_complete:
            self._complete.add(begun[0].number)
            begun = begun[1:]
        return begun

    def as_dict(self, about: Callable[[], dict[str, Any]], beginning: Callable[..., bytes | None]) -> dict[str, Any]:
        begun, waiting = self._incomplete(), self._now[1]
        if self.loaded is not None or not begun:
            return super().as_dict(about, beginning)
        states = [each.as_dict() for each in begun] + [each.as_dict() for each in waiting]
        steps = sum(last - first + 1 for state in states for first, last in state["beyond"])
        if steps > MOST_BEYOND:
            first = states[0]
            raise StateError(
                f"{steps} batches were committed after step {first['steps']} of epoch {first['epoch']}, which is "
                f"open, but a state holds at most {MOST_BEYOND}. Commit that batch."
            )
        # Only epochs that have begun know a description of the sampler.
        described = {name: value for state in states for name, value in state["about"].items()}
        return with_later({**states[0], "about": described}, states[1:])

    def copy(self) -> Epochs:
        made: Any = super().copy()
        begun, waiting = self._now
        copies = [made.progress if each is self.progress else each.__copy__() for each in begun]
        made._now, made._complete = (tuple(copies), waiting), self._complete.copy()
        return made  # type: ignore[no-any-return]
