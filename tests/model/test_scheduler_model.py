"""Every interleaving of small worlds, and planted bugs that show that the walk would notice.

Each world below is walked through completely: whatever can happen in a state is made to happen, until no
state is new. `world.py` states the laws.
"""

from __future__ import annotations

import os

import pytest
from model.world import IN_KEY, NOT_IN_KEY, Breach, Setting, explore

from penstock._schedule.commands import Command, Deliver, Finish, GiveUp, Hire, Post, Rescind
from penstock._schedule.events import Asked, Cancelled, Event, Opened, StepEnded, StepFilled, WorkerLost
from penstock._schedule.scheduler import ABANDONED, FILLED, LENT, LOST, OPEN, POSTED, Scheduler, Step

WORLDS = {
    "one crash, two held": Setting(runs=(4,), crashes=1, hold=2),
    "two crashes": Setting(runs=(4,), crashes=2, unread=0),
    "two crashes, no retries": Setting(runs=(4,), crashes=2, retries=0, unread=0),
    "a run prefetched behind another": Setting(runs=(4, 2), hold=2),
    "a run prefetched, ends found": Setting(runs=(3, 2), course="found", crashes=1, unread=0),
    "nothing prefetched": Setting(runs=(2, 2), course="found", crashes=1, ahead=False, unread=0),
    "empty runs": Setting(runs=(1, 0, 1, 0), course="found", crashes=1, cancels=1),
    "cancel and open again": Setting(runs=(3, 2), cancels=1, unread=0),
    "cancel and crash": Setting(runs=(2, 1), window=2, cancels=1, crashes=1),
    "as they come": Setting(runs=(3, 1), in_order=False, crashes=1, unread=0),
    "as they come, cancel": Setting(runs=(2, 2), in_order=False, cancels=1, unread=0),
    "stream": Setting(runs=(1, 1), course="stream"),
    "stream, crash": Setting(runs=(2, 1), course="stream", window=2, crashes=1, unread=0),
    "stream, crash, wide window": Setting(runs=(1, 1), course="stream", crashes=1, unread=0),
    "stream, crash, no retries": Setting(runs=(1, 1), course="stream", retries=0, crashes=1, unread=0),
    "stream, crash, cancel": Setting(
        runs=(2, 1), course="stream", window=2, workers=1, crashes=1, cancels=1, unread=0
    ),
    "stream as they come, crash": Setting(
        runs=(2, 1), course="stream", window=2, workers=1, in_order=False, crashes=1
    ),
    "stream, cancel": Setting(runs=(0, 1, 1), course="stream", window=2, cancels=1),
    "stream as they come": Setting(runs=(2, 1), course="stream", in_order=False, window=2),
    "a crew that dies at birth": Setting(runs=(3, 1), window=2, workers=1, retries=0, crashes=5),
    "half a crew that dies at birth": Setting(runs=(2,), window=2, retries=0, crashes=5),
    "a crew that dies, cancel": Setting(runs=(1, 1), window=1, retries=0, crashes=4, cancels=1, unread=0),
    "a worker that is not started": Setting(runs=(3,), crashes=1, refusals=1, unread=0),
    "workers that are not started": Setting(
        runs=(2, 1), course="found", window=2, retries=0, crashes=1, refusals=3, unread=0
    ),
    "workers that are not started, stream": Setting(
        runs=(2,), course="stream", window=2, workers=1, retries=0, crashes=1, refusals=2
    ),
    "workers that are not started, cancel": Setting(
        runs=(1, 1), window=2, workers=1, retries=0, crashes=1, refusals=2, cancels=1, unread=0
    ),
    "workers that are not started, bundles as they come": Setting(
        runs=(4,), course="found", bundle=2, window=2, in_order=False, crashes=1, refusals=4, retries=0
    ),
    "bundles, crash": Setting(runs=(5,), course="found", bundle=2, window=2, crashes=1),
    "bundles, two crashes": Setting(runs=(4, 1), course="found", bundle=2, window=2, crashes=2, unread=0),
    "bundles, no retries": Setting(
        runs=(3, 2), course="found", bundle=2, window=2, retries=0, crashes=2, unread=0
    ),
    "bundles of three": Setting(runs=(3,), course="found", bundle=3, window=1, crashes=3, hold=2),
    "bundles, cancel": Setting(
        runs=(3, 2), course="found", bundle=2, window=2, crashes=1, cancels=1, unread=0
    ),
    "bundles as they come": Setting(runs=(4,), course="found", bundle=2, window=2, crashes=1, in_order=False),
    "a crew that dies at birth, bundles": Setting(
        runs=(3,), course="found", bundle=2, window=1, workers=1, retries=0, crashes=5
    ),
    "every free slab is cooled": Setting(runs=(3,), window=2, hold=2, spare=0, crashes=1),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_law_holds_in_every_state_of(name: str) -> None:
    walk = explore(WORLDS[name])
    assert walk.ends > 0


@pytest.mark.skipif("PENSTOCK_WIDE" not in os.environ, reason="takes a minute: set PENSTOCK_WIDE=1")
def test_every_law_holds_in_every_state_of_a_wide_world() -> None:
    walk = explore(Setting(runs=(4, 2), hold=2, crashes=1, cancels=1, unread=0))
    assert walk.states > 100_000


def test_a_world_may_be_closed_in_any_state_and_stays_silent() -> None:
    explore(Setting(runs=(2, 1), window=2, crashes=1, cancels=1), closing=True)


def test_names_of_slabs_and_workers_do_not_matter() -> None:
    setting = Setting(runs=(2, 1), window=2, crashes=1, hold=1, unread=0)
    with_names, without = explore(setting, full=True), explore(setting)
    assert with_names.states > without.states > 0


def test_the_walk_tells_all_of_the_scheduler_apart_but_names_and_settings() -> None:
    assert vars(Scheduler(window=1, workers=1, retries=0)).keys() == IN_KEY | NOT_IN_KEY


# Planted bugs. Each breaks one rule; the walk must find it from the outside, with check() turned off.


class LendsASlabThatItAlsoFrees(Scheduler):
    def _deliver(self, out: list[Command]) -> None:
        super()._deliver(out)
        if out and isinstance(out[-1], Deliver):
            self._free(out[-1].slab, out)


class ForgetsTheStepOfADeadWorker(Scheduler):
    def _take_back(self, seq: int, event: WorkerLost, out: list[Command]) -> None:
        self._forget_posted(seq, event, out)


class NeverPostsAgain(Scheduler):
    def _take_back(self, seq: int, event: WorkerLost, out: list[Command]) -> None:
        super()._take_back(seq, event, [])


class PostsALostStepInAnotherSlab(Scheduler):
    def _take_back(self, seq: int, event: WorkerLost, out: list[Command]) -> None:
        step = self._steps[seq]
        self._steps[seq] = Step(step.state, self._take_slab(), step.attempt, step.worker)
        self._free(step.slab, out)
        super()._take_back(seq, event, out)


class LeaksTheSlabOfACancelledStep(Scheduler):
    def _forget_abandoned(self, seq: int, out: list[Command]) -> None:
        del self._abandoned[seq]


class FreesTheSlabOfACancelledStepAtOnce(Scheduler):
    def _abandon(self, seqs: list[int], out: list[Command]) -> None:
        super()._abandon(seqs, out)
        for seq in seqs:
            if seq in self._abandoned:
                self._free(self._abandoned[seq].slab, out)

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
        return bound is not None and all(
            step.state is POSTED for seq, step in self._steps.items() if seq < bound
        )


class NeverFinishesWhileTheNextRunIsThere(Scheduler):
    @property
    def run_is_over(self) -> bool:
        return super().run_is_over and not self._steps


class LooksOneStepTooFarAhead(Scheduler):
    def _opened(self, event: Opened, out: list[Command]) -> None:
        super()._opened(event, out)
        self._window += 1


class NamesAWorkerAfterItsSeat(Scheduler):
    def _hire(self, out: list[Command]) -> None:
        for seat in range(self._workers):
            if seat not in self._crew:
                self._crew[seat] = seat
                out.append(Hire(seat, seat))


class HiresIntoATakenSeat(Scheduler):
    def _hire(self, out: list[Command]) -> None:
        for worker in self._crew:
            self._crew[worker] = -1
        super()._hire(out)


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
            self._ask_is_open = False
            self._slabs[self._steps[seq].slab] = LENT
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
        if len(self._crew) < self._workers:
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
        self._idle_losses.clear()
        super()._worker_lost(event, out)


class ForgivesASeatForWhatAnotherDoes(Scheduler):
    def _step_filled(self, event: StepFilled, out: list[Command]) -> None:
        super()._step_filled(event, out)
        self._idle_losses.clear()


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
        asked = self._ask_is_open
        super()._cancelled(event, out)
        self._ask_is_open = asked


class ForgetsTheAskWhenALossIsToBeRetried(Scheduler):
    def _take_back(self, seq: int, event: WorkerLost, out: list[Command]) -> None:
        super()._take_back(seq, event, out)
        self._ask_is_open = False


class DropsThePrefetchedRun(Scheduler):
    def _opened(self, event: Opened, out: list[Command]) -> None:
        super()._opened(event, out)
        self._abandon(list(self._steps), out)


class WaitsForASlab(Scheduler):
    def _post(self, out: list[Command]) -> None:
        if self._warm or self._cold or self._next_slab < self._window:
            super()._post(out)


class AnswersAfterTheEnd(Scheduler):
    def handle(self, event: Event) -> list[Command]:
        out = super().handle(event)
        return out if out or not isinstance(event, Asked) or self._phase is OPEN else [Finish()]


class PostsWhatIsFilledAgain(Scheduler):
    def _worker_lost(self, event: WorkerLost, out: list[Command]) -> None:
        super()._worker_lost(event, out)
        for seq, step in self._steps.items():
            if event.seq is None and step.state is FILLED:
                self._steps[seq] = Step(POSTED, step.slab, step.attempt)
                out.append(Post(seq, step.slab, step.attempt))


class AbandonsForEver(Scheduler):
    def _forget_abandoned(self, seq: int, out: list[Command]) -> None:
        self._abandoned[seq] = self._abandoned[seq]._replace(state=ABANDONED)


CRASH = Setting(runs=(2,), window=2, crashes=1, unread=0)
CRASHES = Setting(runs=(2,), window=2, crashes=2, unread=0)
CANCEL = Setting(runs=(2, 2), window=2, cancels=1, unread=0)
NEXT = Setting(runs=(2, 2), window=3, unread=0)
STREAM = Setting(runs=(1, 1), course="stream", window=2)
HALF = Setting(runs=(3,), window=2, retries=0, crashes=2, unread=0)
BIRTH = Setting(runs=(3,), window=1, workers=1, retries=0, crashes=3)

BUGS: list[tuple[type[Scheduler], Setting]] = [
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
    (LeavesASeatEmptySilently, HALF),
    (NeverHiresAgain, BIRTH),
    (KeepsTheAskOfACancelledRun, CANCEL),
    (ForgetsTheAskWhenALossIsToBeRetried, CRASH),
    (DropsThePrefetchedRun, NEXT),
    (WaitsForASlab, Setting(runs=(3,), window=2, hold=2, unread=0)),
    (AnswersAfterTheEnd, CANCEL),
    (PostsWhatIsFilledAgain, CRASH),
]


@pytest.mark.parametrize(("bug", "setting"), BUGS, ids=[bug.__name__ for bug, _ in BUGS])
def test_the_walk_finds_a_scheduler_that(bug: type[Scheduler], setting: Setting) -> None:
    with pytest.raises(Breach):
        explore(setting, bug, checked=False, closing=True)


@pytest.mark.parametrize("setting", dict.fromkeys(setting for _, setting in BUGS), ids=repr)
def test_the_worlds_of_the_planted_bugs_are_sound(setting: Setting) -> None:
    explore(setting, checked=False, closing=True)
