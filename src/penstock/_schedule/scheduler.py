"""The one place that decides: which step is posted, into which slab, and what the consumer gets.

    NEW --Opened--> OPEN --Cancelled--> IDLE --Opened--> OPEN        any --Closed--> CLOSED

    step   POSTED --StepFilled--> FILLED --Deliver--> forgotten
           POSTED --WorkerLost--> POSTED again, or LOST --DeliverLost--> forgotten
           POSTED --Cancelled--> ABANDONED --whatever is heard of it--> forgotten
           POSTED --StepEnded, Exhausted--> forgotten
    slab   FREE --Post--> HELD by one step --Deliver--> LENT --SlabReturned--> FREE
           HELD --its step is forgotten in any other way--> FREE

Workers pull: a posted step goes to whichever worker is free first, so nothing here chooses a worker, and
a posted step may or may not be in a worker's hands. Hence the rule behind most of the code below: the slab
of a posted step is not free before the outside has said that nobody writes to it any more.

After each event the rules of `_settle` run until none applies. No clock, queue, lock or buffer inside.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from enum import Enum
from typing import NamedTuple, NoReturn

from penstock._schedule.commands import (
    Command,
    Cool,
    Deliver,
    DeliverLost,
    Finish,
    GiveUp,
    Hire,
    Post,
    Rescind,
    Stop,
)
from penstock._schedule.events import (
    Asked,
    Bounded,
    Cancelled,
    Closed,
    Event,
    Exhausted,
    Opened,
    Rescinded,
    SlabReturned,
    StepEnded,
    StepFilled,
    WorkerLost,
)
from penstock.errors import InternalError


class Phase(Enum):
    NEW = "new"
    OPEN = "open"
    IDLE = "idle"
    CLOSED = "closed"


class StepState(Enum):
    POSTED = "posted"
    FILLED = "filled"
    LOST = "lost"
    ABANDONED = "abandoned"


class SlabState(Enum):
    FREE = "free"
    HELD = "held"
    LENT = "lent"


# An enum's members by bare names: looking one up in its class costs 0.1 µs in Python 3.11, and a batch
# looks up a dozen.
NEW, OPEN, IDLE, CLOSED = Phase
POSTED, FILLED, LOST, ABANDONED = StepState
FREE, HELD, LENT = SlabState


class Step(NamedTuple):
    """What is known of an undelivered step. Replaced, never changed, so a copy of a table is a snapshot."""

    state: StepState
    slab: int
    attempt: int = 0
    worker: int = -1  # the last one that died of it


# Names, not functions, so that a subclass can replace a rule (the model test plants bugs that way).
_HANDLER_OF: dict[type, str] = {
    Opened: "_opened",
    Asked: "_asked",
    Bounded: "_bounded",
    Exhausted: "_exhausted",
    StepFilled: "_step_filled",
    StepEnded: "_step_ended",
    WorkerLost: "_worker_lost",
    SlabReturned: "_slab_returned",
    Cancelled: "_cancelled",
    Rescinded: "_rescinded",
    Closed: "_closed",
}


# While nobody asks, no rule comes to apply through these: a step never waits for a slab, and a step that is
# filled makes no room. They are two of the three events of every batch.
_QUIET = frozenset({SlabReturned, StepFilled})


class Scheduler:
    """Turns what happened into what to do next.

    `window`: how many steps may be undelivered at once. `workers`: how many seats the crew has. `retries`:
    how many workers a step may cost beyond the first before it is given up; a seat where they die at birth may
    cost one more. `spare`: how many free slabs keep their pages (default: window + 2). `room`: the distance of
    two seqs, where a step may turn out to be several.
    """

    def __init__(
        self,
        *,
        window: int,
        workers: int,
        retries: int,
        in_order: bool = True,
        spare: int | None = None,
        room: int = 1,
    ) -> None:
        if window < 1 or workers < 1 or retries < 0:
            raise ValueError(
                f"window and workers must be at least 1 and retries at least 0, got window={window}, "
                f"workers={workers}, retries={retries}"
            )
        self._window = window
        self._workers = workers
        self._retries = retries
        self._in_order = in_order
        self._spare = window + 2 if spare is None else spare
        self._room = room

        self._phase = NEW
        self._ask_is_open = False
        self._bound: int | None = None
        self._drained = False  # nothing more to draw in this run

        # By seq, and in its order. Ordered, because a plain dict walks over all it has lost to find its
        # first key: with a window of 1000 that is a thousand dead entries for every batch.
        self._steps: OrderedDict[int, Step] = OrderedDict()
        self._abandoned: dict[int, Step] = {}
        self._arrived: OrderedDict[int, None] = OrderedDict()  # as they came; only if not in_order

        self._slabs: dict[int, SlabState] = {}
        self._warm: deque[int] = deque()  # free, the last one used at the right
        self._cold: list[int] = []  # free, without pages

        self._crew: dict[int, int] = {}  # living worker -> seat
        # Seat -> how many died there in a row with no step in hand, and none of theirs filled in between.
        self._idle_losses: dict[int, int] = {}

        self._next_seq = 0
        self._next_slab = 0
        self._next_worker = 0
        self._recent: deque[Event] = deque(maxlen=50)

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def outstanding(self) -> int:
        """How many steps are posted, filled or lost, and not yet delivered."""
        return len(self._steps)

    @property
    def ask_is_open(self) -> bool:
        return self._ask_is_open

    @property
    def run_is_over(self) -> bool:
        """All of the current run has been delivered: `Asked` would be answered by Finish."""
        if self._bound is None or not (self._drained or self._next_seq >= self._bound):
            return False
        return next(iter(self._steps), self._bound) >= self._bound

    def handle(self, event: Event) -> list[Command]:
        """Take in one event; the commands that follow from it, to be carried out in order."""
        out: list[Command] = []
        if self._phase is CLOSED:
            return out
        self._recent.append(event)
        getattr(self, _HANDLER_OF[type(event)])(event, out)
        if self._phase is OPEN and (self._ask_is_open or type(event) not in _QUIET):
            self._settle(out)
        return out

    # The rules. In this order one pass is enough: a post makes nothing deliverable, and with an ask
    # answered there is nothing to finish. `check` asserts that no rule is left to apply.

    def _settle(self, out: list[Command]) -> None:
        if self._ask_is_open:
            self._deliver(out)
        self._post(out)
        if self._ask_is_open and self.run_is_over:
            self._ask_is_open = False
            out.append(Finish())

    def _deliver(self, out: list[Command]) -> None:
        seq = self._deliverable()
        if seq is None:
            return
        step = self._steps.pop(seq)
        self._arrived.pop(seq, None)
        self._ask_is_open = False
        if step.state is FILLED:
            self._slabs[step.slab] = LENT
            out.append(Deliver(seq, step.slab))
        else:
            out.append(DeliverLost(seq, step.slab, step.worker))
            self._free(step.slab, out)

    def _deliverable(self) -> int | None:
        for seq in self._steps if self._in_order else self._arrived:
            if self._bound is not None and seq >= self._bound:
                if self._in_order:
                    return None
                continue  # of the next run, and came early
            return None if self._steps[seq].state is POSTED else seq
        return None

    def _post(self, out: list[Command]) -> None:
        if self._drained:
            return
        if not self._crew:
            # Hiring was given up (see `_worker_lost`). A consumer that has been told of every lost step
            # and asks for more gets a new crew; the alternative is to leave it waiting for ever.
            if self._steps or not self._ask_is_open or self.run_is_over:
                return
            self._idle_losses.clear()
            self._hire(out)
        if self._may_wait():
            return
        while len(self._steps) < self._window:
            seq = self._next_seq
            self._next_seq = seq + self._room
            slab = self._take_slab()
            self._steps[seq] = Step(POSTED, slab)
            out.append(Post(seq, slab, 0))

    def _may_wait(self) -> bool:
        """Whether nobody loses if posting is put off: a batch is ready, and more than half the window is out.

        Then steps are posted by the half window. Where workers are faster than the consumer they sleep, and
        to wake one costs the consumer more than all else it does for a batch: so it wakes one for several.
        """
        return len(self._steps) > self._window // 2 and self._deliverable() is not None

    # Runs

    def _opened(self, event: Opened, out: list[Command]) -> None:
        if self._ask_is_open or (self._phase is OPEN and not self.run_is_over):
            self._impossible(event, "a run was opened before the last one was over or cancelled")
        self._phase = OPEN
        self._bound = None
        self._drained = False
        self._idle_losses.clear()
        crew: list[Command] = []
        self._hire(crew)
        self._settle(out)
        out += crew  # last, so that whoever is born first finds work at once

    def _asked(self, event: Asked, out: list[Command]) -> None:
        if self._ask_is_open:
            self._impossible(event, "the consumer asked again before it was answered")
        if self._phase is not OPEN:
            self._impossible(event, "the consumer asked outside a run")
        self._ask_is_open = True

    def _bounded(self, event: Bounded, out: list[Command]) -> None:
        if self._phase is OPEN:  # else it speaks of a run that was cancelled meanwhile
            self._lower_bound_to(event.seq)

    def _exhausted(self, event: Exhausted, out: list[Command]) -> None:
        if event.seq in self._abandoned:
            self._forget_abandoned(event.seq, out)
            return
        self._forget_posted(event.seq, event, out)
        self._drained = True
        self._lower_bound_to(event.seq)

    def _cancelled(self, event: Cancelled, out: list[Command]) -> None:
        if self._phase is OPEN:
            self._phase = IDLE
        self._ask_is_open = False
        self._abandon(list(self._steps), out)

    def _closed(self, event: Closed, out: list[Command]) -> None:
        self._phase = CLOSED
        self._ask_is_open = False
        self._steps.clear()
        self._abandoned.clear()
        self._arrived.clear()
        self._slabs.clear()
        self._warm.clear()
        self._cold.clear()
        self._crew.clear()
        out.append(Stop())

    def _lower_bound_to(self, seq: int) -> None:
        self._bound = seq if self._bound is None else min(self._bound, seq)

    # Steps

    def _step_filled(self, event: StepFilled, out: list[Command]) -> None:
        seq = event.seq
        if event.worker not in self._crew:
            self._impossible(event, "it comes from a worker that is not alive")
        if self._idle_losses:
            self._idle_losses.pop(self._crew[event.worker], None)
        step = self._steps.get(seq)
        if step is None:
            if seq not in self._abandoned:
                self._impossible(event, "the step is not known")
            self._forget_abandoned(seq, out)
            return
        if step.state is not POSTED:
            self._impossible(event, f"the step is {step.state.value}")
        self._steps[seq] = Step(FILLED, step.slab, step.attempt, step.worker)
        if not self._in_order:
            self._arrived[seq] = None

    def _step_ended(self, event: StepEnded, out: list[Command]) -> None:
        seq = event.seq
        if event.worker not in self._crew:
            self._impossible(event, "it comes from a worker that is not alive")
        self._idle_losses.pop(self._crew[event.worker], None)
        if seq in self._abandoned:
            self._forget_abandoned(seq, out)
            return
        self._forget_posted(seq, event, out)
        # What was posted further on in this stream is void. It is abandoned here and now: its own
        # StepEnded may come after the next `Opened`, and would end the new run before it began.
        bound = self._bound
        void = [s for s in self._steps if s > seq and (bound is None or s < bound or seq >= bound)]
        for s in void:
            if self._steps[s].state is FILLED:
                self._impossible(event, f"the later step {s} is filled")
        self._abandon(void, out)
        self._drained = True
        self._lower_bound_to(seq)

    def _rescinded(self, event: Rescinded, out: list[Command]) -> None:
        if event.seq in self._abandoned:
            self._forget_abandoned(event.seq, out)
            return
        step = self._steps.get(event.seq)
        if step is None or step.state is not POSTED:
            self._impossible(event, "the step is not posted")
        self._lose(event.seq, step)  # taken off the board because there is no crew

    def _lose(self, seq: int, step: Step) -> None:
        self._steps[seq] = Step(LOST, step.slab, step.attempt, step.worker)
        if not self._in_order:
            self._arrived[seq] = None

    def _abandon(self, seqs: list[int], out: list[Command]) -> None:
        for seq in seqs:
            step = self._steps.pop(seq)
            self._arrived.pop(seq, None)
            if step.state is POSTED:
                self._abandoned[seq] = Step(ABANDONED, step.slab, step.attempt, step.worker)
                out.append(Rescind(seq))
            else:
                self._free(step.slab, out)

    def _forget_abandoned(self, seq: int, out: list[Command]) -> None:
        self._free(self._abandoned.pop(seq).slab, out)

    def _forget_posted(self, seq: int, event: Event, out: list[Command]) -> None:
        step = self._steps.get(seq)
        if step is None or step.state is not POSTED:
            self._impossible(event, "the step is not posted")
        del self._steps[seq]
        self._free(step.slab, out)

    # Workers

    def _worker_lost(self, event: WorkerLost, out: list[Command]) -> None:
        seat = self._crew.pop(event.worker, None)
        if seat is None:
            self._impossible(event, "the worker is not alive")
        if event.seq is None:
            self._idle_losses[seat] = self._idle_losses.get(seat, 0) + 1
        else:
            self._take_back(event.seq, event, out)
        # Workers that die with a step in hand use up that step's retries, so this comes to an end by
        # itself. Workers that die at birth do not, and a count of their own stops the hiring for that seat.
        # Those that still live go on alone; when none does, nobody will claim what is on the board.
        self._hire(out)
        if self._crew:
            if self._is_given_up(seat):
                out.append(GiveUp(seat, event.worker))
        else:
            for seq, step in self._steps.items():
                if step.state is POSTED:
                    self._steps[seq] = Step(POSTED, step.slab, step.attempt, event.worker)
                    out.append(Rescind(seq))

    def _take_back(self, seq: int, event: WorkerLost, out: list[Command]) -> None:
        """Post the step of a dead worker again, in the same slab, or give it up."""
        if seq in self._abandoned:
            self._forget_abandoned(seq, out)
            return
        step = self._steps.get(seq)
        if step is None or step.state is not POSTED:
            self._impossible(event, "the step is not posted")
        if event.steps > 1:
            # One of them is guilty. The others are posted as if it were for the first time.
            guilty = seq + event.at
            for other in range(seq, seq + event.steps):
                if other != guilty:
                    slab = self._take_slab()
                    self._steps[other] = Step(POSTED, slab)
                    out.append(Post(other, slab, 0))
            seq = guilty
            self._steps[seq] = step
            self._steps = OrderedDict(sorted(self._steps.items()))
        step = Step(POSTED, step.slab, step.attempt + 1, event.worker)
        if step.attempt > self._retries:
            self._lose(seq, step)
        else:
            self._steps[seq] = step
            out.append(Post(seq, step.slab, step.attempt))

    def _hire(self, out: list[Command]) -> None:
        """Fill every empty seat that is not given up."""
        taken = set(self._crew.values())
        for seat in range(self._workers):
            if seat not in taken and not self._is_given_up(seat):
                worker = self._next_worker
                self._next_worker = worker + 1
                self._crew[worker] = seat
                out.append(Hire(worker, seat))

    def _is_given_up(self, seat: int) -> bool:
        return self._idle_losses.get(seat, 0) > self._retries + 1

    # Slabs

    def _slab_returned(self, event: SlabReturned, out: list[Command]) -> None:
        if self._slabs.get(event.slab) is not LENT:
            self._impossible(event, "the slab is not lent")
        self._free(event.slab, out)

    def _take_slab(self) -> int:
        """The slab used last (warm in the cache), or a new one: a step never waits for a slab."""
        if self._warm:
            slab = self._warm.pop()
        elif self._cold:
            slab = self._cold.pop()
        else:
            slab = self._next_slab
            self._next_slab = slab + 1
        self._slabs[slab] = HELD
        return slab

    def _free(self, slab: int, out: list[Command]) -> None:
        self._slabs[slab] = FREE
        self._warm.append(slab)
        if len(self._warm) > self._spare:
            coldest = self._warm.popleft()
            self._cold.append(coldest)
            out.append(Cool(coldest))

    # Bugs

    def _impossible(self, event: Event, why: str) -> NoReturn:
        recent = "\n    ".join(map(repr, self._recent))
        steps = {seq: step.state.value for seq, step in self._steps.items()}
        raise InternalError(
            f"the scheduler was told {event!r}, but {why}.\n"
            f"  It is {self._phase.value}: window {self._window}, crew {self._crew}, bound {self._bound}, "
            f"steps {steps}, abandoned {list(self._abandoned)}.\n"
            f"  This is a bug in penstock, not in your program. Please report it with this text.\n"
            f"  The last {len(self._recent)} events:\n    {recent}"
        )

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds. For tests: it walks over everything."""
        steps, abandoned, slabs = self._steps, self._abandoned, self._slabs
        free = [*self._warm, *self._cold]
        held = [step.slab for table in (steps, abandoned) for step in table.values()]

        assert list(steps) == sorted(steps), "steps are in the order of seq"
        assert not steps.keys() & abandoned.keys(), "a step is in one table"
        assert all(seq < self._next_seq for seq in (*steps, *abandoned)), "no seq is given twice"
        assert all(step.state is not ABANDONED for step in steps.values())
        assert all(step.state is ABANDONED for step in abandoned.values())
        assert len({seq // self._room for seq in steps}) <= self._window, "the window is respected"
        for step in steps.values():
            assert step.attempt <= self._retries + (step.state is LOST), "retries are obeyed"
            assert step.worker in range(self._next_worker) or not (step.attempt or step.state is LOST), (
                "a death has a name"
            )
        arrived = [seq for seq, step in steps.items() if step.state is not POSTED]
        assert sorted(self._arrived) == ([] if self._in_order else arrived)

        assert max(Counter([*free, *held]).values(), default=1) == 1, "a slab has one holder"
        assert {s for s, state in slabs.items() if state is FREE} == set(free)
        assert {s for s, state in slabs.items() if state is HELD} == set(held)
        assert all(slab < self._next_slab for slab in slabs), "no slab id is given twice"
        assert len(self._warm) <= self._spare

        assert len(set(self._crew.values())) == len(self._crew), "a seat has one worker"
        assert all(seat in range(self._workers) for seat in self._crew.values())
        assert all(worker < self._next_worker for worker in self._crew), "no worker id is given twice"

        if self._phase in (OPEN, IDLE):
            empty = set(range(self._workers)) - set(self._crew.values())
            assert all(map(self._is_given_up, empty)), "a seat is empty only where it was given up"
        if self._phase is CLOSED:
            assert not (steps or abandoned or slabs or free or self._crew), "closed is empty"
        if self._phase is IDLE:
            assert not steps, "a cancelled run has no steps"
        if self._phase is not OPEN:
            assert not self._ask_is_open
            return
        if self._ask_is_open:
            assert self._deliverable() is None, "no batch is withheld"
            assert not self.run_is_over, "no end is withheld"
            assert self._crew or steps, "somebody is at work for whoever waits"
        if self._crew and not self._drained and not self._may_wait():
            assert len(steps) >= self._window, "there is no room left"
