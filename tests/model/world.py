"""The outside of the scheduler, small enough to be walked through completely.

Workers claim, fill, report and die; a board holds open tasks; a consumer opens, asks, keeps, returns,
leaves and cancels; an engine draws steps from a course and carries out commands. Each move of each of them
is one action, `explore` takes every action in every state, and every law is stated from the outside: what
the world sees, never what the scheduler says of itself.

A breach carries the shortest list of events that leads to it, ready to be kept as a test that replays it
(tests/unit/test_scheduler.py).
"""

from __future__ import annotations

import gc
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from penstock._schedule.scheduler import Scheduler
from penstock.errors import InternalError


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
    # How the end of a run is learnt. "known": said when its first step is drawn. "found": at the draw that
    # finds nothing. "stream": a worker finds the stream dry, and only then anybody knows.
    course: str = "known"
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


class Task(NamedTuple):
    """A step as the engine knows it, from Post until nobody can write into its slab any more."""

    slab: int
    run: int
    place: int  # in its run
    deaths: int = 0
    wanted: bool = True  # its run has not been cancelled
    # It was taken off the board when the last of a crew had died that is not replaced.
    doomed: bool = False
    steps: int = 1  # places, from `place` on


NO_SLAB = -1  # of a step that was drawn with others, until it is posted by itself


class Worker(NamedTuple):
    seat: int
    alive: bool = True
    claim: int | None = None
    pipe: tuple[type[StepFilled] | type[StepEnded] | int, ...] = ()  # kind, seq, kind, seq...


Action = tuple[str, int]
OUT, IN, ASKED = range(3)  # the consumer: between runs, in one, waiting in one

# What `World.key` takes in of the scheduler.
IN_KEY = {
    "_phase", "_ask_is_open", "_bound", "_drained", "_idle_losses", "_next_seq", "_steps", "_abandoned",
    "_arrived", "_warm", "_cold", "_crew",
}  # fmt: skip
# What `World.key` leaves out of the scheduler: settings, the log, and ids, which are only names. (A slab is
# known by who has it, and the world has checked by then that both agree on that.)
NOT_IN_KEY = {
    "_window", "_workers", "_retries", "_in_order", "_spare", "_room", "_recent", "_slabs", "_next_slab",
    "_next_worker",
}  # fmt: skip


class World:
    def __init__(self, setting: Setting, make: type[Scheduler] = Scheduler, checked: bool = True) -> None:
        self.setting = setting
        self.checked = checked
        self.scheduler = make(
            window=setting.window,
            workers=setting.workers,
            retries=setting.retries,
            in_order=setting.in_order,
            spare=setting.spare,
            room=setting.bundle,
        )
        self.history: Any = None  # the events so far, as a linked list: copies share it
        self.stopped = False
        # the engine
        self.tasks: dict[int, Task] = {}
        self.board: tuple[int, ...] = ()  # oldest first
        self.undrawn: dict[int, int] = {}  # seq -> slab, until its Exhausted is told
        self.last_seq = -1
        self.drawn = (0, 0)  # the next draw: run, place
        self.first_seq: dict[int, int] = {}  # run -> the seq of its first step
        self.slabs: frozenset[int] = frozenset()
        # the crew
        self.workers: dict[int, Worker] = {}
        self.last_worker = -1
        self.idle_losses = dict.fromkeys(range(setting.workers), 0)  # by seat, since a step came from it
        self.given_up: frozenset[int] = frozenset()
        self.crashes = setting.crashes
        self.refusals = setting.refusals
        self.refusing = 0  # of the next that are hired
        # the consumer
        self.mode = OUT
        self.run = -1
        self.got: tuple[int, ...] = ()  # places delivered in this run
        self.held: dict[int, int] = {}  # seq -> slab
        self.cancels = setting.cancels

    def copy(self) -> World:
        """A world of its own, but for the scheduler, which `tell` copies before it tells it anything."""
        new: World = object.__new__(World)
        new.__dict__.update(self.__dict__)
        new.tasks = self.tasks.copy()  # (`undrawn` is empty between actions)
        new.first_seq = self.first_seq.copy()
        new.workers = self.workers.copy()
        new.idle_losses = self.idle_losses.copy()
        new.held = self.held.copy()
        return new

    def key(self) -> tuple[object, ...]:
        """Equal for worlds with the same future, up to the names of slabs and workers."""
        s: Any = self.scheduler
        living = self.workers.values()
        crew = {w.seat: (w.alive, -1 if w.claim is None else w.claim, str(w.pipe)) for w in living}
        return (
            s._phase.value, s._ask_is_open, s._bound, s._drained, s._next_seq,
            tuple([(seq, step.state.value, step.attempt) for seq, step in s._steps.items()]),
            tuple(s._abandoned), tuple(s._arrived), len(s._warm), len(s._cold), len(s._crew),
            tuple([(seq, t.run, t.place, t.deaths, t.wanted, t.doomed, t.steps) for seq, t in self.tasks.items()]),
            self.board, self.drawn, self.crashes, self.refusals, self.refusing,
            self.mode, self.run,
            tuple(sorted([(losses, s._idle_losses.get(seat, 0), seat in self.given_up, crew.get(seat, ()))
                          for seat, losses in self.idle_losses.items()])),
            len(self.got) if self.setting.in_order else tuple(sorted(self.got)), tuple(sorted(self.held)),
            self.cancels, len(self.slabs), tuple(self.first_seq.items()),
        )  # fmt: skip

    def full_key(self) -> tuple[object, ...]:
        """Equal only for worlds that are alike down to the names of slabs and workers."""
        mine = {k: v for k, v in vars(self).items() if k not in {"setting", "scheduler", "history"}}
        return repr(mine), repr({k: v for k, v in vars(self.scheduler).items() if k != "_recent"})

    # Actions

    def actions(self) -> Iterator[Action]:
        """Everything that can happen next. Each uses something up, so no history is endless."""
        yield from self.progress()
        if self.crashes:
            for worker, w in self.workers.items():
                if w.alive:
                    yield ("die", worker)
        if self.refusals:
            yield ("refuse", 0)
        for seq in self.held:
            yield ("give_back", seq)
        if self.mode == OUT and self.run + 1 < len(self.setting.runs):
            yield ("open", 0)
        if self.mode == IN:
            if len(self.held) <= self.setting.hold:
                yield ("ask", 0)
            if self.scheduler.run_is_over and self.run + 1 < len(self.setting.runs):
                yield ("open", 0)  # a consumer that knows the length need not ask for the end
        if self.cancels and self.run >= 0:
            yield ("cancel", 0)

    def progress(self) -> Iterator[Action]:
        """What happens by itself in the end, whatever the consumer does."""
        for worker, w in self.workers.items():
            if w.pipe:
                yield ("hear", worker)
            if not w.alive:
                if not w.pipe:
                    yield ("notice", worker)
            elif w.claim is not None:
                yield ("fill", worker)
            elif self.board and len(w.pipe) <= 2 * self.setting.unread:
                yield ("claim", worker)

    def act(self, action: Action) -> None:
        name, argument = action
        do: Callable[[int], None] = getattr(self, name)
        do(argument)

    def claim(self, worker: int) -> None:
        seq, *rest = self.board
        self.board = tuple(rest)
        slab = self.tasks[seq].slab
        self.law(self.tasks[seq].wanted, f"the cancelled step {seq} is left on the board")
        self.law(slab not in self.held.values(), f"slab {slab} is written into while lent")
        for other in self.workers.values():
            busy = other.alive and other.claim is not None and self.tasks[other.claim].slab == slab
            self.law(not busy, f"slab {slab} is written by two")
        self.workers[worker] = self.workers[worker]._replace(claim=seq)

    def fill(self, worker: int) -> None:
        w = self.workers[worker]
        assert w.claim is not None
        task = self.tasks[w.claim]
        kind = StepFilled if task.place < self.setting.runs[task.run] else StepEnded
        self.workers[worker] = w._replace(claim=None, pipe=(*w.pipe, kind, w.claim))

    def die(self, worker: int) -> None:
        self.crashes -= 1
        self.workers[worker] = self.workers[worker]._replace(alive=False)

    def refuse(self, _: int) -> None:
        self.refusals -= 1
        self.refusing += 1

    def hear(self, worker: int) -> None:
        w = self.workers[worker]
        kind: Any
        seq: Any
        kind, seq, *rest = w.pipe
        self.workers[worker] = w._replace(pipe=tuple(rest))
        self.idle_losses[w.seat] = 0
        if kind is StepEnded and self.tasks[seq].wanted:
            self.unwant(s for s, t in self.tasks.items() if t.run == self.tasks[seq].run and s > seq)
        if kind is StepEnded or not self.tasks[seq].wanted:
            del self.tasks[seq]
        self.tell(kind(seq, worker))

    def notice(self, worker: int) -> None:
        w = self.workers[worker]
        steps, at = 1, 0
        if w.claim is None:
            pass
        elif not self.tasks[w.claim].wanted:
            del self.tasks[w.claim]
        else:
            task = self.tasks[w.claim]
            steps = task.steps
            at = self.crashes % steps
            for i in range(steps) if steps > 1 else ():
                slab = task.slab if i == at else NO_SLAB
                self.tasks[w.claim + i] = Task(slab, task.run, task.place + i)
            guilty = self.tasks[w.claim + at]
            self.tasks[w.claim + at] = guilty._replace(deaths=task.deaths + 1)
            self.tasks = dict(sorted(self.tasks.items()))
        self.tell(WorkerLost(worker, w.claim, steps, at))

    def bury(self, worker: int) -> None:
        w = self.workers.pop(worker)
        self.idle_losses[w.seat] += w.claim is None

    def give_back(self, seq: int) -> None:
        self.tell(SlabReturned(self.held.pop(seq)))

    def open(self, _: int) -> None:
        self.run += 1
        self.mode = IN
        self.got = ()
        self.forgive()
        if self.drawn[0] < self.run:
            self.drawn = (self.run, 0)
        self.first_seq = {run: seq for run, seq in self.first_seq.items() if run >= self.run}
        told: list[Event] = [Opened()]
        if self.setting.course == "known" and self.run in self.first_seq:
            told.append(Bounded(self.first_seq[self.run] + self.setting.runs[self.run]))
        self.tell(*told)

    def forgive(self) -> None:
        self.idle_losses = dict.fromkeys(self.idle_losses, 0)

    def is_given_up(self, seat: int) -> bool:
        """Whether so many have died there that nobody is hired for it."""
        return self.idle_losses[seat] > self.setting.retries + 1

    def ask(self, _: int) -> None:
        self.mode = ASKED
        self.tell(Asked())

    def cancel(self, _: int) -> None:
        self.cancels -= 1
        self.mode = OUT
        self.drawn = (self.run + 1, 0)
        self.first_seq = {}
        self.unwant(list(self.tasks))
        self.tell(Cancelled())

    def unwant(self, seqs: Iterable[int]) -> None:
        """What arrives for these is nobody's any more. A result that has been heard of has no writer."""
        busy: set[object] = {*self.board}
        for w in self.workers.values():
            busy |= {w.claim, *w.pipe}
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
            if type(event) is Exhausted:
                del self.undrawn[event.seq]
            if type(event) is WorkerLost:
                self.bury(event.worker)
            try:
                commands = self.scheduler.handle(event)
                if self.checked:
                    self.scheduler.check()
            except (AssertionError, InternalError) as error:
                raise Breach(f"{type(error).__name__}: {error}", self.events()) from error
            for command in commands:
                events.extend(self.carry_out(command, event))

    def carry_out(self, command: Command, cause: Event) -> Iterator[Event]:
        self.law(not self.stopped, "nothing is commanded after the end")
        match command:
            case Hire(worker, seat):
                self.law(worker > self.last_worker, f"worker id {worker} is used twice")
                self.law(all(w.seat != seat for w in self.workers.values()), f"seat {seat} is taken")
                self.law(0 <= seat < self.setting.workers, f"there is no seat {seat}")
                if not isinstance(cause, WorkerLost):
                    self.forgive()
                deaths = self.idle_losses[seat]
                self.law(not self.is_given_up(seat), f"a hire for seat {seat} after {deaths} idle deaths")
                self.given_up -= {seat}
                self.last_worker = worker
                self.workers[worker] = Worker(seat, alive=not self.refusing)
                if self.refusing:
                    self.refusing -= 1
                    yield WorkerLost(worker, None)
            case Post(seq, slab, attempt) if seq in self.tasks:
                task = self.tasks[seq]
                kept = slab not in self.taken() if task.slab == NO_SLAB else slab == task.slab
                self.law(task.wanted and kept, "a lost step keeps its slab")
                self.law(not task.doomed, f"step {seq} is posted again, and there is no crew")
                self.law(attempt == task.deaths, f"attempt {attempt} after {task.deaths} deaths")
                self.law(attempt <= self.setting.retries, f"attempt {attempt} is one too many")
                again = attempt == 0 and task.slab != NO_SLAB
                self.law(
                    not again and seq not in self.board and not self.in_hand(seq), f"{seq} is posted twice"
                )
                self.tasks[seq] = task._replace(slab=slab)
                self.slabs |= {slab}
                self.board = tuple(sorted((*self.board, seq)))
            case Post(seq, slab, _):
                self.law(seq > self.last_seq, f"seq {seq} is used twice")
                self.last_seq = seq
                taken = self.taken()
                self.law(slab not in taken, f"slab {slab} is posted while it is in use")
                self.law(slab in self.slabs or taken >= self.slabs, "a new slab while one is free")
                self.slabs |= {slab}
                yield from self.draw(seq, slab)
                waiting = len({seq // self.setting.bundle for seq, task in self.tasks.items() if task.wanted})
                self.law(waiting <= self.setting.window, f"{waiting} steps are undelivered")
            case Rescind(seq):
                if seq in self.board:
                    self.board = tuple(s for s in self.board if s != seq)
                    if not self.tasks[seq].wanted:
                        del self.tasks[seq]
                    else:
                        given_up = all(map(self.is_given_up, self.idle_losses))
                        self.law(not self.workers and given_up, f"step {seq} is given up, and could be done")
                        self.tasks[seq] = self.tasks[seq]._replace(doomed=True)
                    yield Rescinded(seq)
            case Deliver(seq, slab):
                task = self.receive(seq, slab)
                busy = self.in_hand(seq) or any(seq in w.pipe for w in self.workers.values())
                self.law(seq not in self.board and not busy, f"step {seq} is delivered before it is filled")
                self.held[seq] = slab
            case DeliverLost(seq, slab, worker):
                task = self.receive(seq, slab)
                self.law(task.doomed or task.deaths > self.setting.retries, f"step {seq} is not lost")
                self.law(0 <= worker <= self.last_worker and worker not in self.workers, "it died")
            case Finish():
                self.law(self.mode == ASKED, "an end for nobody")
                steps = set(range(self.setting.runs[self.run]))
                # Nobody can know that a lost step of a stream lay beyond its end: it is reported.
                right = steps <= {*self.got} if self.setting.course == "stream" else steps == {*self.got}
                self.law(right, f"the end after {self.got}")
                self.mode = OUT
            case GiveUp(seat, worker):
                self.law(self.is_given_up(seat), f"seat {seat} is given up too early")
                self.law(0 <= worker <= self.last_worker and worker not in self.workers, "it died")
                self.given_up |= {seat}
            case Cool(slab):
                taken = self.taken()
                self.law(slab not in taken, f"slab {slab} is cooled while it is in use")
            case Stop():
                self.stopped = True

    def draw(self, seq: int, slab: int) -> Iterator[Event]:
        setting = self.setting
        run, index = self.drawn
        if setting.course != "stream" and index >= setting.runs[run]:
            if run == self.run:
                yield Bounded(seq)
            ahead = setting.ahead and run == self.run and run + 1 < len(setting.runs)
            if not ahead or not setting.runs[run + 1]:
                self.undrawn[seq] = slab
                yield Exhausted(seq)
                return
            run, index = run + 1, 0
        if index == 0:
            self.first_seq[run] = seq
            if setting.course == "known" and run == self.run:
                yield Bounded(seq + setting.runs[run])
        steps = 1 if setting.course == "stream" else min(setting.bundle, setting.runs[run] - index)
        self.drawn = (run, index + steps)
        self.tasks[seq] = Task(slab, run, index, steps=steps)
        self.board = (*self.board, seq)

    def receive(self, seq: int, slab: int) -> Task:
        task = self.tasks.pop(seq, None)
        self.law(task is not None and task.wanted, f"step {seq} is delivered twice or was cancelled")
        assert task is not None
        self.law(self.mode == ASKED, "a batch for nobody")
        self.law(task.slab == slab, f"step {seq} is in slab {task.slab}, not {slab}")
        self.law(task.run == self.run, f"step {task.place} of run {task.run} is delivered in run {self.run}")
        if self.setting.in_order:
            self.law(task.place == len(self.got), f"{task.place} is delivered after {self.got}")
        places = range(task.place, task.place + task.steps)
        self.law(not {*places} & {*self.got}, f"{task.place} is delivered twice")
        self.got = (*self.got, *places)
        self.mode = IN
        return task

    def taken(self) -> set[int]:
        """The slabs that nobody may touch."""
        tasks = {task.slab for task in self.tasks.values()}
        return tasks | {*self.held.values(), *self.undrawn.values()}

    def in_hand(self, seq: int) -> bool:
        return any(w.claim == seq for w in self.workers.values())

    # Laws

    def law(self, holds: bool, text: str) -> None:
        if not holds:
            raise Breach(text, self.events())

    def laws_of_rest(self) -> None:
        """What must hold wherever the world may stop for a while."""
        if self.mode == ASKED:
            self.law(any(True for _ in self.progress()), "the consumer waits and nothing can happen")
        if self.workers:
            told = {w.seat for w in self.workers.values()} | self.given_up
            self.law(told == set(range(self.setting.workers)), "a seat is empty, and nobody was told")

    def laws_of_the_end(self) -> None:
        """What must hold where nothing can happen any more."""
        self.law(self.mode != ASKED, "the consumer waits for ever")
        self.law(not self.held, "a slab is still lent")
        unread = [seq for seq, task in self.tasks.items() if not task.wanted]
        self.law(not unread, f"the cancelled steps {unread} are still open")

    def laws_of_closing(self) -> None:
        """The world may be closed here; then nothing is commanded, whatever trickles in."""
        closed = self.copy()
        closed.tell(Closed())
        closed.law(closed.stopped, "closing stops")
        closed.tell(Closed())
        for name, argument in self.actions():
            if name in {"hear", "notice", "give_back", "cancel", "ask", "open"}:
                closed.copy().act((name, argument))

    def events(self) -> list[Event]:
        found = []
        node = self.history
        while node is not None:
            event, node = node
            found.append(event)
        return found[::-1]


def copy_of(scheduler: Scheduler) -> Scheduler:
    """A scheduler that shares nothing changeable with this one (its steps are immutable)."""
    new: Scheduler = object.__new__(type(scheduler))
    state = new.__dict__
    state.update(scheduler.__dict__)
    for name, value in state.items():
        if type(value) in (dict, OrderedDict, deque, list):
            state[name] = value.copy()
    return new


class Walk(NamedTuple):
    states: int
    transitions: int
    ends: int


def explore(
    setting: Setting,
    make: type[Scheduler] = Scheduler,
    checked: bool = True,
    closing: bool = False,
    full: bool = False,
    limit: int = 1_000_000,
) -> Walk:
    """Take every action in every state, breadth first; raise the first (shortest) breach."""
    gc.disable()  # nothing here is cyclic, and a million live tuples make every collection slow
    try:
        return _explore(World(setting, make, checked), closing, full, limit)
    finally:
        gc.enable()


def _explore(start: World, closing: bool, full: bool, limit: int) -> Walk:
    key_of = World.full_key if full else World.key
    seen = {key_of(start)}
    waiting = deque([start])
    transitions = ends = 0
    while waiting:
        world = waiting.popleft()
        actions = list(world.actions())
        world.laws_of_rest()
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
