"""The outside of the scheduler and the course, small enough to be walked through completely.

Workers claim, fill, report, leave and die; a board holds open tasks; a consumer opens, asks, keeps, returns and
cancels, changes the dataset and the number of workers; an engine carries out commands and asks the real `Course` what
a seq stands for. Each move of each of them is one action, `explore` takes every action in every state, and every law
is stated from the outside: what the world sees, never what the scheduler says of itself.

A breach carries the shortest list of events that leads to it, ready to be kept as a test that replays it
(tests/unit/test_scheduler.py).
"""

from __future__ import annotations

import gc
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock._schedule.assigned import Assigned
from penstock._schedule.commands import (
    Break,
    Command,
    Cool,
    Deliver,
    DeliverLost,
    Fail,
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
    Bounded,
    Cancelled,
    Changed,
    Closed,
    Event,
    Exhausted,
    Opened,
    Rescinded,
    Resized,
    SlabReturned,
    StepEnded,
    StepFilled,
    WorkerLeft,
    WorkerLost,
)
from penstock._schedule.onereader import OneReader
from penstock._schedule.scheduler import Scheduler
from penstock._schedule.slabs import SlabStates
from penstock._schedule.states import OPEN


class Breach(AssertionError):
    """A law of the outside does not hold. `events` leads there."""

    def __init__(self, law: str, events: list[Event]) -> None:
        super().__init__(law + "\n" + "\n".join(f"    {event!r}," for event in events))
        self.law = law
        self.events = events


@dataclass(frozen=True)
class Setting:
    """The size of a world, and what may go wrong in it."""

    runs: tuple[int, ...]  # how many steps each run has
    rule: type[Scheduler] = Scheduler
    # How the end of a run is learnt. "known": said when its first step is drawn. "found": at the draw that
    # finds nothing. "stream": a worker finds that the stream has ended.
    ends: str = "known"
    ahead: bool = True  # may steps of the next run be drawn early? (never with "stream")
    window: int = 3
    workers: int = 2
    retries: int = 1
    in_order: bool = True
    spare: int | None = None
    hold: int = 1  # batches kept while asking for another
    crashes: int = 0
    refusals: int = 0  # workers that the system does not start
    cancels: int = 0
    bundle: int = 1  # steps drawn as one (not with "known", which counts on one seq for each)
    unread: int = 1  # results a worker may leave in its pipe and still claim the next task
    changes: int = 0  # of the dataset (not with "known", nor with a stream)
    resizes: tuple[tuple[int, int], ...] = ()  # workers and window, one after the other
    tells: frozenset[int] = frozenset()  # the steps of a stream with one reader that tell its position
    lengths: tuple[int, ...] = ()  # of the stream of each seat, with a fixed assignment
    seat: int = 0  # the seat that has the first step, with a fixed assignment
    once: bool = False  # the worker of a stream that has ended leaves early, with a fixed assignment
    # A task with this step cannot be sent: run, step, and after how many changes that is so.
    unsendable: tuple[int, int, int] = (-1, -1, 0)
    raising: tuple[int, int] = (-1, -1)  # run, step: the sampler raises in its place, and no worker has the step


class Task(NamedTuple):
    """What the course calls work: some steps of a run."""

    seq: int
    run: int
    step: int
    steps: int = 1

    def single(self) -> list[Task]:
        return [Task(self.seq + i, self.run, self.step + i) for i in range(self.steps)]


PER_RUN = 10  # run numbers: the tens tell which run it is, the ones after how many changes it was made


class Ended(Exception):
    """The run ends before this step, because a task could not be sent or the stream broke."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class Run:
    """The steps of one run, drawn one after the other; a stream has as many as are asked for."""

    def __init__(self, setting: Setting, which: int, version: int) -> None:
        self.setting = setting
        self.which = which
        self.number = which * PER_RUN + version
        self.version = version
        self.next = 0
        self.over = False
        self.error: BaseException | None = None

    def draw(self, seq: int, most: int = 1) -> Task | None:
        left = most
        if self.setting.ends != "stream":
            left = min(most, self.setting.runs[self.which] - self.next)
        if self.error is not None or left <= 0:
            self.over = True
        if self.over:
            return None
        self.next += left
        return Task(seq, self.number, self.next - left, left)

    def fail(self, error: BaseException) -> None:
        self.error = error

    def follow(self) -> Run | None:
        which = self.which + 1
        if self.setting.ends == "stream" or which >= len(self.setting.runs):
            return None
        return Run(self.setting, which, self.version)

    def copy(self) -> Run:
        new: Run = object.__new__(Run)
        new.__dict__.update(self.__dict__)
        return new

    def key(self) -> tuple[object, ...]:
        error = self.error.step if isinstance(self.error, Ended) else -1
        return self.number, self.version, self.next, self.over, error


class Made(NamedTuple):
    """The outcome of one step: what a worker really did, or that it was lost."""

    seq: int  # the task that it came with: its slab is lent as long as one of its outcomes is there
    which: int  # run
    step: int
    how: int  # the version of the dataset; of a stream, the number that the reader has read


class Posted(NamedTuple):
    """A task as the outside knows it, from Post until no worker can write into its slab any more."""

    slab: int
    task: Task
    deaths: int = 0
    wanted: bool = True  # its run was not cancelled, and the dataset was not changed since
    # It was taken off the board: for ever if the last worker had died, or until it is posted again.
    withdrawn: bool = False
    seat: int = -1
    position: int = -1  # of the stream, sent along
    how: int = -1  # once its result was heard


NOTHING = -1
NO_SLAB = -1  # of a step that was drawn with others, until it is posted by itself
LOST = -1


class Worker(NamedTuple):
    seat: int
    alive: bool = True
    left: bool = False  # it left because it was asked to
    claim: int = NOTHING
    # The version of the dataset when it claimed. If it reads a stream: the run, and the number it reads next.
    version: int = 0
    reads: tuple[int, int] = (-1, 0)
    pipe: tuple[tuple[bool, int, int], ...] = ()  # whether the stream ended, seq, how


Action = tuple[str, int]
OUT, IN, ASKED = range(3)  # the consumer: between runs, in one, waiting in one

# What `World.key` takes in of the scheduler and its parts. The rest is left out: settings, the log, and ids, which
# are only names. (A slab is known by who has it, and the world has checked by then that both agree on that.)
IN_KEY: dict[type, set[str]] = {
    Scheduler: {
        "phase", "ask_is_open", "_bound", "_drained", "_next_seq", "_steps", "_abandoned", "_arrived",
        "_window", "_slabs", "_crew",
    },
    OneReader: {"_first", "_resume"},
    Assigned: {"_ended", "_turn"},
    Crew: {"size", "leaving", "seats", "losses"},
    SlabStates: {"warm", "cold"},
    Course: {"run", "ahead", "ready", "_out", "_again"},
}  # fmt: skip
NOT_IN_KEY: dict[type, set[str]] = {
    Scheduler: {"_retries", "_in_order", "_spacing", "_log"},
    OneReader: set(),
    Assigned: {"_seats", "_once"},
    Crew: {"_retries", "next_worker"},
    SlabStates: {"spare", "states", "_next"},
    Course: {"_look_ahead", "filled"},  # the engine of this world keeps outcomes by itself
}


class World:
    """`bug`: a scheduler, crew or course to be used in place of the real one. `checked`: after each event."""

    def __init__(self, setting: Setting, bug: type | None = None, checked: bool = True) -> None:
        assert not (setting.ends == "known" and (setting.changes or setting.bundle > 1))
        self.setting = setting
        self.checked = checked
        make = bug if bug is not None and issubclass(bug, Scheduler) else setting.rule
        self.scheduler = new_scheduler(setting, make)
        if bug is not None and issubclass(bug, Crew):
            self.scheduler._crew = bug(setting.workers, setting.retries)
        self.course: Course[Run, Task] = (bug if bug is not None and issubclass(bug, Course) else Course)(
            setting.ahead
        )
        self.owned = True  # the course is not shared with the world that this one is a copy of
        self.history: Any = None  # the events so far, as a linked list: copies share it
        self.stopped = False
        # the engine
        self.tasks: dict[int, Posted] = {}
        self.board: tuple[int, ...] = ()  # oldest first
        self.untold: dict[int, int] = {}  # seq -> slab, until its Exhausted or Rescinded is told
        self.last_seq = -1
        self.first_ahead = -1  # the seq of the first step of the run ahead, if its length is known
        self.dry = False  # nothing more can be drawn
        self.slabs: frozenset[int] = frozenset()
        self.cold: frozenset[int] = frozenset()
        self.window = setting.window
        self.spare = setting.window + 2 if setting.spare is None else setting.spare
        # the crew
        self.workers: dict[int, Worker] = {}
        self.last_worker = -1
        self.size = setting.workers
        self.retiring = 0  # requests to leave that no worker has taken
        self.leaving = 0  # workers that were asked to leave, and the scheduler was not told that they have
        self.dismissed: frozenset[int] = frozenset()  # seats whose worker leaves when it has done its steps
        self.idle_losses: dict[int, int] = {}  # by seat, since a step came from it
        self.given_up: frozenset[int] = frozenset()  # seats, and the engine was told
        self.crashes = setting.crashes
        self.refusals = setting.refusals
        self.refusing = 0  # of the next that are hired
        self.known = (-1, -1)  # the position of the stream behind the last step heard of: run, number
        self.failed = False
        # the consumer
        self.mode = OUT
        self.run = -1
        self.got: tuple[Any, ...] = ()  # steps handed out in this run; of streams of many seats: seat, number
        self.held: dict[int, int] = {}  # seq -> slab
        self.cancels = setting.cancels
        self.version = 0
        self.resized = 0

    def copy(self) -> World:
        """A world of its own, but for the scheduler and the course, which are copied before they change."""
        new: World = object.__new__(World)
        new.__dict__.update(self.__dict__)
        new.tasks = self.tasks.copy()  # (`untold` is empty between actions)
        new.workers = self.workers.copy()
        new.idle_losses = self.idle_losses.copy()
        new.held = self.held.copy()
        new.owned = False
        return new

    def own(self) -> Course[Run, Task]:
        """The course, to be changed."""
        if not self.owned:
            self.course = copy_of(self.course)
            self.owned = True
        return self.course

    def key(self) -> tuple[object, ...]:
        """Equal for worlds with the same future, up to the names of slabs and workers."""
        s: Any = self.scheduler
        c: Any = self.course
        crew = {w.seat: w[1:] for w in self.workers.values()}
        losses = s._crew.losses
        seats = [
            (
                self.idle_losses.get(seat, 0),
                losses.get(seat, 0),
                seat in self.given_up,
                crew.get(seat, ()),
                seat,
            )
            for seat in {*crew, *self.idle_losses, *losses, *self.given_up}
        ]
        own: tuple[object, ...] = ()
        # Seats are alike, unless steps belong to them, or the lowest one counts.
        if self.setting.rule is Assigned:
            own = tuple(s._ended), s._turn
        elif self.setting.rule is OneReader:
            own = s._first, s._resume, self.known
        if self.setting.rule is Scheduler and not self.setting.resizes:
            seats = sorted([seat[:4] for seat in seats])  # type: ignore[misc]
        else:
            seats.sort(key=lambda seat: seat[4])
        return (
            s.phase.value, s.ask_is_open, s._bound, s._drained, s._next_seq, own,
            tuple([(seq, step.state.value, step.attempt, step.seat) for seq, step in s._steps.items()]),
            tuple(s._abandoned), tuple(s._arrived), len(s._slabs.warm), len(s._slabs.cold),
            s._window, s._crew.size, s._crew.leaving, len(s._crew.seats),
            tuple([(seq, *t[1:]) for seq, t in self.tasks.items()]),
            self.board, self.crashes, self.refusals, self.refusing, self.dry, self.first_ahead,
            None if c.run is None else c.run.key(), None if c.ahead is None else c.ahead.key(),
            tuple(c.ready), tuple(sorted(c._out.values())), tuple(c._again),
            self.mode, self.run, tuple(seats),
            len(self.got) if self.setting.in_order else tuple(sorted(self.got)), tuple(sorted(self.held)),
            self.cancels, len(self.slabs), len(self.cold), self.version, self.resized, self.retiring, self.leaving,
            self.failed, self.dismissed,
        )  # fmt: skip

    def full_key(self) -> tuple[object, ...]:
        """Equal only for worlds that are alike down to the names of slabs and workers."""
        mine = {
            k: v for k, v in vars(self).items() if k not in {"setting", "scheduler", "course", "history", "owned"}
        }
        return repr(mine), state_of(self.scheduler), state_of(self.course)

    # Actions

    def actions(self) -> Iterator[Action]:
        """Everything that can happen next. Each uses something up, so no history is endless."""
        if self.failed:
            return
        yield from self.progress()
        if self.crashes:
            for worker, w in self.workers.items():
                if w.alive:
                    yield ("die", worker)
        if self.refusals:
            yield ("refuse", 0)
        needed = {outcome.seq for _, outcome in self.course.ready}
        for seq in self.held:
            if seq not in needed:
                yield ("give_back", seq)
        more = self.run + 1 < len(self.setting.runs) and not self.scheduler.must_settle
        if self.mode == OUT and more:
            yield ("open", 0)
        if self.mode == IN:
            if self.course.ready:
                yield ("take", 0)
            elif len(self.held) <= self.setting.hold:
                yield ("ask", 0)
            if self.scheduler.run_is_over and not self.course.ready and more:
                yield ("open", 0)  # a consumer that knows the length need not ask for the end
        if self.cancels and self.run >= 0:
            yield ("cancel", 0)
        if self.version < self.setting.changes:
            yield ("change", 0)
        if self.resized < len(self.setting.resizes):
            # A backend may withdraw fewer requests to leave than it could.
            for retained in {0, self.retiring}:
                yield ("resize", retained)

    def progress(self) -> Iterator[Action]:
        """What happens by itself in the end, whatever the consumer does."""
        if self.failed:
            return
        for worker, w in self.workers.items():
            if w.pipe:
                yield ("hear", worker)
            if not w.alive:
                if not w.pipe:
                    yield ("notice", worker)
                    if w.claim != NOTHING and self.tasks[w.claim].task.steps > 1:
                        yield ("notice_only_the_death", worker)
            elif w.claim != NOTHING:
                yield ("fill", worker)
            else:
                if len(w.pipe) <= self.setting.unread and self.next_for(w) is not None:
                    yield ("claim", worker)
                done = w.seat in self.dismissed and self.next_for(w) is None
                if self.retiring or done:
                    yield ("leave", worker)

    def next_for(self, worker: Worker) -> int | None:
        for seq in self.board:
            if self.tasks[seq].seat in (-1, worker.seat):
                return seq
        return None

    def act(self, action: Action) -> None:
        name, argument = action
        do: Callable[[int], None] = getattr(self, name)
        try:
            do(argument)
        except Breach:
            raise
        except Exception as error:  # an InternalError, or whatever a planted bug leads to
            raise Breach(f"{type(error).__name__}: {error}", self.events()) from error

    def claim(self, worker: int) -> None:
        w = self.workers[worker]
        seq = self.next_for(w)
        assert seq is not None
        self.board = tuple(s for s in self.board if s != seq)
        posted = self.tasks[seq]
        slab = posted.slab
        self.law(posted.wanted or self.setting.rule is Assigned, f"the cancelled step {seq} is left on the board")
        self.law(slab not in self.held.values(), f"slab {slab} is written into while lent")
        for other in self.workers.values():
            busy = other.alive and other.claim != NOTHING and self.tasks[other.claim].slab == slab
            self.law(not busy, f"slab {slab} is written by two")
        if self.setting.rule is Assigned and not self.setting.lengths and self.setting.in_order:
            turn = (self.setting.seat + posted.task.step) % self.setting.workers
            self.law(w.seat == turn, f"step {posted.task.step} is done by seat {w.seat}, not {turn}")
        reads = w.reads
        if self.setting.rule is OneReader:
            there = posted.task.run, min(posted.task.step, self.setting.runs[posted.task.run // PER_RUN])
            if posted.position >= 0 or posted.task.step == 0:
                reads = posted.task.run, max(0, posted.position)
            self.law(reads == there, f"the reader is at {reads}, and is to read {there}")
        elif self.setting.lengths and reads[0] != posted.task.run:
            reads = posted.task.run, 0
        self.workers[worker] = w._replace(claim=seq, version=self.version, reads=reads)

    def fill(self, worker: int) -> None:
        w = self.workers[worker]
        task = self.tasks[w.claim].task
        how, reads = w.version, w.reads
        length, at = self.setting.runs[task.run // PER_RUN], task.step
        if self.setting.lengths:
            length, at = self.setting.lengths[w.seat], w.reads[1]
        if self.setting.lengths or self.setting.rule is OneReader:
            how, reads = w.reads[1], (w.reads[0], w.reads[1] + (at < length))
        pipe = (*w.pipe, (at >= length, w.claim, how))
        self.workers[worker] = w._replace(claim=NOTHING, version=0, reads=reads, pipe=pipe)

    def die(self, worker: int) -> None:
        self.crashes -= 1
        self.workers[worker] = self.workers[worker]._replace(alive=False)

    def leave(self, worker: int) -> None:
        self.retiring -= self.workers[worker].seat not in self.dismissed
        self.workers[worker] = self.workers[worker]._replace(alive=False, left=True)

    def refuse(self, _: int) -> None:
        self.refusals -= 1
        self.refusing += 1

    def hear(self, worker: int) -> None:
        w = self.workers[worker]
        (ended, seq, how), *rest = w.pipe
        self.workers[worker] = w._replace(pipe=tuple(rest))
        self.idle_losses.pop(w.seat, None)
        posted = self.tasks[seq]
        self.law((self.course.find(seq) is not None) == posted.wanted, f"the course is wrong about step {seq}")
        if not posted.wanted:
            del self.tasks[seq]
        elif not ended:
            self.tasks[seq] = posted._replace(how=how)
            told = self.setting.rule is OneReader and posted.task.step in self.setting.tells
            self.known = (posted.task.run, posted.task.step + 1) if told else (-1, -1)
        else:
            if self.setting.rule is Assigned:
                self.own().forget(seq)
                later = [s for s, t in self.tasks.items() if t.seat == posted.seat and s > seq]
                for s in later:
                    self.own().forget(s)
            else:
                self.own().forget_from(seq)
                later = [s for s, t in self.tasks.items() if t.task.run == posted.task.run and s > seq]
                self.dry = True
            self.unwant(later)
            del self.tasks[seq]
        self.tell(StepEnded(seq, worker) if ended else StepFilled(seq, worker))
        if ended and posted.wanted and self.setting.once and not self.stopped:
            self.law(w.seat in self.dismissed, "a stream has ended, and its worker stays")

    def notice_only_the_death(self, worker: int) -> None:
        self.notice(worker, at_is_known=False)

    def notice(self, worker: int, at_is_known: bool = True) -> None:
        w = self.workers[worker]
        seq = None if w.claim == NOTHING else w.claim
        if w.left or w.seat in self.dismissed:
            if w.seat in self.dismissed:  # what it should have done is not wanted, and it may have died before
                mine = {s for s, t in self.tasks.items() if t.seat == w.seat}
                self.law(not any(self.tasks[s].wanted and s in self.board for s in mine), "a step has no worker")
                self.board = tuple(s for s in self.board if s not in mine)
                self.tasks = {s: t for s, t in self.tasks.items() if s not in mine or t.wanted}
            del self.workers[worker]
            self.leaving -= 1
            self.tell(WorkerLeft(worker))
            return
        steps = 1
        at: int | None = 0
        if seq is not None:
            posted = self.tasks[seq]
            self.law((self.course.find(seq) is not None) == posted.wanted, f"the course is wrong about step {seq}")
            if not posted.wanted:
                del self.tasks[seq]
            else:
                single = self.own().split(seq)
                steps = len(single)
                at = self.crashes % steps if at_is_known else None
                for i, task in enumerate(single):
                    slab = posted.slab if i == at else NO_SLAB
                    self.tasks[task.seq] = posted._replace(slab=slab, task=task, deaths=posted.deaths + (i == at))
                self.tasks = dict(sorted(self.tasks.items()))
        run = self.course.run
        resumable = run is not None and self.known[0] == run.number
        self.tell(WorkerLost(worker, seq, steps, at, resumable))
        if self.setting.rule is Assigned:
            self.law(self.failed or self.stopped, "a worker that cannot be replaced has died, and nobody was told")

    def bury(self, worker: int) -> None:
        w = self.workers.pop(worker)
        if w.claim == NOTHING:
            self.idle_losses[w.seat] = self.idle_losses.get(w.seat, 0) + 1

    def give_back(self, seq: int) -> None:
        self.tell(SlabReturned(self.held.pop(seq)))

    def open(self, _: int) -> None:
        course = self.own()
        run = course.ahead or Run(self.setting, self.run + 1, self.version)
        told: list[Event] = [Opened(self.setting.seat)]
        if self.scheduler.phase is OPEN and not self.scheduler.run_is_over:
            # It was over, but after a change nobody has looked again.
            self.law(run is not course.ahead, "the run ahead was prefetched, and this one is not over")
            course.cancel()
            self.unwant(list(self.tasks))
            told.insert(0, Cancelled())
        if self.first_ahead >= 0:
            told.append(Bounded(self.first_ahead + self.setting.runs[self.run + 1]))
            self.first_ahead = -1
        course.open(run)
        self.run += 1
        self.mode = IN
        self.got = ()
        self.dry = False
        self.forgive()
        self.tell(*told)

    def forgive(self) -> None:
        self.idle_losses.clear()
        self.given_up = frozenset()

    def is_given_up(self, seat: int) -> bool:
        """Whether so many have died there that nobody is hired for it."""
        return self.idle_losses.get(seat, 0) > self.setting.retries + 1

    def nobody_is_left(self) -> bool:
        lost = sum(map(self.is_given_up, self.idle_losses))
        return not self.workers and lost >= self.size + self.leaving

    def ask(self, _: int) -> None:
        self.mode = ASKED
        self.tell(Asked())

    def cancel(self, _: int) -> None:
        self.cancels -= 1
        self.mode = OUT
        self.first_ahead = -1
        self.own().cancel()
        self.unwant(list(self.tasks))
        self.tell(Cancelled())

    def change(self, _: int) -> None:
        self.version += 1
        self.dry = False
        course = self.own()
        course.redo()
        if course.run is not None:
            course.run.version = self.version
        self.unwant(list(self.tasks))
        self.tell(Changed())

    def resize(self, retained: int) -> None:
        workers, window = self.setting.resizes[self.resized]
        self.retiring -= retained
        self.leaving -= retained
        self.resized += 1
        self.spare += window - self.window
        self.size, self.window = 1 if self.setting.rule is OneReader else workers, window
        self.forgive()
        self.tell(Resized(workers, window, retained))

    def take(self, _: int) -> None:
        self.hand_out()

    def unwant(self, seqs: Iterable[int]) -> None:
        """What arrives for these is nobody's any more. A result that has been heard of has no writer."""
        busy: set[object] = {*self.board}
        for w in self.workers.values():
            busy |= {w.claim, *[seq for _, seq, _ in w.pipe]}
        for seq in list(seqs):
            if seq in busy:
                self.tasks[seq] = self.tasks[seq]._replace(wanted=False)
            else:
                del self.tasks[seq]

    # The engine

    def tell(self, *told: Event) -> None:
        """Handle the events, and all that is answered to the commands that follow, in order."""
        self.scheduler = copy_of(self.scheduler)
        events = deque(told)
        while events:
            event = events.popleft()
            self.history = (event, self.history)
            if type(event) in (Exhausted, Rescinded):
                self.untold.pop(event.seq, None)
            if type(event) is WorkerLost:
                self.bury(event.worker)
            commands = self.scheduler.handle(event)
            if self.checked:
                self.check()
            for command in commands:
                events.extend(self.carry_out(command, event))

    def check(self) -> None:
        try:
            self.scheduler.check()
            self.course.check()
        except AssertionError as error:
            raise Breach(f"{type(error).__name__}: {error}", self.events()) from error

    def carry_out(self, command: Command, cause: Event) -> Iterator[Event]:
        self.law(not self.stopped, "nothing is commanded after the end")
        match command:
            case Hire(worker, seat):
                yield from self.hire(worker, seat, cause)
            case Retire(seat) if seat >= 0:
                self.law(self.setting.once, "a worker is asked to leave, and another run may follow")
                self.law(any(w.seat == seat for w in self.workers.values()), "nobody is there to leave")
                self.law(all(not t.wanted or t.seat != seat or t.how >= 0 for t in self.tasks.values()),
                         "a worker is asked to leave, and a step of its is wanted")  # fmt: skip
                self.dismissed |= {seat}
                self.size -= 1
                self.leaving += 1
            case Retire():
                self.retiring += 1
                self.leaving += 1
            case Post(seq, slab, _) if seq in self.tasks:
                self.post_again(command)
            case Post(seq, slab, _):
                self.law(seq > self.last_seq, f"seq {seq} is used twice")
                self.last_seq = seq
                self.use(slab)
                yield from self.draw(command)
                waiting = len({seq // self.setting.bundle for seq, posted in self.tasks.items() if posted.wanted})
                self.law(waiting <= self.window, f"{waiting} steps are undelivered")
            case Rescind(seq):
                self.law(self.setting.rule is not Assigned, "a posted step is always done: generators depend on it")
                if seq in self.board:
                    self.rescind(seq)
                    yield Rescinded(seq)
            case Deliver(seq, slab):
                posted = self.receive(seq, slab)
                self.law(posted.how >= 0 and seq not in self.board, f"step {seq} is delivered before it is filled")
                self.held[seq] = slab
                self.deliver(posted, posted.how)
            case DeliverLost(seq, slab, worker):
                self.law(self.setting.rule is not OneReader, "a stream has no holes")
                posted = self.receive(seq, slab)
                lost = posted.withdrawn or posted.deaths > self.setting.retries
                self.law(lost and posted.how < 0, f"step {seq} is not lost")
                self.law(self.has_died(worker), "it died")
                self.deliver(posted, LOST)
            case Finish():
                self.finish()
            case GiveUp(seat, worker):
                self.law(self.is_given_up(seat), f"seat {seat} is given up too early")
                self.law(self.has_died(worker), "it died")
                self.given_up |= {seat}
            case Break(seq, worker, unknown):
                self.law(self.has_died(worker), "it died")
                self.break_stream(seq, unknown)
            case Fail(worker):
                self.law(type(cause) is WorkerLost and self.has_died(worker), "it died")
                self.failed = True
            case Cool(slab):
                self.law(slab not in self.taken(), f"slab {slab} is cooled while it is in use")
                self.cold |= {slab}

    def hire(self, worker: int, seat: int, cause: Event) -> Iterator[Event]:
        self.law(worker > self.last_worker, f"worker id {worker} is used twice")
        self.law(all(w.seat != seat for w in self.workers.values()), f"seat {seat} is taken")
        self.law(0 <= seat < self.size + self.leaving, f"there is no seat {seat}")
        self.law(self.setting.rule is not Assigned or seat > self.last_worker, "nobody is replaced")
        asked = isinstance(cause, Resized) and cause.retained and self.retiring
        self.law(not asked, "a worker is hired, and one that could have stayed is asked to leave")
        anew = not isinstance(cause, WorkerLost | WorkerLeft)
        if anew or (isinstance(cause, WorkerLeft) and not self.workers):
            self.forgive()
        deaths = self.idle_losses.get(seat, 0)
        self.law(not self.is_given_up(seat), f"a hire for seat {seat} after {deaths} idle deaths")
        if self.setting.rule is OneReader and self.board:
            # The new reader may claim at once: what it claims must be where the stream goes on.
            posted = self.tasks[self.board[0]]
            self.law(posted.task.step == 0 or posted.position >= 0, "a new reader does not know where to go on")
        self.given_up -= {seat}
        self.last_worker = worker
        self.workers[worker] = Worker(seat, alive=not self.refusing)
        if self.refusing:
            self.refusing -= 1
            run = self.course.run
            resumable = run is not None and self.known[0] == run.number
            yield WorkerLost(worker, None, resumable=resumable)

    def has_died(self, worker: int) -> bool:
        return 0 <= worker <= self.last_worker and worker not in self.workers

    def use(self, slab: int) -> None:
        taken = self.taken()
        self.law(slab not in taken, f"slab {slab} is posted while it is in use")
        self.law(slab in self.slabs or taken >= self.slabs, "a new slab while one is free")
        self.slabs |= {slab}
        self.cold -= {slab}

    def draw(self, command: Post) -> Iterator[Event]:
        seq, slab = command[:2]
        course = self.own()
        task, ends = course.draw(seq, self.setting.bundle)
        if ends:
            yield Bounded(seq)
        if task is not None and self.cannot_be_sent(task):
            if course.refuse(seq, Ended(task.step)):
                yield Bounded(seq)
            task = None
        if task is None:
            self.dry = True
            self.untold[seq] = slab
            yield Exhausted(seq)
            return
        self.law(task.seq == seq, f"the task of {task.seq} is posted as {seq}")
        if self.setting.ends == "known" and task.step == 0:
            assert course.run is not None
            if task.run == course.run.number:
                yield Bounded(seq + self.setting.runs[self.run])
            else:
                self.first_ahead = seq
        self.tasks[seq] = Posted(slab, task, seat=command.seat, position=self.position_for(command, task))
        if self.setting.raising == (task.run // PER_RUN, task.step):
            self.tasks[seq] = self.tasks[seq]._replace(how=self.version)
            yield StepFilled(seq, CALLER)
        else:
            self.board = (*self.board, seq)

    def cannot_be_sent(self, task: Task) -> bool:
        run, step, changes = self.setting.unsendable
        there = task.run // PER_RUN == run and 0 <= step - task.step < task.steps
        return there and self.version >= changes

    def position_for(self, command: Post, task: Task) -> int:
        if not command.resume:
            return -1
        self.law(self.known == (task.run, task.step), f"step {task.step} cannot be read from {self.known}")
        return task.step

    def post_again(self, command: Post) -> None:
        seq, slab = command[:2]
        posted = self.tasks[seq]
        self.law(posted.wanted and self.course.find(seq) == posted.task, f"step {seq} is not wanted any more")
        anew = posted.slab == NO_SLAB
        if anew:
            self.use(slab)
        else:
            self.law(slab == posted.slab, "a lost step keeps its slab")
        reads = self.setting.rule is OneReader
        self.law(reads or not posted.withdrawn, f"step {seq} is posted again, and there is no crew")
        self.law(posted.deaths <= self.setting.retries, f"attempt {posted.deaths} is one too many")
        idle = seq not in self.board and not self.in_hand(seq) and posted.how < 0
        self.law(idle and (anew or posted.deaths > 0 or posted.withdrawn), f"{seq} is posted twice")
        position = self.position_for(command, posted.task)
        self.tasks[seq] = posted._replace(slab=slab, withdrawn=False, position=position)
        self.board = tuple(sorted((*self.board, seq)))

    def rescind(self, seq: int) -> None:
        self.board = tuple(s for s in self.board if s != seq)
        if not self.tasks[seq].wanted:
            self.untold[seq] = self.tasks.pop(seq).slab
            return
        alone = not self.workers if self.setting.rule is OneReader else self.nobody_is_left()
        self.law(alone, f"step {seq} is given up, and could be done")
        self.tasks[seq] = self.tasks[seq]._replace(withdrawn=True)

    def receive(self, seq: int, slab: int) -> Posted:
        posted = self.tasks.pop(seq, None)
        self.law(posted is not None and posted.wanted, f"step {seq} is delivered twice or was cancelled")
        assert posted is not None
        self.law(self.mode == ASKED, "a batch for nobody")
        self.law(posted.slab == slab, f"step {seq} is in slab {posted.slab}, not {slab}")
        return posted

    def deliver(self, posted: Posted, how: int) -> None:
        task = posted.task
        which = task.run // PER_RUN
        outcomes = [Made(task.seq, which, task.step + i, how) for i in range(task.steps)]
        if self.setting.lengths:
            outcomes = [Made(task.seq, which, posted.seat, how)]
        self.own().deliver(task.seq, outcomes)
        self.hand_out()

    def hand_out(self) -> None:
        """The consumer gets a step."""
        task, made = self.own().ready.popleft()
        assert isinstance(made, Made)
        self.law(made.which == self.run, f"step {made.step} of run {made.which} is delivered in run {self.run}")
        if self.setting.lengths:
            got: Any = made.step, made.how
            turns = self.in_turn()
            if self.setting.in_order:
                self.law(turns[len(self.got) :][:1] == [got], f"{got} is delivered after {self.got}")
            self.law(got in turns, f"{got} is not in the streams")
        else:
            got = made.step
            self.law(made.step == task.step, f"{made.step} is handed out as {task.step}")
            if made.how != LOST:
                right = made.step if self.setting.rule is OneReader else self.version
                self.law(made.how == right, f"step {got} was made of {made.how}, not {right}")
            if self.setting.in_order:
                self.law(got == len(self.got), f"{got} is delivered after {self.got}")
        self.law(got not in self.got, f"{got} is delivered twice")
        self.got = (*self.got, got)
        self.mode = IN

    def in_turn(self) -> list[tuple[int, int]]:
        """What the streams of the seats give, taken in turns."""
        lengths, workers = self.setting.lengths, self.setting.workers
        seats = [(self.setting.seat + i) % workers for i in range(workers)]
        return [(seat, n) for n in range(max(lengths)) for seat in seats if n < lengths[seat]]

    def finish(self) -> None:
        self.law(self.mode == ASKED, "an end for nobody")
        run = self.own().run
        assert run is not None
        steps = set(range(self.setting.runs[self.run]))
        if self.setting.lengths:
            right = {*self.in_turn()} == {*self.got}
        elif run.error is not None:
            assert isinstance(run.error, Ended)
            right = set(range(run.error.step)) == {*self.got}
        elif self.setting.ends == "stream":
            # Nobody can know that a lost step of a stream lay beyond its end: it is reported.
            right = steps <= {*self.got}
        else:
            right = steps == {*self.got}
        self.law(right, f"the end after {self.got}")
        if run.error is not None:
            run.error, run.over = None, True
        self.mode = OUT

    def break_stream(self, seq: int, unknown: bool) -> None:
        course = self.own()
        assert course.run is not None
        task = course.find(seq)
        self.law(task is not None or seq > self.last_seq, f"the stream breaks at {seq}, which is done")
        step = course.run.next if task is None else task.step
        deaths = self.tasks[seq].deaths if seq in self.tasks else 0
        if unknown:
            where = self.known == (course.run.number, step)
            self.law(step > 0 and not where, f"the stream breaks before {step}, and could be continued")
        else:
            hopeless = deaths > self.setting.retries or self.nobody_is_left()
            self.law(hopeless, f"the stream breaks before {step} after {deaths} deaths")
        course.forget_from(seq)
        course.run.fail(Ended(step))
        self.dry = True
        self.unwant([later for later in self.tasks if later >= seq])

    def taken(self) -> set[int]:
        """The slabs that nobody may touch."""
        tasks = {posted.slab for posted in self.tasks.values()}
        return tasks | {*self.held.values(), *self.untold.values()}

    def in_hand(self, seq: int) -> bool:
        return any(w.claim == seq for w in self.workers.values())

    # Laws

    def law(self, holds: bool, text: str) -> None:
        if not holds:
            raise Breach(text, self.events())

    def laws_of_rest(self) -> None:
        """What must hold wherever the world may stop for a while."""
        if self.failed:
            return
        if self.mode == ASKED:
            self.law(any(True for _ in self.progress()), "the consumer waits and nothing can happen")
            if self.workers and not self.dry and self.setting.rule is not Assigned:
                waiting = sum(posted.wanted for posted in self.tasks.values())
                self.law(waiting >= self.window, f"the consumer waits, and only {waiting} steps are posted")
        if self.workers:
            there, wanted = len(self.workers) + len(self.given_up), self.size + self.leaving
            self.law(there == wanted, f"{there} seats are taken or given up, and {wanted} should be")
        elif self.run >= 0:
            self.law(self.nobody_is_left(), "the crew is empty, and was not given up")
        warm = len(self.slabs - self.taken() - self.cold)
        self.law(warm <= max(0, self.spare), f"{warm} free slabs keep their pages")
        if self.setting.rule is Assigned:
            undone = any(not posted.wanted for posted in self.tasks.values())
            self.law(self.scheduler.must_settle == undone, "steps that were abandoned must be waited for")

    def laws_of_the_end(self) -> None:
        """What must hold where nothing can happen any more."""
        if self.failed:
            return
        self.law(self.mode != ASKED, "the consumer waits for ever")
        self.law(not self.held, "a slab is still lent")
        unread = [seq for seq, posted in self.tasks.items() if not posted.wanted]
        self.law(not unread, f"the cancelled steps {unread} are still open")
        self.law(not self.workers or not self.leaving, "a worker was asked to leave, and has not left")

    def laws_of_closing(self) -> None:
        """The world may be closed here; then nothing is commanded, whatever trickles in."""
        if self.failed:
            return
        closed = self.copy()
        closed.tell(Closed())
        closed.stopped = True
        closed.tell(Closed())
        for name, argument in self.actions():
            if name in {"hear", "notice", "give_back", "cancel", "ask", "open", "change", "resize"}:
                closed.copy().act((name, argument))

    def events(self) -> list[Event]:
        found = []
        node = self.history
        while node is not None:
            event, node = node
            found.append(event)
        return found[::-1]


def new_scheduler(setting: Setting, make: type[Scheduler]) -> Scheduler:
    options: dict[str, Any] = {"window": setting.window, "in_order": setting.in_order}
    if issubclass(make, Assigned):
        options["once"] = setting.once
    else:
        options["retries"] = setting.retries
    if not issubclass(make, OneReader):
        options["workers"] = setting.workers
    if not issubclass(make, Assigned | OneReader):
        options.update(spare=setting.spare, spacing=setting.bundle)
    return make(**options)


def copy_of(part: Any) -> Any:
    """A part that shares nothing changeable with this one (steps and tasks are immutable)."""
    new = object.__new__(type(part))
    state = new.__dict__
    state.update(part.__dict__)
    for name, value in part.__dict__.items():
        if type(value) in COPIED:
            state[name] = value.copy()
        elif name in PARTS:
            state[name] = copy_of(value)
    return new


COPIED = frozenset({dict, OrderedDict, deque, list, set, Run})
PARTS = frozenset({"_crew", "_slabs"})


def state_of(part: Any) -> str:
    """All that a part knows, but for the log."""
    known = {
        k: state_of(v) if isinstance(v, Crew | SlabStates | Run) else repr(v)
        for k, v in vars(part).items()
        if k not in ("_log", "setting")
    }
    return repr(known)


class Walk(NamedTuple):
    states: int
    transitions: int
    ends: int


def explore(
    setting: Setting,
    bug: type | None = None,
    checked: bool = True,
    closing: bool = False,
    full: bool = False,
    limit: int = 1_000_000,
) -> Walk:
    """Take every action in every state, breadth first; raise the first (shortest) breach."""
    gc.disable()  # nothing here is cyclic, and a million live tuples make every collection slow
    try:
        return _explore(World(setting, bug, checked=False), checked, closing, full, limit)
    finally:
        gc.enable()


def _explore(start: World, checked: bool, closing: bool, full: bool, limit: int) -> Walk:
    key_of = World.full_key if full else World.key
    seen = {key_of(start)}
    waiting = deque([start])
    transitions = ends = 0
    while waiting:
        world = waiting.popleft()
        actions = list(world.actions())
        world.laws_of_rest()
        if checked:  # once for each state: after each event it would take a quarter of the time
            world.check()
        if closing:
            world.laws_of_closing()
        if not actions:
            world.laws_of_the_end()
            ends += 1
        for action in actions:
            new = world.copy()
            new.act(action)
            transitions += 1
            key = key_of(new)
            if key not in seen:
                seen.add(key)
                waiting.append(new)
        assert len(seen) < limit, f"this world has more than {limit} states: {start.setting}"
    return Walk(len(seen), transitions, ends)
