"""Every interleaving of small worlds, and planted bugs that show that the walk would notice.

Each world below is walked through completely: whatever can happen in a state is made to happen, until no
state is new. `world.py` states the laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from model.world import IN_KEY, NOT_IN_KEY, Breach, Setting, explore

from penstock._schedule.assigned import Assigned
from penstock._schedule.commands import (
    Break,
    Command,
    Deliver,
    Finish,
    GiveUp,
    Hire,
    Post,
    Rescind,
    Retire,
)
from penstock._schedule.course import Course
from penstock._schedule.crew import Crew
from penstock._schedule.events import (
    CALLER,
    Asked,
    Cancelled,
    Changed,
    Event,
    Opened,
    Rescinded,
    Resized,
    StepEnded,
    StepFilled,
    WorkerLeft,
    WorkerLost,
)
from penstock._schedule.onereader import OneReader
from penstock._schedule.scheduler import Scheduler
from penstock._schedule.slabs import SlabStates
from penstock._schedule.states import ABANDONED, FILLED, LOST, OPEN, POSTED, Step

EVERY = frozenset(range(9))

reader = partial(Setting, rule=OneReader, workers=1, ends="stream")
seats = partial(Setting, rule=Assigned, ends="found", ahead=False)
seats_of_streams = partial(Setting, rule=Assigned, ends="stream")

WORLDS = {
    "one crash, two held": Setting(runs=(4,), crashes=1, hold=2),
    "two crashes": Setting(runs=(3,), crashes=2, unread=0),
    "two crashes, no retries": Setting(runs=(3,), crashes=2, retries=0, unread=0),
    "a run prefetched behind another": Setting(runs=(4, 2), hold=2),
    "a run prefetched, ends found": Setting(runs=(2, 2), ends="found", crashes=1, unread=0),
    "nothing prefetched": Setting(runs=(2, 2), ends="found", crashes=1, ahead=False, unread=0),
    "empty runs": Setting(runs=(1, 0, 1, 0), ends="found", crashes=1, cancels=1),
    "cancel and open again": Setting(runs=(3, 2), cancels=1, unread=0),
    "cancel and crash": Setting(runs=(2, 1), window=2, cancels=1, crashes=1),
    "as they come": Setting(runs=(3, 1), in_order=False, crashes=1, unread=0),
    "as they come, cancel": Setting(runs=(2, 2), in_order=False, cancels=1, unread=0),
    "stream": Setting(runs=(1, 1), ends="stream"),
    "stream, crash": Setting(runs=(1, 1), ends="stream", window=2, crashes=1, unread=0),
    "stream, crash, no retries": Setting(runs=(1, 1), ends="stream", window=2, retries=0, crashes=1, unread=0),
    "stream, crash, cancel": Setting(runs=(2, 1), ends="stream", window=2, workers=1, crashes=1, cancels=1, unread=0),
    "stream as they come, crash": Setting(runs=(2, 1), ends="stream", window=2, workers=1, in_order=False, crashes=1),
    "stream, cancel": Setting(runs=(0, 1, 1), ends="stream", window=2, cancels=1, unread=0),
    "stream as they come": Setting(runs=(2, 1), ends="stream", in_order=False, window=2),
    "a crew that dies at birth": Setting(runs=(2, 1), window=2, workers=1, retries=0, crashes=5),
    "half a crew that dies at birth": Setting(runs=(2,), window=2, retries=0, crashes=5),
    "a crew that dies, cancel": Setting(runs=(1, 1), window=1, workers=1, retries=0, crashes=4, cancels=1, unread=0),
    "a worker that is not started": Setting(runs=(3,), crashes=1, refusals=1, unread=0),
    "workers that are not started": Setting(
        runs=(1, 1), ends="found", window=2, retries=0, crashes=1, refusals=3, unread=0
    ),
    "workers that are not started, stream": Setting(
        runs=(2,), ends="stream", window=2, workers=1, retries=0, crashes=1, refusals=2
    ),
    "workers that are not started, cancel": Setting(
        runs=(1, 1), window=2, workers=1, retries=0, crashes=1, refusals=2, cancels=1, unread=0
    ),
    "workers that are not started, bundles as they come": Setting(
        runs=(2,), ends="found", bundle=2, window=2, in_order=False, crashes=1, refusals=3, retries=0
    ),
    "bundles, crash": Setting(runs=(5,), ends="found", bundle=2, window=2, crashes=1),
    "bundles, two crashes": Setting(runs=(3, 1), ends="found", bundle=2, window=2, crashes=2, unread=0),
    "bundles, no retries": Setting(runs=(3, 1), ends="found", bundle=2, window=2, retries=0, crashes=2, unread=0),
    "bundles of three": Setting(runs=(3,), ends="found", bundle=3, window=1, crashes=2, hold=2),
    "bundles, cancel": Setting(runs=(2, 2), ends="found", bundle=2, window=2, crashes=1, cancels=1, unread=0),
    "bundles as they come": Setting(runs=(4,), ends="found", bundle=2, window=2, crashes=1, in_order=False),
    "a crew that dies at birth, bundles": Setting(
        runs=(3,), ends="found", bundle=2, window=1, workers=1, retries=0, crashes=5
    ),
    "every free slab is cooled": Setting(runs=(3,), window=2, hold=2, spare=0, crashes=1),
    "change": Setting(runs=(3, 1), ends="found", changes=1, window=2, unread=0),
    "two changes": Setting(runs=(2,), ends="found", changes=2, window=2, unread=0),
    "change and crash": Setting(runs=(2,), ends="found", changes=1, crashes=1, window=2, unread=0),
    "change and a crew that dies at birth": Setting(
        runs=(1, 1), ends="found", changes=1, crashes=3, window=1, workers=1, retries=0, unread=0
    ),
    "change and cancel": Setting(runs=(2, 1), ends="found", changes=1, cancels=1, window=2, workers=1),
    "change, as they come": Setting(runs=(3,), ends="found", changes=1, window=2, in_order=False, unread=0),
    "change, bundles": Setting(runs=(4, 2), ends="found", changes=1, bundle=2, window=2, workers=1, unread=0),
    "change, bundles, crash": Setting(
        runs=(3,), ends="found", changes=1, crashes=1, bundle=3, window=2, workers=1, unread=0
    ),
    "change, bundles as they come": Setting(
        runs=(3,), ends="found", changes=1, bundle=2, window=2, in_order=False, unread=0
    ),
    "a task that cannot be sent": Setting(
        runs=(3, 1), ends="found", unsendable=(0, 2, 0), crashes=1, window=2, unread=0
    ),
    "a task of the next run that cannot be sent": Setting(
        runs=(1, 2), ends="found", unsendable=(1, 1, 0), crashes=1, window=2, unread=0
    ),
    "a bundle that cannot be sent": Setting(
        runs=(4, 1), ends="found", unsendable=(0, 3, 0), bundle=2, window=2, crashes=1, unread=0
    ),
    "a change after which a task cannot be sent": Setting(
        runs=(3, 1), ends="found", changes=1, unsendable=(0, 1, 1), window=2, unread=0
    ),
    "a sampler that raises": Setting(runs=(3, 1), raising=(0, 1), crashes=1, window=2, unread=0),
    "a sampler that raises first": Setting(runs=(2, 1), ends="found", raising=(0, 0), crashes=1, window=2),
    "a sampler that raises in the next run": Setting(runs=(1, 2), raising=(1, 0), cancels=1, window=2, unread=0),
    "a sampler that raises, as they come": Setting(
        runs=(3,), in_order=False, raising=(0, 2), crashes=1, window=2, unread=0
    ),
    "a sampler that raises, change": Setting(runs=(3,), ends="found", changes=1, raising=(0, 1), window=2, unread=0),
    "a sampler that raises, and a crew that dies at birth": Setting(
        runs=(3, 1), raising=(0, 1), window=2, workers=1, retries=0, crashes=5
    ),
    "a sampler that raises, fixed assignment": seats(runs=(3, 2), raising=(0, 1), cancels=1, window=2, unread=0),
    "more workers": Setting(runs=(3,), window=2, workers=1, resizes=((2, 3),), crashes=1, unread=0),
    "fewer workers": Setting(runs=(2,), window=3, resizes=((1, 2),), crashes=1, unread=0),
    "fewer workers, then more": Setting(runs=(1,), window=2, resizes=((1, 1), (2, 2)), crashes=1, unread=0),
    "more workers, then fewer": Setting(runs=(1, 1), window=1, workers=1, resizes=((3, 2), (1, 1)), unread=0),
    "fewer workers, cancel": Setting(runs=(1, 1), window=2, resizes=((1, 1),), cancels=1, unread=0),
    "fewer workers, of which many die at birth": Setting(
        runs=(1,), window=2, retries=0, resizes=((1, 2),), crashes=2, unread=0
    ),
    "fewer workers, and some are not started": Setting(
        runs=(1,), window=1, retries=0, resizes=((1, 1), (2, 1)), refusals=2, unread=0
    ),
    "fewer workers, change": Setting(runs=(2,), ends="found", window=2, resizes=((1, 1),), changes=1, unread=0),
    "fewer workers, bundles": Setting(runs=(4,), ends="found", window=2, resizes=((1, 1),), bundle=2, unread=0),
    "fewer workers, stream": Setting(runs=(1,), ends="stream", window=2, resizes=((1, 1),), unread=0),
    "fewer workers, as they come": Setting(
        runs=(2,), window=2, resizes=((1, 1),), in_order=False, crashes=1, unread=0
    ),
    "a window that shrinks and grows": Setting(
        runs=(3,), workers=1, resizes=((1, 1), (1, 2)), hold=2, spare=1, unread=0
    ),
    "one reader that tells": reader(runs=(3, 1), tells=EVERY, crashes=1, window=2, unread=0),
    "one reader that never tells": reader(runs=(2, 1), crashes=2, window=2, hold=2, unread=0),
    "one reader that tells once": reader(runs=(3, 1), tells=frozenset({1}), crashes=2, window=2, unread=0),
    "one reader, cancel": reader(runs=(2, 1), tells=EVERY, crashes=1, window=2, cancels=1, unread=0),
    "one reader, no retries": reader(runs=(2, 1), tells=EVERY, retries=0, crashes=2, window=2, unread=0),
    "one reader that is not started": reader(
        runs=(2,), tells=frozenset({1}), retries=0, crashes=1, refusals=2, window=2, unread=0
    ),
    "one reader, as it comes": reader(
        runs=(2, 1), tells=frozenset({0}), crashes=2, window=2, in_order=False, unread=0
    ),
    "one reader that dies at birth": reader(runs=(2, 1), tells=EVERY, retries=0, crashes=4, window=1, unread=0),
    "one reader, resized": reader(runs=(2,), tells=EVERY, crashes=1, window=2, resizes=((3, 1), (1, 3)), unread=0),
    "seats": seats(runs=(4, 3), window=2, unread=0),
    "seats, cancel": seats(runs=(4, 2), cancels=1, unread=0),
    "seats, crash": seats(runs=(3, 2), window=2, crashes=1, cancels=1, unread=0),
    "seats from the second on": seats(runs=(4, 2), workers=3, seat=1, unread=0),
    "seats, as they come": seats(runs=(4, 2), cancels=1, in_order=False, unread=0),
    "seats with streams": seats_of_streams(runs=(0, 0), lengths=(1, 2), window=2, unread=0),
    "three seats with streams": seats_of_streams(runs=(0,), lengths=(2, 0, 1), workers=3, seat=2, unread=0),
    "three seats with streams, as they come": seats_of_streams(
        runs=(0,), lengths=(1, 0, 1), workers=3, in_order=False, unread=0
    ),
    "seats with streams, cancel": seats_of_streams(runs=(0, 0), lengths=(0, 2), window=2, cancels=1, unread=0),
    "seats with streams, as they come": seats_of_streams(
        runs=(0, 0), lengths=(1, 0), window=2, in_order=False, cancels=1, unread=0
    ),
    "seats with streams, crash": seats_of_streams(runs=(0,), lengths=(2, 1), window=2, crashes=1, unread=0),
    "seats with streams, once, crash and cancel": seats_of_streams(
        runs=(0,), lengths=(0, 1), once=True, crashes=1, cancels=1, unread=0
    ),
}

WIDE = {
    "seats with streams, once": seats_of_streams(runs=(0,), lengths=(2, 0, 1), workers=3, once=True, unread=0),
    "seats with streams, once, out of order": seats_of_streams(
        runs=(0,), lengths=(1, 0, 1), workers=3, once=True, in_order=False, unread=0
    ),
    "crash and cancel": Setting(runs=(4, 2), hold=2, crashes=1, cancels=1, unread=0),
    "stream, crash, wide window": Setting(runs=(1, 1), ends="stream", crashes=1, unread=0),
    "workers that are not started, bundles as they come": Setting(
        runs=(4,), ends="found", bundle=2, window=2, in_order=False, crashes=1, refusals=4, retries=0
    ),
    "bundles of three": Setting(runs=(3,), ends="found", bundle=3, window=1, crashes=3, hold=2),
    "change, crash": Setting(runs=(2, 1), ends="found", changes=1, crashes=1, window=2, unread=0),
    "change, crashes, no retries": Setting(
        runs=(2, 1), ends="found", changes=1, crashes=3, window=1, retries=0, unread=0
    ),
    "change, bundles as they come, crash": Setting(
        runs=(4,), ends="found", changes=1, bundle=2, window=2, crashes=1, in_order=False
    ),
    "change, bundles of three, crash": Setting(
        runs=(3, 1), ends="found", changes=1, crashes=1, bundle=3, window=2, unread=0
    ),
    "fewer workers, then more, not all started": Setting(
        runs=(2,), window=2, retries=0, resizes=((1, 2), (2, 2)), refusals=2, crashes=1, unread=0
    ),
    "fewer workers, change": Setting(runs=(2, 1), ends="found", window=2, resizes=((1, 1),), changes=1, unread=0),
    "more workers, then fewer, crash": Setting(
        runs=(2, 1), window=2, workers=1, resizes=((3, 2), (1, 1)), crashes=1, unread=0
    ),
    "one reader, cancel": reader(runs=(2, 2), tells=EVERY, crashes=2, window=2, cancels=1),
    "seats with streams": seats_of_streams(runs=(0, 0), lengths=(1, 3), window=4, unread=0),
}

# Worlds of above, and what is larger in them.
for _name, _larger in {
    "two crashes": {"runs": (4,)},
    "two crashes, no retries": {"runs": (4,)},
    "a run prefetched, ends found": {"runs": (3, 2)},
    "stream, crash": {"runs": (2, 1)},
    "stream, crash, no retries": {"window": 3},
    "stream, cancel": {"unread": 1},
    "a crew that dies at birth": {"runs": (3, 1)},
    "a crew that dies, cancel": {"workers": 2},
    "workers that are not started": {"runs": (2, 1)},
    "bundles, two crashes": {"runs": (4, 1)},
    "bundles, no retries": {"runs": (3, 2)},
    "bundles, cancel": {"runs": (3, 2)},
    "one reader that dies at birth": {"runs": (3, 1)},
}.items():
    WIDE[f"{_name}, larger"] = replace(WORLDS[_name], **_larger)


# Worlds that take more than three seconds, and resemble others that `make test` explores.
LARGE = {
    *("stream", "stream, crash, no retries", "stream, crash, cancel", "as they come", "as they come, cancel"),
    *("a sampler that raises, and a crew that dies at birth", "one crash, two held", "cancel and open again"),
    *("cancel and crash", "bundles, no retries", "bundles, cancel", "a run prefetched behind another"),
    *("a run prefetched, ends found", "a worker that is not started", "one reader that tells once"),
    *("one reader that never tells", "fewer workers, change"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.deep if name in LARGE else ()) for name in WORLDS]
)
def test_every_law_holds_in_every_state_of(name: str) -> None:
    walk = explore(WORLDS[name])
    assert walk.ends > 0


@pytest.mark.wide
@pytest.mark.parametrize("name", WIDE)
def test_every_law_holds_in_every_state_of_the_wide_world(name: str) -> None:
    walk = explore(WIDE[name])
    assert walk.states > 5_000


CLOSED = {
    "any worker": Setting(runs=(2, 1), window=2, crashes=1, cancels=1),
    "changes and resizes": Setting(runs=(1,), ends="found", window=2, changes=1, resizes=((1, 1),), unread=0),
    "one reader": reader(runs=(2,), tells=EVERY, crashes=1, window=2, unread=0),
    "seats": seats(runs=(2,), window=2, cancels=1, unread=0),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_world_may_be_closed_in_any_state_and_stays_silent(name: str) -> None:
    explore(CLOSED[name], closing=True)


def test_names_of_slabs_and_workers_do_not_matter() -> None:
    setting = Setting(runs=(2, 1), window=2, crashes=1, hold=1, unread=0)
    with_names, without = explore(setting, full=True), explore(setting)
    assert with_names.states > without.states > 0


PARTS = [
    Scheduler(window=1, workers=1, retries=0),
    OneReader(window=1, retries=0),
    Assigned(window=1, workers=1),
    Crew(1, 0),
    SlabStates(1),
    Course(look_ahead=True),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_the_walk_tells_all_states_apart_but_for_names_and_settings(part: object) -> None:
    known = {name for kind in type(part).__mro__ for name in (*IN_KEY.get(kind, ()), *NOT_IN_KEY.get(kind, ()))}
    assert vars(part).keys() == known


# Planted bugs. Each breaks one rule; the walk must find it from the outside, with check() turned off.


class LendsASlabThatItAlsoFrees(Scheduler):
    def _deliver(self, out: list[Command]) -> None:
        super()._deliver(out)
        if out and isinstance(out[-1], Deliver):
            self._slabs.free(out[-1].slab, out)


class ForgetsTheStepOfADeadWorker(Scheduler):
    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        if event.seq is not None:
            self._forget_posted(event.seq, event, out)


class NeverPostsAgain(Scheduler):
    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        super()._take_back(event, [])


class PostsALostStepInAnotherSlab(Scheduler):
    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        if event.seq is not None:
            step = self._steps[event.seq]
            self._steps[event.seq] = Step(step.state, self._slabs.take(), step.attempt, step.worker)
            self._slabs.free(step.slab, out)
        super()._take_back(event, out)


class LeaksTheSlabOfACancelledStep(Scheduler):
    def _forget_abandoned(self, seq: int, out: list[Command]) -> None:
        del self._abandoned[seq]


class FreesTheSlabOfACancelledStepAtOnce(Scheduler):
    def _abandon(self, seqs: list[int], out: list[Command]) -> None:
        super()._abandon(seqs, out)
        for seq in seqs:
            if seq in self._abandoned:
                self._slabs.free(self._abandoned[seq].slab, out)

    def _forget_abandoned(self, seq: int, out: list[Command]) -> None:
        del self._abandoned[seq]


class LeavesCancelledStepsOnTheBoard(Scheduler):
    def _abandon(self, seqs: list[int], out: list[Command]) -> None:
        unsaid: list[Command] = []
        super()._abandon(seqs, unsaid)
        out.extend(command for command in unsaid if not isinstance(command, Rescind))


class FinishesBeforeTheLastStepIsIn(Scheduler):
    @property
    def run_is_over(self) -> bool:
        bound = self._bound
        return bound is not None and all(step.state is POSTED for seq, step in self._steps.items() if seq < bound)


class NeverFinishesWhileTheNextRunIsThere(Scheduler):
    @property
    def run_is_over(self) -> bool:
        return super().run_is_over and not self._steps


class LooksOneStepTooFarAhead(Scheduler):
    def _opened(self, event: Opened, out: list[Command]) -> None:
        super()._opened(event, out)
        self._window += 1


class NamesAWorkerAfterItsSeat(Crew):
    def hire(self, out: list[Command]) -> None:
        for seat in range(self.size):
            if seat not in self.seats:
                self.seats[seat] = seat
                out.append(Hire(seat, seat))


class HiresIntoATakenSeat(Crew):
    def hire(self, out: list[Command]) -> None:
        for i, worker in enumerate(self.seats):
            self.seats[worker] = -1 - i
        super().hire(out)


class CountsFromZeroAfterACancel(Scheduler):
    def _cancelled(self, event: Cancelled, out: list[Command]) -> None:
        super()._cancelled(event, out)
        self._next_seq = 0


class DeliversWhatComesFirst(Scheduler):
    def _deliverable(self) -> int | None:
        below = [seq for seq in self._steps if self._bound is None or seq < self._bound]
        return next((seq for seq in below if self._steps[seq].state is not POSTED), None)


class ReportsALossOutOfTurn(Scheduler):
    def _deliverable(self) -> int | None:
        lost = [seq for seq, step in self._steps.items() if step.state is LOST]
        return lost[0] if lost else super()._deliverable()


class DeliversTheNextRunEarly(Scheduler):
    def _deliverable(self) -> int | None:
        seq = next(iter(self._steps), None)
        return None if seq is None or self._steps[seq].state is POSTED else seq


class DeliversTwice(Scheduler):
    def _deliver(self, out: list[Command]) -> None:
        if (seq := self._deliverable()) is not None:
            self.ask_is_open = False
            self._slabs.lend(self._steps[seq].slab)
            out.append(Deliver(seq, self._steps[seq].slab))


class DeliversWhatWasCancelled(Scheduler):
    def _step_filled(self, event: StepFilled, out: list[Command]) -> None:
        if event.seq in self._abandoned:
            self._steps[event.seq] = self._abandoned.pop(event.seq)._replace(state=FILLED)
            self._steps.move_to_end(event.seq, last=False)
        else:
            super()._step_filled(event, out)


class RetriesOnceMore(Scheduler):
    def _opened(self, event: Opened, out: list[Command]) -> None:
        super()._opened(event, out)
        self._retries += 1


class GivesUpOnceTooEarly(Scheduler):
    def _opened(self, event: Opened, out: list[Command]) -> None:
        super()._opened(event, out)
        self._retries -= 1


class LeavesStepsOfADryStreamOnTheBoard(Scheduler):
    def _step_ended(self, event: StepEnded, out: list[Command]) -> None:
        unsaid: list[Command] = []
        super()._step_ended(event, unsaid)
        out.extend(command for command in unsaid if not isinstance(command, Rescind))


class LetsALateEndIntoTheNextRun(Scheduler):
    def _step_ended(self, event: StepEnded, out: list[Command]) -> None:
        super()._step_ended(event, out)
        self._drained = True
        self._lower_bound_to(event.seq)


class GivesUpWhatALivingWorkerHasInHand(Scheduler):
    def _worker_lost(self, event: WorkerLost, out: list[Command]) -> None:
        super()._worker_lost(event, out)
        if len(self._crew.seats) < self._crew.size:
            for seq, step in self._steps.items():
                if step.state is POSTED:
                    self._steps[seq] = Step(LOST, step.slab, step.attempt, event.worker)


class LeavesTheBoardToNobody(Scheduler):
    def _worker_lost(self, event: WorkerLost, out: list[Command]) -> None:
        unsaid: list[Command] = []
        super()._worker_lost(event, unsaid)
        out.extend(command for command in unsaid if not isinstance(command, Rescind))


class HiresForEverAndEver(Scheduler):
    def _worker_lost(self, event: WorkerLost, out: list[Command]) -> None:
        self._crew.losses.clear()
        super()._worker_lost(event, out)


class ForgivesASeatForWhatAnotherDoes(Scheduler):
    def _step_filled(self, event: StepFilled, out: list[Command]) -> None:
        super()._step_filled(event, out)
        self._crew.losses.clear()


class ForgivesEverySeatForWhatTheCallerDoes(Scheduler):
    def _step_filled(self, event: StepFilled, out: list[Command]) -> None:
        super()._step_filled(event, out)
        if event.worker == CALLER:
            self._crew.losses.clear()


class PostsWhatTheCallerHasFilledAgain(Scheduler):
    def _step_filled(self, event: StepFilled, out: list[Command]) -> None:
        super()._step_filled(event, out)
        if event.worker == CALLER and event.seq in self._steps:
            step = self._steps[event.seq] = self._steps[event.seq]._replace(state=POSTED)
            out.append(Post(event.seq, step.slab))


class LeavesASeatEmptySilently(Scheduler):
    def _worker_lost(self, event: WorkerLost, out: list[Command]) -> None:
        unsaid: list[Command] = []
        super()._worker_lost(event, unsaid)
        out.extend(command for command in unsaid if not isinstance(command, GiveUp))


class NeverHiresAgain(Scheduler):
    def _post(self, out: list[Command]) -> None:
        if self._crew:
            super()._post(out)


class KeepsTheAskOfACancelledRun(Scheduler):
    def _cancelled(self, event: Cancelled, out: list[Command]) -> None:
        asked = self.ask_is_open
        super()._cancelled(event, out)
        self.ask_is_open = asked


class ForgetsTheAskWhenALossIsToBeRetried(Scheduler):
    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        super()._take_back(event, out)
        self.ask_is_open = False


class DropsThePrefetchedRun(Scheduler):
    def _opened(self, event: Opened, out: list[Command]) -> None:
        super()._opened(event, out)
        self._abandon(list(self._steps), out)


class WaitsForASlab(Scheduler):
    def _post(self, out: list[Command]) -> None:
        if self._slabs.warm or self._slabs.cold or self._slabs._next < self._window:
            super()._post(out)


class AnswersAfterTheEnd(Scheduler):
    def handle(self, event: Event) -> list[Command]:
        out = super().handle(event)
        return out if out or not isinstance(event, Asked) or self.phase is OPEN else [Finish()]


class PostsWhatIsFilledAgain(Scheduler):
    def _worker_lost(self, event: WorkerLost, out: list[Command]) -> None:
        super()._worker_lost(event, out)
        for seq, step in self._steps.items():
            if event.seq is None and step.state is FILLED:
                self._steps[seq] = Step(POSTED, step.slab, step.attempt)
                out.append(Post(seq, step.slab))


class AbandonsForEver(Scheduler):
    def _forget_abandoned(self, seq: int, out: list[Command]) -> None:
        self._abandoned[seq] = self._abandoned[seq]._replace(state=ABANDONED)


# Changes of the dataset, bundles and runs


class RedoesTheRestOfABundleTwice(Course):
    def redo(self) -> None:
        again = [task for task, _ in self.ready]
        super().redo()
        self._again.extend(again)


class RedoLosesTheRestOfABundle(Course):
    def redo(self) -> None:
        self.ready.clear()
        super().redo()


class RedoKeepsTheStepsOfTheNextRun(Course):
    def redo(self) -> None:
        ahead = [task for task in self._out.values() if self.ahead and task.run == self.ahead.number]
        super().redo()
        self._again.extend(ahead)


class RedoHandsOutWhatIsReady(Course):
    def redo(self) -> None:
        ready = self.ready.copy()
        self.ready.clear()
        super().redo()
        self.ready = ready


class RedoForgetsWhatWasToBeRedone(Course):
    def redo(self) -> None:
        self._again.clear()
        super().redo()


class RedoesTheLastStepFirst(Course):
    def redo(self) -> None:
        super().redo()
        self._again.reverse()


class RedoesBundlesByTheirFirstStep(Course):
    def redo(self) -> None:
        self._out = {seq: task.single()[0] for seq, task in self._out.items()}
        super().redo()


class RedoesABatchThatTheCallerHas(Course):
    def deliver(self, seq: int, outcomes: Sequence[Any]) -> None:
        task = self._out[seq]
        super().deliver(seq, outcomes)
        self._out[seq] = task


class SplitsOffTheFirstStepOnly(Course):
    def split(self, seq: int) -> list[Any]:
        return super().split(seq)[:1]


class HandsABundleOutBackwards(Course):
    def deliver(self, seq: int, outcomes: Sequence[Any]) -> None:
        super().deliver(seq, outcomes)
        self.ready.reverse()


class GoesOnAfterATaskThatCannotBeSent(Course):
    def refuse(self, seq: int, error: BaseException) -> bool:
        again = self._again.copy()
        current = super().refuse(seq, error)
        self._again = again
        return current


class BlamesTheWrongRunForATaskThatCannotBeSent(Course):
    def refuse(self, seq: int, error: BaseException) -> bool:
        ahead, self.ahead = self.ahead, None
        current = super().refuse(seq, error)
        self.ahead = ahead
        return current


class DoesNotTellWhereTheNextRunBegins(Course):
    def draw(self, seq: int, most: int = 1) -> tuple[Any, bool]:
        return super().draw(seq, most)[0], False


class KeepsWhatIsReadyOfACancelledRun(Course):
    def cancel(self) -> None:
        ready = self.ready.copy()
        super().cancel()
        self.ready = ready


class DeliversWhatWasFilledBeforeTheChange(Scheduler):
    def _changed(self, event: Changed, out: list[Command]) -> None:
        filled = {seq: step for seq, step in self._steps.items() if step.state is FILLED}
        for seq in filled:
            del self._steps[seq]
        super()._changed(event, out)
        self._steps.update(filled)


class KeepsTheBoundAfterAChange(Scheduler):
    def _changed(self, event: Changed, out: list[Command]) -> None:
        bound = self._bound
        super()._changed(event, out)
        self._bound = bound


class PostsNothingAfterAChangeAtTheEnd(Scheduler):
    def _changed(self, event: Changed, out: list[Command]) -> None:
        drained = self._drained
        super()._changed(event, out)
        self._drained = drained


class ForgetsTheAskOverAChange(Scheduler):
    def _changed(self, event: Changed, out: list[Command]) -> None:
        super()._changed(event, out)
        self.ask_is_open = False


class BlamesAStepAlthoughItIsUnknown(Scheduler):
    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        super()._take_back(event._replace(at=event.at or 0), out)


class PostsAStepOfABundleIntoTheSameSlab(Scheduler):
    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        super()._take_back(event, out)
        for i, command in enumerate(out):
            if event.steps > 1 and isinstance(command, Post):
                out[i] = command._replace(slab=self._steps[event.seq or 0].slab)


# Resizing


class CountsALeaverTwice(Crew):
    def left(self, worker: int) -> None:
        super().left(worker)
        self.leaving -= 1


class ReplacesWhoHasLeft(Crew):
    def left(self, worker: int) -> None:
        super().left(worker)
        self.leaving += 1


class DoesNotReplaceTheDeadWhileOthersLeave(Crew):
    def hire(self, out: list[Command]) -> None:
        leaving, self.leaving = self.leaving, 0
        super().hire(out)
        self.leaving = leaving


class NeverRetires(Crew):
    def resize(self, size: int, retained: int, out: list[Command]) -> None:
        unsaid: list[Command] = []
        super().resize(size, retained, unsaid)
        out.extend(command for command in unsaid if not isinstance(command, Retire))


class AsksThemToLeaveTwice(Crew):
    def resize(self, size: int, retained: int, out: list[Command]) -> None:
        before, self.leaving = self.leaving, 0
        super().resize(size, retained, out)
        self.leaving += before


class ForgetsThatRequestsToLeaveWereWithdrawn(Crew):
    def resize(self, size: int, retained: int, out: list[Command]) -> None:
        super().resize(size, 0, out)


class AsksThoseWhoMightStayToLeaveAgain(Crew):
    def resize(self, size: int, retained: int, out: list[Command]) -> None:
        out += [Retire()] * retained
        super().resize(size, 0, out)


class NeverGrows(Crew):
    def resize(self, size: int, retained: int, out: list[Command]) -> None:
        super().resize(min(size, self.size), retained, out)


class HiresIntoSeatsThatDoNotExist(Crew):
    def hire(self, out: list[Command]) -> None:
        before = len(out)
        super().hire(out)
        for i, command in enumerate(out[before:], before):
            if isinstance(command, Hire):
                out[i] = Hire(command.worker, command.worker)
                self.seats[command.worker] = command.worker


class LeavesTheCrewEmpty(Scheduler):
    def _worker_left(self, event: WorkerLeft, out: list[Command]) -> None:
        self._crew.left(event.worker)
        self._crew.hire(out)


class KeepsTheOldWindow(Scheduler):
    def _resized(self, event: Resized, out: list[Command]) -> None:
        super()._resized(event._replace(window=max(event.window, self._window)), out)


class NeverWidensTheWindow(Scheduler):
    def _resized(self, event: Resized, out: list[Command]) -> None:
        super()._resized(event._replace(window=min(event.window, self._window)), out)


class KeepsThePagesOfTheOldWindow(Scheduler):
    def _resized(self, event: Resized, out: list[Command]) -> None:
        spare = self._slabs.spare
        super()._resized(event, out)
        self._slabs.spare = spare


class TakesBackTheStepsThatAreTooMany(Scheduler):
    def _resized(self, event: Resized, out: list[Command]) -> None:
        super()._resized(event, out)
        self._abandon(list(self._steps)[event.window :], out)


# Streams with one reader


class BreaksWithoutEnding(OneReader):
    def _end_stream(self, seq: int, void: list[int], out: list[Command]) -> None:
        self._abandon(void, out)


class BreaksAndKeepsTheLaterSteps(OneReader):
    def _end_stream(self, seq: int, void: list[int], out: list[Command]) -> None:
        super()._end_stream(seq, void[:1], out)


class ContinuesFromAnUnknownPosition(OneReader):
    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        super()._take_back(event._replace(resumable=True), out)


class BreaksAlthoughThePositionIsKnown(OneReader):
    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        super()._take_back(event._replace(resumable=False), out)


class BreaksInSilence(OneReader):
    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        unsaid: list[Command] = []
        super()._take_back(event, unsaid)
        out.extend(command for command in unsaid if not isinstance(command, Break))


class LeavesTheTaskWithoutPositionOnTheBoard(OneReader):
    def _post_again(self, seq: int, event: WorkerLost, out: list[Command]) -> None:
        if event.seq == seq:
            super()._post_again(seq, event, out)


class HiresBeforeTheTaskHasItsPosition(OneReader):
    def _post_again(self, seq: int, event: WorkerLost, out: list[Command]) -> None:
        super()._post_again(seq, event, out)
        if event.seq != seq and isinstance(out[-1], Post):
            out.pop()

    def _rescinded(self, event: Rescinded, out: list[Command]) -> None:
        super()._rescinded(event, out)
        if event.seq in self._steps:
            out.append(Post(event.seq, self._steps[event.seq].slab, resume=event.seq != self._first))


class ForgetsThePositionIfNothingIsPosted(OneReader):
    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        super()._take_back(event, out)
        self._resume = False


class ForgetsThatThePositionIsLostIfNothingIsPosted(OneReader):
    def _take_back(self, event: WorkerLost, out: list[Command]) -> None:
        if any(step.state is POSTED for step in self._steps.values()):
            super()._take_back(event, out)


class SendsThePositionWithAnyStep(OneReader):
    def _post(self, out: list[Command]) -> None:
        self._resume = True
        super()._post(out)


class LeavesTheStreamWithoutAReader(OneReader):
    def _worker_lost(self, event: WorkerLost, out: list[Command]) -> None:
        losses = self._crew.losses
        self._crew.losses = {}
        self._take_back(event, out)
        self._crew.losses = losses
        seat = self._crew.lost(event.worker, idle=event.seq is None)
        if seat not in self._crew.given_up():
            self._crew.hire(out)


class HiresASecondReader(OneReader):
    def _resized(self, event: Resized, out: list[Command]) -> None:
        Scheduler._resized(self, event, out)


# Fixed seats


class SkipsASeat(Assigned):
    def _next_seat(self) -> int | None:
        seat = super()._next_seat()
        self._turn = (self._turn + (self._next_seq == 1)) % self._crew.size
        return seat


class BeginsAtTheFirstSeat(Assigned):
    def _opened(self, event: Opened, out: list[Command]) -> None:
        super()._opened(Opened(0), out)


class GoesOnWithTheTurnOfTheLastRun(Assigned):
    def _opened(self, event: Opened, out: list[Command]) -> None:
        super()._opened(Opened(self._turn), out)


class MovesTheTurnOnWhenAStreamHasEnded(Assigned):
    def _step_ended(self, event: StepEnded, out: list[Command]) -> None:
        super()._step_ended(event, out)
        self._turn = (self._turn + 1) % self._crew.size


class EndsAllStreamsWithTheFirst(Assigned):
    def _step_ended(self, event: StepEnded, out: list[Command]) -> None:
        super()._step_ended(event, out)
        self._drained = True
        self._lower_bound_to(self._next_seq)


class KeepsTheWorkersOfEndedStreams(Assigned):
    def _step_ended(self, event: StepEnded, out: list[Command]) -> None:
        self._once = False
        super()._step_ended(event, out)


class WaitsForStepsOfAWorkerThatDiedWhileLeaving(Assigned):
    _worker_left = Scheduler._worker_left


class SendsTheNextSeatHome(Assigned):
    def _step_ended(self, event: StepEnded, out: list[Command]) -> None:
        super()._step_ended(event, out)
        seats = sorted(self._crew.seats.values())
        out[:] = [Retire(seats[-1]) if isinstance(command, Retire) else command for command in out]


class RemembersTheEndsOfTheLastRun(Assigned):
    def _opened(self, event: Opened, out: list[Command]) -> None:
        ended = self._ended.copy()
        super()._opened(event, out)
        self._ended |= ended


class ReplacesTheDead(Assigned):
    def _worker_lost(self, event: WorkerLost, out: list[Command]) -> None:
        Scheduler._worker_lost(self, event, out)


class WithdrawsWhatIsPosted(Assigned):
    _rescinds = True


class DoesNotWaitForACancelledRun(Assigned):
    @property
    def must_settle(self) -> bool:
        return False


CRASH = Setting(runs=(2,), window=2, crashes=1, unread=0)
CRASHES = Setting(runs=(2,), window=2, crashes=2, unread=0)
CANCEL = Setting(runs=(2, 2), window=2, cancels=1, unread=0)
NEXT = Setting(runs=(2, 2), window=3, unread=0)
STREAM = Setting(runs=(1, 1), ends="stream", window=2)
HALF = Setting(runs=(3,), window=2, retries=0, crashes=2, unread=0)
BIRTH = Setting(runs=(3,), window=1, workers=1, retries=0, crashes=3)
RAISING = Setting(runs=(2,), raising=(0, 1), window=1, workers=1, retries=0, crashes=3, unread=0)

CHANGE = Setting(runs=(2, 1), ends="found", changes=1, window=2, workers=1, unread=0)
CHANGES = Setting(runs=(2,), ends="found", changes=2, window=1, workers=1, bundle=2, unread=0)
BUNDLES = Setting(runs=(4, 1), ends="found", changes=1, bundle=2, window=2, workers=1, unread=0)
BUNDLE = Setting(runs=(3,), ends="found", bundle=3, window=1, workers=1, crashes=1, cancels=1, retries=0)
UNSENT = Setting(runs=(3, 1), ends="found", changes=1, unsendable=(0, 1, 1), window=2, workers=1, unread=0)
UNSENT_AHEAD = Setting(runs=(1, 2), ends="found", unsendable=(1, 1, 0), window=3, workers=1, unread=0)
FEWER = Setting(runs=(2,), window=2, resizes=((1, 1),), crashes=1, unread=0)
FEWER_THEN_MORE = Setting(runs=(1,), window=1, resizes=((1, 1), (2, 1)), unread=0)
FEWER_TWICE = Setting(runs=(1,), window=1, workers=3, resizes=((2, 1), (1, 1)), unread=0)
MORE = Setting(runs=(3,), window=1, workers=1, resizes=((2, 2),), unread=0)
FEWER_AT_BIRTH = Setting(runs=(1,), window=1, retries=0, resizes=((1, 1),), crashes=2, unread=0)
PAGES = Setting(runs=(3,), workers=1, resizes=((1, 1),), hold=2, spare=2, unread=0)
READER: dict[str, Any] = {"rule": OneReader, "workers": 1, "ends": "stream", "window": 2, "unread": 0}
TELLS = Setting(runs=(2, 1), **READER, tells=EVERY, crashes=1)
SILENT = Setting(runs=(3, 1), **READER, crashes=1)
READER_AT_BIRTH = Setting(runs=(2, 1), **READER, tells=EVERY, retries=0, crashes=2)
READERS = Setting(runs=(2, 1), **READER, tells=EVERY, resizes=((2, 2),))
SEATS = seats(runs=(3, 3), window=2, cancels=1, unread=0)
SECOND = seats(runs=(3,), window=2, seat=1, crashes=1, unread=0)
ROUNDS = seats_of_streams(runs=(0,), lengths=(2, 0, 2), workers=3, unread=0)
ONCE = seats_of_streams(runs=(0,), lengths=(0, 1), window=3, once=True, crashes=1, unread=0)
STREAMS = seats_of_streams(runs=(0, 0), lengths=(1, 2), window=2, cancels=1, unread=0)

BUGS: list[tuple[type, Setting]] = [
    (LendsASlabThatItAlsoFrees, NEXT),
    (ForgetsTheStepOfADeadWorker, CRASH),
    (NeverPostsAgain, CRASH),
    (PostsALostStepInAnotherSlab, CRASH),
    (LeaksTheSlabOfACancelledStep, CANCEL),
    (AbandonsForEver, CANCEL),
    (FreesTheSlabOfACancelledStepAtOnce, CANCEL),
    (LeavesCancelledStepsOnTheBoard, CANCEL),
    (FinishesBeforeTheLastStepIsIn, NEXT),
    (NeverFinishesWhileTheNextRunIsThere, NEXT),
    (LooksOneStepTooFarAhead, NEXT),
    (NamesAWorkerAfterItsSeat, CRASH),
    (HiresIntoATakenSeat, CRASH),
    (CountsFromZeroAfterACancel, CANCEL),
    (DeliversWhatComesFirst, NEXT),
    (ReportsALossOutOfTurn, CRASHES),
    (DeliversTheNextRunEarly, NEXT),
    (DeliversTwice, NEXT),
    (DeliversWhatWasCancelled, CANCEL),
    (RetriesOnceMore, CRASHES),
    (GivesUpOnceTooEarly, CRASHES),
    (LeavesStepsOfADryStreamOnTheBoard, STREAM),
    (LetsALateEndIntoTheNextRun, STREAM),
    (GivesUpWhatALivingWorkerHasInHand, HALF),
    (LeavesTheBoardToNobody, BIRTH),
    (HiresForEverAndEver, BIRTH),
    (ForgivesASeatForWhatAnotherDoes, HALF),
    (ForgivesEverySeatForWhatTheCallerDoes, RAISING),
    (PostsWhatTheCallerHasFilledAgain, RAISING),
    (LeavesASeatEmptySilently, HALF),
    (NeverHiresAgain, BIRTH),
    (KeepsTheAskOfACancelledRun, CANCEL),
    (ForgetsTheAskWhenALossIsToBeRetried, CRASH),
    (DropsThePrefetchedRun, NEXT),
    (WaitsForASlab, Setting(runs=(3,), window=2, hold=2, unread=0)),
    (AnswersAfterTheEnd, CANCEL),
    (PostsWhatIsFilledAgain, CRASH),
    (RedoesTheRestOfABundleTwice, BUNDLES),
    (RedoLosesTheRestOfABundle, BUNDLES),
    (RedoKeepsTheStepsOfTheNextRun, CHANGE),
    (RedoHandsOutWhatIsReady, BUNDLES),
    (RedoForgetsWhatWasToBeRedone, CHANGES),
    (RedoesTheLastStepFirst, CHANGE),
    (RedoesBundlesByTheirFirstStep, BUNDLES),
    (RedoesABatchThatTheCallerHas, CHANGE),
    (SplitsOffTheFirstStepOnly, BUNDLE),
    (HandsABundleOutBackwards, BUNDLE),
    (GoesOnAfterATaskThatCannotBeSent, UNSENT),
    (BlamesTheWrongRunForATaskThatCannotBeSent, UNSENT_AHEAD),
    (DoesNotTellWhereTheNextRunBegins, CHANGE),
    (KeepsWhatIsReadyOfACancelledRun, BUNDLE),
    (DeliversWhatWasFilledBeforeTheChange, CHANGE),
    (KeepsTheBoundAfterAChange, CHANGE),
    (PostsNothingAfterAChangeAtTheEnd, CHANGE),
    (ForgetsTheAskOverAChange, CHANGE),
    (BlamesAStepAlthoughItIsUnknown, BUNDLE),
    (PostsAStepOfABundleIntoTheSameSlab, BUNDLE),
    (CountsALeaverTwice, FEWER),
    (ReplacesWhoHasLeft, FEWER),
    (DoesNotReplaceTheDeadWhileOthersLeave, FEWER),
    (NeverRetires, FEWER),
    (AsksThemToLeaveTwice, FEWER_TWICE),
    (ForgetsThatRequestsToLeaveWereWithdrawn, FEWER_THEN_MORE),
    (AsksThoseWhoMightStayToLeaveAgain, FEWER_THEN_MORE),
    (NeverGrows, MORE),
    (HiresIntoSeatsThatDoNotExist, FEWER),
    (LeavesTheCrewEmpty, FEWER_AT_BIRTH),
    (KeepsTheOldWindow, FEWER),
    (NeverWidensTheWindow, MORE),
    (KeepsThePagesOfTheOldWindow, PAGES),
    (TakesBackTheStepsThatAreTooMany, FEWER),
    (BreaksWithoutEnding, SILENT),
    (BreaksAndKeepsTheLaterSteps, SILENT),
    (ContinuesFromAnUnknownPosition, SILENT),
    (BreaksAlthoughThePositionIsKnown, TELLS),
    (BreaksInSilence, SILENT),
    (LeavesTheTaskWithoutPositionOnTheBoard, TELLS),
    (HiresBeforeTheTaskHasItsPosition, TELLS),
    (ForgetsThePositionIfNothingIsPosted, TELLS),
    (ForgetsThatThePositionIsLostIfNothingIsPosted, SILENT),
    (SendsThePositionWithAnyStep, TELLS),
    (LeavesTheStreamWithoutAReader, READER_AT_BIRTH),
    (HiresASecondReader, READERS),
    (SkipsASeat, SEATS),
    (BeginsAtTheFirstSeat, SECOND),
    (GoesOnWithTheTurnOfTheLastRun, SEATS),
    (MovesTheTurnOnWhenAStreamHasEnded, ROUNDS),
    (EndsAllStreamsWithTheFirst, STREAMS),
    (WaitsForStepsOfAWorkerThatDiedWhileLeaving, ONCE),
    (SendsTheNextSeatHome, ONCE),
    (KeepsTheWorkersOfEndedStreams, ONCE),
    (RemembersTheEndsOfTheLastRun, STREAMS),
    (ReplacesTheDead, SECOND),
    (WithdrawsWhatIsPosted, SEATS),
    (DoesNotWaitForACancelledRun, SEATS),
]


@pytest.mark.parametrize(("bug", "setting"), BUGS, ids=[bug.__name__ for bug, _ in BUGS])
def test_the_walk_finds_a_bug_that(bug: type, setting: Setting) -> None:
    with pytest.raises(Breach):
        explore(setting, bug, checked=False, closing=True)


SMALL = [BUNDLE, CHANGE, MORE, READERS, SECOND]


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(setting, marks=() if setting in SMALL else pytest.mark.wide)
        for setting in dict.fromkeys(setting for _, setting in BUGS)
    ],
    ids=repr,
)
def test_the_worlds_of_the_planted_bugs_are_sound(setting: Setting) -> None:
    explore(setting, checked=False, closing=True)
