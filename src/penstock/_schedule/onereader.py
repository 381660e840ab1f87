"""The scheduler for a stream that one worker reads from its beginning to its end.

Its steps are claimed in their order. If the reader dies, a new one can only continue from a known position: at the
first step of the run, or behind a step that told the state of the stream. Otherwise the run breaks there, with an
error and never silently.

    stream   read --WorkerLost, the position is known--> the first posted step is posted again, with the position
             read --WorkerLost, unknown, or the step has no retries left--> Break, and the run ends before that step
"""

from __future__ import annotations

from penstock._schedule.commands import Break, Command, Post, Rescind
from penstock._schedule.events import Opened, Rescinded, WorkerLost
from penstock._schedule.scheduler import Scheduler
from penstock._schedule.states import POSTED, Step


class OneReader(Scheduler):
    """As `Scheduler`, with one worker. A seq that is posted again goes with the position of the stream."""

    def __init__(self, *, window: int, retries: int, in_order: bool = True) -> None:
        super().__init__(window=window, workers=1, retries=retries, in_order=in_order)
        self._first = 0  # the seq that the run began at

    def _opened(self, event: Opened, out: list[Command]) -> None:
        self._first = self._next_seq
        super()._opened(event, out)

    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        if event.seq in self._abandoned:
            super()._take_back(event, out)
        seq = next((seq for seq, step in self._steps.items() if step.state is POSTED), None)
        if seq is None:
            return
        claimed = event.seq == seq
        step = self._steps[seq]
        step = Step(POSTED, step.slab, step.attempt + claimed, event.worker)
        unknown = seq != self._first and not event.resumable
        if unknown or step.attempt > self._retries:
            out.append(Break(seq, event.worker, unknown))
            if claimed:
                self._forget_posted(seq, event, out)
            self._end_stream(seq, [later for later in self._steps if later >= seq], out)
            return
        self._steps[seq] = step
        # A task that the dead reader had not claimed is withdrawn first: it was posted without the position.
        out.append(Post(seq, step.slab) if claimed else Rescind(seq))

    def _rescinded(self, event: Rescinded, out: list[Command]) -> None:
        if self._crew and event.seq not in self._abandoned:
            out.append(Post(event.seq, self._posted_step(event.seq, event).slab))
        else:
            super()._rescinded(event, out)
