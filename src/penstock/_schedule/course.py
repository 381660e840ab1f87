"""Tracks each step of a plan, from drawing the step to handing it out to the consumer.

    step   undrawn --draw--> OUT, in a task --fill, deliver--> READY --hand_out--> forgotten
           OUT --split--> OUT, in a task of its own
           OUT, READY --redo--> AGAIN --draw--> OUT, in another task
           OUT --forget--> forgotten        any --cancel--> forgotten

A `seq` is the number of a task. Like the scheduler, this module has no clock, lock or buffer. The code does not
look into tasks and outcomes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock._feed.base import Run
    from penstock._wire.task import Task


class Course:
    """Maps each `seq` (the number of a task) to steps of the plan.

    If `look_ahead` is True, the steps may belong to a run that is not open yet.
    """

    def __init__(self, look_ahead: bool) -> None:
        self.run: Run | None = None
        self.ahead: Run | None = None
        self.ready: deque[tuple[Task, Any]] = deque()  # delivered and not handed out, each with its outcome
        self.filled: dict[int, Any] = {}  # the outcomes of tasks that are out: by seq, until they are delivered
        self._look_ahead = look_ahead
        self._out: dict[int, Task] = {}
        self._again: deque[Task] = deque()

    def open(self, run: Run) -> None:
        self.run, self.ahead = run, None

    def draw(self, seq: int, most: int = 1) -> tuple[Task | None, bool]:
        """Returns the task for `seq` (None if no step is left), and whether the run ends before this task."""
        if self._again:
            task = self._out[seq] = self._again.popleft()._replace(seq=seq)
            return task, False
        run = self.ahead or self.run
        assert run is not None, "steps are posted only while a run is open"
        drawn = run.draw(seq, most)
        ends = False
        if drawn is None and run is self.run:
            ends = True
            if self._look_ahead and run.error is None:
                self.ahead = run.follow()
                drawn = None if self.ahead is None else self.ahead.draw(seq, most)
        if drawn is not None:
            self._out[seq] = drawn
        return drawn, ends

    def refuse(self, seq: int, error: BaseException) -> bool:
        """Ends the run of the task `seq` with an error. Returns False if that run is only being prefetched."""
        task = self._out.pop(seq)
        self._again.clear()  # these come after it
        # A task that is posted again may belong to the current run, although steps of the next run are already drawn.
        run = self.ahead if self.ahead is not None and self.ahead.number == task.run else self.run
        assert run is not None
        run.fail(error)
        return run is self.run

    def find(self, seq: int | None) -> Task | None:
        return None if seq is None else self._out.get(seq)

    def split(self, seq: int) -> list[Task]:
        """Splits a task into one task per step. Returns [] if the task was dropped."""
        task = self._out.get(seq)
        if task is None:
            return []
        steps = task.single()
        self._out.update((step.seq, step) for step in steps)
        return steps

    def fill(self, seq: int, outcome: Any) -> Task | None:
        """Stores the outcome of a task until it is delivered. Returns the task, or None if it was dropped."""
        task = self._out.get(seq)
        if task is not None:
            self.filled[seq] = outcome
        return task

    def deliver(self, seq: int, outcomes: Sequence[Any]) -> None:
        """Queues the steps of a delivered task for handing out, each with its outcome."""
        task = self._out.pop(seq)
        if len(outcomes) == 1:
            self.ready.append((task, outcomes[0]))
        else:
            self.ready.extend(zip(task.single(), outcomes, strict=True))

    def forget(self, seq: int) -> Task | None:
        return self._out.pop(seq, None)

    def forget_from(self, seq: int) -> None:
        """Drops the task `seq` and all later tasks. The run ends before this task."""
        self._out = {earlier: task for earlier, task in self._out.items() if earlier < seq}
        self.filled = {earlier: outcome for earlier, outcome in self.filled.items() if earlier < seq}

    def redo(self) -> int:
        """Requeues the steps that have not been handed out, and returns their number. Drops the next run's steps."""
        again = [task for task, _ in self.ready]
        again += [step for seq in sorted(self._out) for step in self._out[seq].single()]
        again += self._again
        run = self.run
        self.cancel()
        if run is not None:
            self.run = run
            self._again.extend(task for task in again if task.run == run.number)
        return len(self._again)

    def cancel(self) -> None:
        self.run = self.ahead = None
        self.ready.clear()
        self.filled.clear()
        self._out.clear()
        self._again.clear()

    def check(self) -> None:
        """Asserts the invariants. This is slow, so only tests call it."""
        out = [step for seq in sorted(self._out) for step in self._out[seq].single()]
        steps = [(task.run, task.step) for task in (*(task for task, _ in self.ready), *out, *self._again)]
        assert len(set(steps)) == len(steps), "a step is in one place"
        assert all(seq == task.seq for seq, task in self._out.items()), "a task knows its seq"
        assert self.filled.keys() <= self._out.keys(), "what is filled is out"
        assert all(task.run == self.run.number for task in self._again if self.run), "only this run is done again"
