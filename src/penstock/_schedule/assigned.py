"""A scheduler for workers that cannot replace each other. Each step belongs to one worker from the beginning.

In torch's loader, each worker has its own random generators and its own copy of a stream, so the content of a step
depends on the worker that does it. The rules are:

- Steps go to the seats (the workers' slots) in turn. A seat whose stream has ended is skipped.
- A posted step is always done, because it advances the worker's random generators.
- A worker that dies cannot be replaced.
- If there is only one run (one epoch), a worker whose stream has ended exits at once.
"""

from __future__ import annotations

from penstock._schedule.commands import Command, Fail, Hire, Post
from penstock._schedule.events import Cancelled, Event, Opened, StepEnded, WorkerLeft, WorkerLost
from penstock._schedule.scheduler import Scheduler
from penstock._schedule.states import POSTED, Step


class Assigned(Scheduler):
    """A `Scheduler` that assigns each step to a fixed seat. If `once` is True, only one run is allowed."""

    _rescinds = False

    def __init__(self, *, window: int, workers: int, in_order: bool = True, once: bool = False) -> None:
        super().__init__(window=window, workers=workers, retries=0, in_order=in_order)
        self._seats = workers
        self._once = once
        self._ended: set[int] = set()  # seats whose stream has ended
        self._turn = 0

    @property
    def must_settle(self) -> bool:
        return bool(self._abandoned)

    def _may_wait(self) -> bool:
        return False  # the caller's sampler is asked for one step per delivered step, without delay

    def _opened(self, event: Opened, out: list[Command]) -> None:
        if self._abandoned:
            self._impossible(event, "steps of the last run are not done yet")
        if self._once and self._ended:
            self._impossible(event, "workers of the last run have left")
        self._ended.clear()
        self._turn = event.seat
        super()._opened(event, out)
        # torch starts its workers before it asks the sampler.
        out.sort(key=lambda command: type(command) is not Hire)

    def _post(self, out: list[Command]) -> None:
        while not self._drained and len(self._steps) < self._window:
            seat = self._next_seat()
            if seat is None:
                return
            seq, slab = self._next_seq, self._slabs.take()
            self._next_seq = seq + self._spacing
            self._steps[seq] = Step(POSTED, slab, 0, -1, seat)
            out.append(Post(seq, slab, seat))

    def _next_seat(self) -> int | None:
        """Returns the seat for the next step, or None if no seat may get a step.

        With `in_order=False`, skips seats that have enough steps.
        """
        workers = self._seats
        share = max(1, self._window // max(1, workers - len(self._ended)))
        for _ in range(workers):
            seat = self._turn
            self._turn = (seat + 1) % workers
            if seat in self._ended:
                continue
            if self._in_order or sum(step.seat == seat for step in self._steps.values()) < share:
                return seat
        return None

    def _step_ended(self, event: StepEnded, out: list[Command]) -> None:
        if event.seq in self._abandoned:
            self._forget_abandoned(event.seq, out)
            return
        seat = self._posted_step(event.seq, event).seat
        self._forget_posted(event.seq, event, out)
        self._ended.add(seat)
        self._abandon([seq for seq, step in self._steps.items() if step.seat == seat and seq > event.seq], out)
        if self._once:
            self._crew.dismiss(seat, out)
        if len(self._ended) == self._seats:
            self._drained = True
            self._lower_bound_to(self._next_seq)

    def _cancelled(self, event: Cancelled, out: list[Command]) -> None:
        super()._cancelled(event, out)
        self._drained = True

    def _worker_left(self, event: WorkerLeft, out: list[Command]) -> None:
        seat = self._crew.seats.get(event.worker)
        super()._worker_left(event, out)
        # The worker may have been killed before it had done its abandoned steps.
        for seq in [seq for seq, step in self._abandoned.items() if step.seat == seat]:
            self._forget_abandoned(seq, out)

    def _worker_lost(self, event: WorkerLost, out: list[Command]) -> None:
        out.append(Fail(event.worker))

    def _refused(self, event: Event, out: list[Command]) -> None:
        self._impossible(event, "with a fixed assignment the batches depend on the number of workers and their past")

    _resized = _changed = _refused

    def _has_room(self) -> bool:
        turn = self._turn
        seat = self._next_seat()
        self._turn = turn
        return seat is not None and super()._has_room()

    def check(self) -> None:
        super().check()
        seats = [*(step.seat for step in self._steps.values()), *self._ended, self._turn]
        assert all(0 <= seat < self._seats for seat in seats), "every step has a seat"
