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
        self._moved: list[int] = []  # seqs that were withdrawn and posted again at once: Rescinded is to come

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
        if not claimed:
            # It was posted without the position, so it is withdrawn first, which must succeed: its only reader is
            # dead. It is posted again in the same list of commands, because the new reader is hired at the end of
            # the list, and would begin with the step after this one.
            out.append(Rescind(seq))
            self._moved.append(seq)
        out.append(Post(seq, step.slab))

    def _rescinded(self, event: Rescinded, out: list[Command]) -> None:
        if event.seq in self._moved:
            self._moved.remove(event.seq)
        else:
            super()._rescinded(event, out)
