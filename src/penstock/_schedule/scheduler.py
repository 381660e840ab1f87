"""Decides which step is posted, which slab (block of memory) it fills, and what the consumer gets.

    NEW --Opened--> OPEN --Cancelled--> IDLE --Opened--> OPEN        any --Closed--> CLOSED

    step   POSTED --StepFilled--> FILLED --Deliver--> forgotten
           POSTED --WorkerLost--> POSTED again, or LOST --DeliverLost--> forgotten
           POSTED --Cancelled, Changed, Break--> ABANDONED --its worker reports, or Rescinded--> forgotten
           POSTED --StepEnded, Exhausted--> forgotten
           FILLED, LOST --Cancelled, Changed--> forgotten

Slabs, workers and the plan's steps have their own state tables (`slabs.py`, `crew.py`, `course.py`). Some rules
differ if a stream has only one reader (`onereader.py`), or if each worker has its own steps (`assigned.py`).

Workers pull: the first free worker takes a posted step. So the scheduler never chooses a worker, and does not know
whether a worker has claimed a posted step. The rule behind most of the code below: the slab of a posted step is not
free until an event has said that no worker can write to it any more.

After each event, the rules of `_settle` run until none applies. The scheduler has no clock, queue, lock or buffer.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NoReturn, get_args

from penstock._schedule import events
from penstock._schedule.commands import Command, Deliver, DeliverLost, Finish, GiveUp, Post, Rescind
from penstock._schedule.crew import Crew
from penstock._schedule.events import Event
from penstock._schedule.slabs import SlabStates
from penstock._schedule.states import (
    ABANDONED,
    CLOSED,
    FILLED,
    IDLE,
    LENT,
    LOST,
    NEW,
    OPEN,
    POSTED,
    EventLog,
    Phase,
    Step,
    method_for,
)
from penstock.errors import InternalError

# Names, not functions, so that a subclass can replace a rule: the other schedulers do, and the model test plants bugs
# that way.
_HANDLER_OF = {kind: method_for(kind) for kind in get_args(Event)}

# While the consumer does not ask, no rule applies after these events: a step never waits for a slab, a filled step
# makes no room, and the end is reported only when the consumer asks. The first two events come with every batch.
# (`_opened` settles by itself.)
_QUIET = frozenset(
    {events.SlabReturned, events.StepFilled, events.Opened, events.Bounded, events.Exhausted, events.Rescinded}
)


class Scheduler:
    """Turns events (what has happened) into commands (what to do next).

    At most `window` steps are undelivered. If the worker of a step dies, the step is retried up to `retries` times.
    At most `spare` free slabs keep their memory pages (default: window + 2). The seqs of consecutive tasks differ by
    `spacing`, which is more than 1 if a task may be a bundle.
    """

    _rescinds = True  # an abandoned step is withdrawn, unless a worker has claimed it

    def __init__(
        self,
        *,
        window: int,
        workers: int,
        retries: int,
        in_order: bool = True,
        spare: int | None = None,
        spacing: int = 1,
    ) -> None:
        self._window = window
        self._retries = retries
        self._in_order = in_order
        self._spacing = spacing

        self.phase: Phase = NEW
        self.ask_is_open = False
        self._bound: int | None = None
        self._drained = False  # nothing more to draw in this run

        # By seq, and in its order. It is an OrderedDict, because a plain dict walks over its deleted entries to find
        # its first key: a thousand entries for every batch, with a window of 1000.
        self._steps: OrderedDict[int, Step] = OrderedDict()
        self._abandoned: dict[int, Step] = {}
        self._arrived: OrderedDict[int, None] = OrderedDict()  # in order of arrival; only if not in_order

        self._slabs = SlabStates(window + 2 if spare is None else spare)
        self._crew = Crew(workers, retries)
        self._next_seq = 0
        self._log = EventLog()

    @property
    def run_is_over(self) -> bool:
        """True if the whole run has been delivered. The answer to the next `Asked` is then `Finish`."""
        if self._bound is None or not (self._drained or self._next_seq >= self._bound):
            return False
        return next(iter(self._steps), self._bound) >= self._bound

    @property
    def must_settle(self) -> bool:
        """True if abandoned steps must finish before another run can be opened."""
        return False

    @property
    def waits_for(self) -> int | None:
        """The seq of the first step that is not finished, or None."""
        return next((seq for seq, step in self._steps.items() if step.state is POSTED), None)

    def deliverable(self, most: int) -> list[int]:
        """Returns the seqs of up to `most` finished steps that will be delivered next, in the order of delivery."""
        found: list[int] = []
        for seq in self._steps if self._in_order else self._arrived:
            if len(found) == most or self._steps[seq].state is POSTED:
                break
            if self._bound is None or seq < self._bound:
                found.append(seq)
            elif self._in_order:
                break  # the steps from here on belong to the next run
        return found

    @property
    def seats(self) -> list[int]:
        return [*self._crew.seats.values()]

    @property
    def blamed(self) -> set[int]:
        """The ids of dead workers that a later command may still name."""
        return {step.worker for step in self._steps.values()}

    def handle(self, event: Event) -> list[Command]:
        """Handles one event. Returns the resulting commands, which must be carried out in this order."""
        out: list[Command] = []
        if self.phase is CLOSED:
            return out
        self._log.append(event)
        getattr(self, _HANDLER_OF[type(event)])(event, out)
        if self.phase is OPEN and (self.ask_is_open or type(event) not in _QUIET):
            self._settle(out)
        if out:
            self._log.extend(out)
        return out

    # The rules. In this order one pass is enough: a post makes nothing deliverable, and with an ask answered there is
    # nothing to finish. `check` asserts that no rule is left to apply.

    def _settle(self, out: list[Command]) -> None:
        if self.ask_is_open:
            self._deliver(out)
        self._post(out)
        if self.ask_is_open and self.run_is_over:
            self.ask_is_open = False
            out.append(Finish())

    def _deliver(self, out: list[Command]) -> None:
        seq = self._deliverable()
        if seq is None:
            return
        step = self._steps.pop(seq)
        self._arrived.pop(seq, None)
        self.ask_is_open = False
        if step.state is FILLED:
            self._slabs.lend(step.slab)
            out.append(Deliver(seq, step.slab))
        else:
            out.append(DeliverLost(seq, step.slab, step.worker))
            self._slabs.free(step.slab, out)

    def _deliverable(self) -> int | None:
        found = self.deliverable(1)
        return found[0] if found else None

    def _post(self, out: list[Command]) -> None:
        if self._drained:
            return
        if not self._crew:
            # Every seat was given up (see `_worker_lost`). A consumer that has been told of every lost step and asks
            # for more gets a new crew; otherwise it would wait forever.
            if self._steps or not self.ask_is_open or self.run_is_over:
                return
            self._crew.forgive()
            self._crew.hire(out)
        if self._may_wait():
            return
        while len(self._steps) < self._window:
            seq = self._next_seq
            self._next_seq = seq + self._spacing
            slab = self._slabs.take()
            self._steps[seq] = Step(POSTED, slab)
            out.append(Post(seq, slab))

    def _may_wait(self) -> bool:
        """True if posting can wait at no cost: a batch is ready, and more than half of the window is in use.

        As a result, steps are posted half a window at a time, and a worker is woken once for several steps. Waking a
        worker takes longer than everything else that the consumer does for a batch.
        """
        return len(self._steps) > self._window // 2 and self._deliverable() is not None

    # Runs

    def _opened(self, event: events.Opened, out: list[Command]) -> None:
        if self.ask_is_open or (self.phase is OPEN and not self.run_is_over):
            self._impossible(event, "a run was opened before the last one was over or cancelled")
        self.phase = OPEN
        self._bound = None
        self._drained = False
        self._crew.forgive()
        crew: list[Command] = []
        self._crew.hire(crew)
        self._settle(out)
        out += crew  # last, so that the first worker finds a task as soon as it has started

    def _asked(self, event: events.Asked, out: list[Command]) -> None:
        if self.ask_is_open:
            self._impossible(event, "the consumer asked again before it was answered")
        if self.phase is not OPEN:
            self._impossible(event, "the consumer asked outside a run")
        self.ask_is_open = True

    def _bounded(self, event: events.Bounded, out: list[Command]) -> None:
        if self.phase is OPEN:  # otherwise the event concerns a run that was cancelled in the meantime
            self._lower_bound_to(event.seq)

    def _exhausted(self, event: events.Exhausted, out: list[Command]) -> None:
        if event.seq in self._abandoned:
            self._forget_abandoned(event.seq, out)
            return
        self._forget_posted(event.seq, event, out)
        self._drained = True
        self._lower_bound_to(event.seq)

    def _cancelled(self, event: events.Cancelled, out: list[Command]) -> None:
        if self.phase is OPEN:
            self.phase = IDLE
        self.ask_is_open = False
        self._abandon(list(self._steps), out)

    def _changed(self, event: events.Changed, out: list[Command]) -> None:
        if self.phase is OPEN:
            self._abandon(list(self._steps), out)
            self._bound = None
            self._drained = False

    def _closed(self, event: events.Closed, out: list[Command]) -> None:
        self.phase = CLOSED
        self.ask_is_open = False
        for table in (self._steps, self._abandoned, self._arrived, self._slabs, self._crew.seats):
            table.clear()

    def _lower_bound_to(self, seq: int) -> None:
        self._bound = seq if self._bound is None else min(self._bound, seq)

    # Steps

    def _step_filled(self, event: events.StepFilled, out: list[Command]) -> None:
        seq, worker = event
        if worker in self._crew.seats:
            if self._crew.losses:
                self._crew.worked(worker)
        elif worker != events.CALLER:
            self._impossible(event, "it comes from a worker that is not alive")
        step = self._steps.get(seq)
        if step is None:
            if seq not in self._abandoned:
                self._impossible(event, "the step is not known")
            self._forget_abandoned(seq, out)
            return
        if step.state is not POSTED:
            self._impossible(event, f"the step is {step.state.value}")
        self._steps[seq] = Step(FILLED, step.slab, step.attempt, step.worker, step.seat)
        if not self._in_order:
            self._arrived[seq] = None

    def _step_ended(self, event: events.StepEnded, out: list[Command]) -> None:
        seq, worker = event
        if worker not in self._crew:
            self._impossible(event, "it comes from a worker that is not alive")
        self._crew.worked(worker)
        if seq in self._abandoned:
            self._forget_abandoned(seq, out)
            return
        self._forget_posted(seq, event, out)
        bound = self._bound
        void = [s for s in self._steps if s > seq and (bound is None or s < bound or seq >= bound)]
        for s in void:
            if self._steps[s].state is FILLED:
                self._impossible(event, f"the later step {s} is filled")
        self._end_stream(seq, void, out)

    def _end_stream(self, seq: int, void: list[int], out: list[Command]) -> None:
        """Ends the run before the step `seq`, and abandons the steps in `void`.

        If these steps were not abandoned, their StepEnded events might come after the next `Opened`, and end the new
        run too early.
        """
        self._abandon(void, out)
        self._drained = True
        self._lower_bound_to(seq)

    def _rescinded(self, event: events.Rescinded, out: list[Command]) -> None:
        if event.seq in self._abandoned:
            self._forget_abandoned(event.seq, out)
            return
        self._lose(event.seq, self._posted_step(event.seq, event))  # withdrawn because there is no crew

    def _lose(self, seq: int, step: Step) -> None:
        self._steps[seq] = step._replace(state=LOST)
        if not self._in_order:
            self._arrived[seq] = None

    def _abandon(self, seqs: list[int], out: list[Command]) -> None:
        for seq in seqs:
            step = self._steps.pop(seq)
            self._arrived.pop(seq, None)
            if step.state is POSTED:
                self._abandoned[seq] = step._replace(state=ABANDONED)
                if self._rescinds:
                    out.append(Rescind(seq))
            else:
                self._slabs.free(step.slab, out)

    def _forget_abandoned(self, seq: int, out: list[Command]) -> None:
        self._slabs.free(self._abandoned.pop(seq).slab, out)

    def _forget_posted(self, seq: int, event: Event, out: list[Command]) -> None:
        slab = self._posted_step(seq, event).slab
        del self._steps[seq]
        self._slabs.free(slab, out)

    def _posted_step(self, seq: int, event: Event) -> Step:
        step = self._steps.get(seq)
        if step is None or step.state is not POSTED:
            self._impossible(event, "the step is not posted")
        return step

    # Workers

    def _resized(self, event: events.Resized, out: list[Command]) -> None:
        if event.retained > self._crew.leaving:
            self._impossible(event, f"only {self._crew.leaving} workers were asked to leave")
        self._slabs.spare += event.window - self._window
        self._slabs.cool(out)
        self._window = event.window
        if self.phase is NEW:
            self._crew.size = event.workers
        else:
            self._crew.resize(event.workers, event.retained, out)

    def _worker_left(self, event: events.WorkerLeft, out: list[Command]) -> None:
        if event.worker not in self._crew or not self._crew.leaving:
            self._impossible(event, "this worker was not asked to leave, or is not alive")
        self._crew.left(event.worker)
        if not self._crew:  # the other seats were given up, so one must be tried again
            self._crew.forgive()
        self._crew.hire(out)

    def _worker_lost(self, event: events.WorkerLost, out: list[Command]) -> None:
        if event.worker not in self._crew:
            self._impossible(event, "the worker is not alive")
        seat = self._crew.lost(event.worker, idle=event.seq is None)
        self._take_back(event, out)
        self._crew.hire(out)
        if self._crew:
            if seat in self._crew.given_up():
                out.append(GiveUp(seat, event.worker))
        else:  # no worker is left to claim the posted steps
            for seq, step in self._steps.items():
                if step.state is POSTED:
                    self._steps[seq] = step._replace(worker=event.worker)
                    out.append(Rescind(seq))

    def _take_back(self, event: events.WorkerLost, out: list[Command]) -> None:
        """Posts a dead worker's step again, in the same slab, or marks it as failed for good."""
        seq = event.seq
        if seq is None:
            return
        if seq in self._abandoned:
            self._forget_abandoned(seq, out)
            return
        step = self._posted_step(seq, event)
        if event.steps > 1:
            # At most one of them killed the worker. The others are posted as if for the first time.
            guilty = None if event.at is None else seq + event.at
            for other in range(seq, seq + event.steps):
                if other != guilty:
                    slab = step.slab if guilty is None and other == seq else self._slabs.take()
                    self._steps[other] = Step(POSTED, slab)
                    out.append(Post(other, slab))
            if guilty is not None:
                self._steps[guilty] = step
            self._steps = OrderedDict(sorted(self._steps.items()))
            if guilty is None:
                return
            seq = guilty
        step = Step(POSTED, step.slab, step.attempt + 1, event.worker)
        if step.attempt > self._retries:
            self._lose(seq, step)
        else:
            self._steps[seq] = step
            out.append(Post(seq, step.slab))

    # Slabs

    def _slab_returned(self, event: events.SlabReturned, out: list[Command]) -> None:
        if self._slabs.states.get(event.slab) is not LENT:
            self._impossible(event, "the slab is not lent")
        self._slabs.free(event.slab, out)

    # Bugs

    def story(self, seq: int) -> list[str]:
        """Returns the log entries about a step, followed by the step's current state, for bug reports."""
        step = self._steps.get(seq) or self._abandoned.get(seq)
        now = "it is not known now" if step is None else f"it is {step.state.value} in slab {step.slab}"
        return [*self._log.about(seq), now]

    def _impossible(self, event: Event, why: str) -> NoReturn:
        steps = {seq: step.state.value for seq, step in self._steps.items()}
        seq = getattr(event, "seq", None)
        raise InternalError(
            f"The scheduler was told {event!r}, but {why}.\n"
            f"  It is {self.phase.value}: window {self._window}, crew {self._crew.seats}, bound {self._bound}, "
            f"steps {steps}, abandoned {list(self._abandoned)}.\n"
            + ("" if seq is None else f"  Step {seq}: {', '.join(self.story(seq))}.\n")
            + self._log.report()
        )

    def check(self) -> None:
        """Asserts the invariants. This is slow, so only tests call it."""
        steps, abandoned = self._steps, self._abandoned
        assert list(steps) == sorted(steps), "steps are in the order of seq"
        assert not steps.keys() & abandoned.keys(), "a step is in one table"
        assert all(seq < self._next_seq for seq in (*steps, *abandoned)), "no seq is given twice"
        assert all(step.state is not ABANDONED for step in steps.values())
        assert all(step.state is ABANDONED for step in abandoned.values())
        for step in steps.values():
            assert step.attempt <= self._retries + (step.state is LOST), "retries are obeyed"
            assert step.worker in range(self._crew.next_worker) or not (step.attempt or step.state is LOST), (
                "a death has a name"
            )
        arrived = [seq for seq, step in steps.items() if step.state is not POSTED]
        assert sorted(self._arrived) == ([] if self._in_order else arrived)

        self._slabs.check([step.slab for table in (steps, abandoned) for step in table.values()])
        self._crew.check(is_running=self.phase in (OPEN, IDLE))
        if self.phase is CLOSED:
            assert not (steps or abandoned or self._slabs.states or self._crew), "closed is empty"
        if self.phase is IDLE:
            assert not steps, "a cancelled run has no steps"
        if self.phase is not OPEN:
            assert not self.ask_is_open
            return
        if self.ask_is_open:
            assert self._deliverable() is None, "no batch is withheld"
            assert not self.run_is_over, "no end is withheld"
            assert self._crew or steps, "a worker or a step remains for a consumer that waits"
        if self._crew and not self._drained and not self._may_wait():
            assert not self._has_room(), "there is no room left"

    def _has_room(self) -> bool:
        return len(self._steps) < self._window
