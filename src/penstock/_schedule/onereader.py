"""A scheduler for a stream that one worker reads from its beginning to its end.

The worker claims the steps in order. If the worker dies, a new reader can continue only from a known position: the
start of the run, or the position after a step that reported the stream's state. If no position is known, the run ends
with an error, never silently.

    stream   read --WorkerLost, the position is known--> the first posted step is posted again, with the position
             read --WorkerLost, the position is known, nothing is posted--> the next step is posted with the position
             read --WorkerLost, and position unknown, no retries left, or seat given up--> Break, which ends the run
"""

from __future__ import annotations

from penstock._schedule.commands import Break, Command, Post, Rescind
from penstock._schedule.events import Changed, Opened, Rescinded, Resized, WorkerLost
from penstock._schedule.scheduler import Scheduler
from penstock._schedule.states import OPEN, POSTED, Step


class OneReader(Scheduler):
    """A `Scheduler` that has exactly one worker, even if the user asked for more."""

    def __init__(self, *, window: int, retries: int, in_order: bool = True) -> None:
        super().__init__(window=window, workers=1, retries=retries, in_order=in_order)
        self._first = 0  # the seq that the run began at
        self._resume = False  # the next posted step carries the position

    def _opened(self, event: Opened, out: list[Command]) -> None:
        self._first = self._next_seq
        self._resume = False
        super()._opened(event, out)

    def _post(self, out: list[Command]) -> None:
        posts: list[Command] = []
        super()._post(posts)
        for i, command in enumerate(posts):
            if self._resume and isinstance(command, Post):
                posts[i] = command._replace(resume=True)
                self._resume = False
        out += posts

    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        if event.seq in self._abandoned:
            super()._take_back(event, out)
        if self.phase is not OPEN:
            return
        seq = self.waits_for
        if seq is not None:
            self._post_again(seq, event, out)
        elif not self._drained:
            self._resume = event.resumable
            if not event.resumable:
                out.append(Break(self._next_seq, event.worker, unknown=True))
                self._end_stream(self._next_seq, [], out)

    def _post_again(self, seq: int, event: WorkerLost, out: list[Command]) -> None:
        claimed = event.seq == seq
        step = self._steps[seq]
        self._steps[seq] = step = Step(POSTED, step.slab, step.attempt + claimed, event.worker)
        unknown = seq != self._first and not event.resumable
        if unknown or step.attempt > self._retries or self._crew.given_up():
            out.append(Break(seq, event.worker, unknown))
            if claimed:
                self._forget_posted(seq, event, out)
            self._end_stream(seq, [later for later in self._steps if later >= seq], out)
            return
        if not claimed:  # the task on the board has no position
            out.append(Rescind(seq))
        out.append(Post(seq, step.slab, resume=seq != self._first))

    def _rescinded(self, event: Rescinded, out: list[Command]) -> None:
        if event.seq in self._abandoned:  # otherwise it was posted again at once
            super()._rescinded(event, out)

    def _resized(self, event: Resized, out: list[Command]) -> None:
        super()._resized(event._replace(workers=1), out)

    def _changed(self, event: Changed, out: list[Command]) -> None:
        self._impossible(event, "what a worker has read from a stream cannot be read again")
