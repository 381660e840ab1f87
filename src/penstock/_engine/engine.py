"""The engine connects the scheduler, which decides what to do, with a backend, which runs the workers.

The engine draws steps from the course, posts tasks, receives outcomes and hands out batches. All this happens inside
the caller's `next()`: the engine has no thread of its own, and workers find their next task by themselves. A task in
flight is recorded in four tables, under its number (seq):

    Scheduler   Is the task posted, filled or lost, and in which slab? Knows neither samples nor outcomes.
    Course      Which steps of which run is the task for, and what is the outcome? Knows neither workers nor slabs.
    backend     Which slot of the board has the task? Knows neither the order nor the consumer.
    the board   The task itself, in shared memory. The only table that workers see.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from penstock._engine.lifetime import EngineLifetime
from penstock._engine.pace import Pace
from penstock._engine.reports import broken_error, hung, irreplaceable, lost_error, timeout_error, vacancy
from penstock._engine.result import StepResult
from penstock._engine.turn import NEXT
from penstock._feed.base import Run
from penstock._measure.cached import warn_of
from penstock._measure.gauges import Gauges
from penstock._measure.meter import Answer, Meter, Stopwatch, clock
from penstock._memory.slabs import Leases
from penstock._resume.reading import known, refusal
from penstock._schedule import commands, events
from penstock._schedule.course import Course
from penstock._schedule.events import Event
from penstock._schedule.scheduler import Scheduler
from penstock._schedule.states import method_for
from penstock._system.exit import rest_if_over
from penstock._system.interrupts import interrupts_deferred
from penstock._system.warnings import warn_caller
from penstock._wire.failure import caught, described
from penstock._wire.task import Raised, new, shorten
from penstock._work.job import Job
from penstock.backends import Backend, Bundle, Ended, Failed, Filled, Left, Lost, Outcome
from penstock.errors import InternalError, LoaderTimeout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LOOK_EVERY = 200_000  # ns between two checks for dead workers: each is a system call
_LOOK_FOR_OUTAGES = 2.5  # after this many seconds without an outcome, the engine looks for outages


class ReceivedEarly(NamedTuple):
    """Replaces the content of an outcome whose batch was converted before the caller asked for the batch."""

    batch: Any


class Engine(EngineLifetime):
    """A crew of workers, and the memory for their batches. The engine serves one run at a time.

    With `look_ahead`, steps of the next run may be prefetched. With `bundles`, several small steps may share a task.
    A worker that spends more than `hang` seconds on one step is killed.

    `receive(batch, root)` converts each batch for the caller, where `root` is the root array of the batch's slab. Up
    to `early` finished batches are converted before the caller asks for them.
    """

    _finalizer: Any = bool  # for `__del__`, if an interrupt came before the constructor has set it

    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        job: Job,
        *,
        retries: int = 0,
        look_ahead: bool = False,
        bundles: bool = False,
        hang: float | None = None,
        receive: Callable[[Any, NDArray[np.uint8]], Any] | None = None,
        early: int = 0,
        meter: Meter | None = None,
    ) -> None:
        self.job = job  # for workers that are started later
        super().__init__(backend)
        self._looks = backend.shares_gauges
        self._scheduler = scheduler
        self._retries, self._hang = retries, hang
        self._receive, self._early = receive, early if receive else 0
        # A worker that has its own steps cannot be replaced: if one is dead, `next` raises, even if a batch is ready.
        self._watch: Callable[[], object] = getattr(backend, "has_dead", bool) if job.assigned else bool
        self._look_again = -math.inf  # when to look for workers that hang
        self._looked = 0  # when `_watch` was last called
        self._course = Course(look_ahead and backend.copies_dataset)
        self._pace = Pace(backend.most_steps if bundles else 1)
        self._leases = Leases()
        self.stopwatch = Stopwatch(meter or Meter())
        self._losses: dict[int, Lost] = {}  # dead worker -> its loss, as long as a command may name the worker
        self._empty: dict[int, Lost] = {}  # seat that was given up -> its last loss, until the caller is warned
        self._replaced: Lost | None = None  # the loss whose worker is being replaced now
        self._position: tuple[int, bytes] | None = None  # a run, and the last known position of its stream
        self._events: deque[Event] = deque()
        self._answer: StepResult | None = None
        self._begun = False
        self._end_is_told = False  # the consumer knows that the current run is over
        self.reference = weakref.ref(self)
        if self.stopwatch.meter.follow is not None:
            self.stopwatch.meter.follow(self)

    @property
    def ahead(self) -> Run | None:
        """The run that is being prefetched, or None."""
        return self._course.ahead

    # Figures. Any thread may ask for them.

    @property
    def gauges(self) -> Gauges:
        return self.backend.gauges

    @property
    def seats(self) -> list[int]:
        return self._scheduler.seats

    @property
    def ready(self) -> int:
        """The number of finished batches that have not been handed out yet.

        A bundle counts as one batch until its first step is handed out.
        """
        return len(self._course.ready) + len(self._course.filled)

    def open_answer(self) -> Answer | None:
        """Returns the measurements of the current task so far, or None if no task is being handed out."""
        return self.stopwatch.open_answer(len(self._course.ready))

    def memory(self) -> tuple[int, int, int]:
        """Returns three sizes in bytes: memory lent to the caller, memory kept for reuse, memory outside slabs."""
        # A reader may still refer to a closed engine.
        pooled, strays = (0, 0) if self.closed else self.backend.memory()
        lent = self._leases.nbytes
        return lent, max(0, pooled + strays - lent), strays

    # Called by a reader.

    def open(self, run: Run) -> None:
        """Begins a run. Drops prefetched steps of other runs."""
        if run is not self._course.ahead:
            self.cancel()
        if self.closed:
            raise self._turn.closed_error()
        self.held(partial(self._open, run))

    def _open(self, run: Run) -> None:
        self._course.open(run)
        self._end_is_told = False
        self.stopwatch.stop(0)
        if self._losses:
            blamed = self._scheduler.blamed & self._losses.keys()
            self._losses = {worker: self._losses[worker] for worker in blamed}
        self._carry_out(events.Opened(run.seat))
        self.backend.flush()
        self._begun = True

    def reopen(self, run: Run) -> None:
        """Continues the epoch with other keys, and drops prefetched batches. The caller must hold the engine."""
        if not self.closed:
            late: list[bool] = []
            self._cancel(None, late, None)
            self._open(run)

    def take_back(self) -> bool:
        """Takes the engine from an iterator that has handed out its last batch. Returns False if it cannot be taken.

        It cannot be taken, for example, while another thread uses it or the run has an error to raise.
        """
        taken: list[bool] = []
        self.held(partial(self._take_back, taken), wait=False)
        return bool(taken)

    def _take_back(self, taken: list[bool]) -> None:
        course, scheduler = self._course, self._scheduler
        run = course.run
        if run is None or run.error is not None or course.ready or self._answer is not None or self._end_is_told:
            return
        if scheduler.run_is_over and not scheduler.ask_is_open and not self.closed:
            self._end_is_told = True
            run.leave()  # that iterator is at its end from now on
            taken.append(True)

    def next(self, timeout: float | None, run: Run | None = None) -> StepResult:
        """Returns the next batch, an error, or the end of the run. Can be called again after a LoaderTimeout."""
        if not self._turn.is_ours():
            raise RuntimeError(
                "This iterator was made before this process was forked, and its workers serve only the process "
                "that started them. Call iter(loader) after the fork."
            )
        turn, hold = self._turn, (get_ident(), NEXT)
        try:
            turn.take(hold)
            if run is not None and run.is_left:
                return _END
            return self._next(timeout)
        finally:
            if turn.holder is hold:
                turn.holder = None
            if turn.waiting or turn.ended_by:
                self._let_go()
                rest_if_over()

    def _next(self, timeout: float | None) -> StepResult:
        if self._turn.ended_by:
            raise self._turn.closed_error()
        try:
            if self._course.ready:
                answer = self._unwrap()
                if self._early:
                    self._receive_early()
                return answer
            asked = self.stopwatch.ask()
            if asked - self._looked > _LOOK_EVERY:
                self._looked = asked
                while self._watch():
                    self._take_in(0)
            for slab in self._leases.collect():
                self._carry_out(events.SlabReturned(slab))
            # After a timeout the last ask is still open, or a change has answered it since.
            if self._answer is None and not self._scheduler.ask_is_open:
                self._carry_out(events.Asked())
            self.backend.flush()
            ready = self._answer is not None
            if not ready:
                self.backend.gauges.begin_wait(asked)
                self._wait(timeout)
                self.backend.gauges.end_wait(clock())
            self.stopwatch.answer(ready)
            if self._early and self._answer is not None:
                self._receive_early()
        except BaseException as error:
            self._end(self._turn.ended_by or f"was ended by {type(error).__name__}")
            raise
        if self._answer is None:
            raise self._timed_out(timeout)
        answer, self._answer = self._answer, None
        return answer

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else self.backend.clock() + timeout
        while self._answer is None and self._take_in_until(deadline):
            if self._turn.ended_by:  # another thread called close(), and this thread must stop the workers
                raise self._turn.closed_error()

    def cancel(self, timeout: float | None = None, run: Run | None = None) -> None:
        """Drops prefetched batches and unfinished steps.

        If each step belongs to a particular worker, waits until the workers are done with the dropped steps.
        """
        if not self.is_ours():
            return
        late: list[bool] = []
        if not self.held(partial(self._cancel, timeout, late, run), wait=False) and not _has_left(run):
            self.close()  # another thread is waiting for a batch
        if late:
            raise self._timed_out(timeout)  # the next call waits again

    def _cancel(self, timeout: float | None, late: list[bool], run: Run | None) -> None:
        # `take_back` may have taken the engine away from `run`.
        if self.closed or _has_left(run):  # checked only now: from here on no other thread can end or take the engine
            return
        self.stopwatch.stop(len(self._course.ready))
        self._course.cancel()
        self._answer = None
        self._carry_out(events.Cancelled())
        # Receive the tasks that were done before they could be withdrawn: the next run needs their slots.
        self._take_in(0)
        deadline = None if timeout is None else self.backend.clock() + timeout
        while self._scheduler.must_settle and not self._turn.ended_by:
            if not self._take_in_until(deadline):
                late.append(True)
                return

    # Changes while it runs.

    def update(self, change: bytes) -> None:
        """Sends a pickled change to the workers, and repeats the steps that have not been handed out yet.

        The caller must hold the engine.
        """
        if self.closed:
            return
        # This comes first, because a worker that is forked later already has the change, and must not make it again.
        self.backend.update(change)
        self.stopwatch.stop(len(self._course.ready))
        repeated = self._course.redo()
        self.stopwatch.meter.troubles.mine().repeated += repeated
        self._pace.forget()
        self._carry_out(events.Changed())
        self.backend.flush()

    def resize(self, workers: int, window: int) -> None:
        """Sets the number of workers, and how many tasks to prefetch (`window`). The caller must hold the engine."""
        if not self.closed:
            while self._take_in(0):  # so that workers that have left are not counted
                pass
            self.stopwatch.resized(workers)
            self._carry_out(events.Resized(workers, window, self.backend.retain()))
            self.backend.flush()

    def _end(self, by: str) -> None:
        with interrupts_deferred():
            self._turn.ended_by = by
            self._scheduler.handle(events.Closed())
            self.backend.close()
            self._leases.close()
            # Not earlier: if an error occurs before this line, the finalizer does the rest.
            self._finalizer.detach()
            self.stopwatch.stop(len(self._course.ready))
            self.stopwatch.end(self.backend.gauges)

    # Events in, commands out.

    def _carry_out(self, event: Event) -> None:
        while True:
            try:
                commands = self._scheduler.handle(event)
            except InternalError as bug:
                bug.add_note(f"Its task: {self._course.find(getattr(event, 'seq', None))}.")
                raise
            for command in commands:
                _PERFORM[type(command)](self, command)
            if not self._events:
                return
            event = self._events.popleft()

    def _take_in_until(self, deadline: float | None) -> bool:
        """Waits for results from the workers and handles them. Returns False if the deadline has passed."""
        left = None if deadline is None else deadline - self.backend.clock()
        if left is not None and left <= 0:
            return False
        if self._hang is not None:
            left = min(self._end_hung(self._hang), math.inf if left is None else left)
        if not self._looks:
            self._take_in(left)
        elif not self._take_in(_LOOK_FOR_OUTAGES if left is None else min(left, _LOOK_FOR_OUTAGES)):
            self._look_for_outages()
        return True

    def _look_for_outages(self) -> None:
        """Warns the caller, and informs `penstock top`, if a worker is waiting for a store that does not answer."""
        meter = self.stopwatch.meter
        outage = self.backend.gauges.outage(self.seats) or meter.scouts.outage
        if outage is not None and outage.is_long:
            meter.publish()
            warn_of(outage)

    def _end_hung(self, seconds: float) -> float:
        """Kills hung workers. Returns the number of seconds until the next check."""
        now = self.backend.clock()
        if now >= self._look_again:
            self._look_again = now + seconds / 4  # not sooner, because each check looks at every worker
            for one in self.backend.end_hung(seconds):
                warn_caller(hung(seconds, one, self._course.find(one.seq)), RuntimeWarning)
        return self._look_again - now

    def _timed_out(self, timeout: float | None) -> LoaderTimeout:
        task = self._course.find(self._scheduler.waits_for)
        return timeout_error(timeout, task, self.backend.doing(None if task is None else task.seq))

    def _take_in(self, timeout: float | None) -> list[Outcome]:
        for outcome in (outcomes := self.backend.poll(timeout)):
            self._take(outcome)
        self.backend.flush()
        return outcomes

    def _take(self, outcome: Outcome) -> None:
        if isinstance(outcome, (Filled, Failed, Bundle)):
            seq, worker = outcome[:2]
            task = self._course.fill(seq, outcome)
            if task is not None:  # otherwise it was cancelled
                if not isinstance(outcome, Bundle) and outcome.mark is not None:
                    self._position = task.run, outcome.mark
                if not isinstance(outcome, Failed):
                    steps = len(outcome.steps) if isinstance(outcome, Bundle) else 1
                    self._pace.learn(outcome.seconds, outcome.nbytes, steps, self._leases.lent)
            self._carry_out(events.StepFilled(seq, worker))
        elif isinstance(outcome, Ended):
            task = self._course.forget(outcome.seq)
            run = self._course.run
            if task is not None and outcome.mark is not None and run is not None and run.number == task.run:
                run.ended(outcome.worker, outcome.mark)
            self._carry_out(events.StepEnded(outcome.seq, outcome.worker))
        elif isinstance(outcome, Left):
            self._carry_out(events.WorkerLeft(outcome.worker))
        else:
            self._take_loss(outcome)

    def _take_loss(self, loss: Lost) -> None:
        worker, seq, at = loss[:3]
        steps = [] if seq is None else self._course.split(seq)
        if steps and at is not None:
            loss = loss._replace(seq=steps[at].seq)
        self._losses[worker] = loss
        self.stopwatch.lost(loss.who, loss.how, max(len(steps), seq is not None))
        self._replaced, resumable = loss, known(self._position_in(self._course.run)) is not None
        self._carry_out(events.WorkerLost(worker, seq, max(1, len(steps)), at, resumable))
        self._replaced = None

    def _position_in(self, run: Run | None) -> bytes | None:
        known_in, mark = self._position or (-1, None)
        return mark if run is not None and run.number == known_in else None

    # One method for each command.

    def _hire(self, command: commands.Hire) -> None:
        worker, seat = command
        self._empty.pop(seat, None)
        self.backend.gauges.seats |= {seat}
        self.stopwatch.hired(seat, self._replaced.who if self._replaced else "")
        self.backend.flush()
        try:
            self.backend.hire(worker, seat)
        except Exception as error:
            if not self._begun:  # the first crew could not be started: the caller gets the error
                raise
            # Treated as a crash at start-up: the other workers go on. The traceback would keep the engine alive.
            unborn = described(error)
            loss = self._replaced or Lost(worker, None, 0, f"worker {seat}", "was not started", "unknown", error)
            self._losses[worker] = loss._replace(seq=None, cause=error.with_traceback(None), unborn=unborn)
            self._events.append(events.WorkerLost(worker, None))

    def _retire(self, command: commands.Retire) -> None:
        self.backend.retire(*(command if command.seat >= 0 else ()))

    def _give_up(self, command: commands.GiveUp) -> None:
        self._empty[command.seat] = self._losses[command.worker]

    def _post(self, command: commands.Post) -> None:
        seq, slab, seat, resume = command
        task = self._course.find(seq)
        if task is None:
            task, ends = self._course.draw(seq, self._pace.bundle)
            if ends:
                self._events.append(events.Bounded(seq))
        if resume and task is not None and self._course.run is not None:
            task = self._course.run.continued(task, self._position_in(self._course.run))
        if task is not None and isinstance(task.keys, Raised):
            self._course.fill(seq, Failed(seq, events.CALLER, task.keys.error))
            self._events.append(events.StepFilled(seq, events.CALLER))
            return
        if task is not None:
            try:
                self.backend.post(task, slab, seat)
                return
            except Exception as error:
                where = f"The keys {shorten(task.keys)} of step {task.step} could not be sent to a worker."
                if self._course.refuse(seq, caught(error, where)):
                    self._events.append(events.Bounded(seq))
        self._events.append(events.Exhausted(seq))

    def _rescind(self, command: commands.Rescind) -> None:
        if self.backend.rescind(command.seq):
            self._events.append(events.Rescinded(command.seq))

    def _deliver(self, command: commands.Deliver) -> None:
        if self._empty:  # warn only with a batch: if no worker is left, the error says so
            for loss in self._empty.values():
                warn_caller(vacancy(loss))
            self._empty.clear()
        seq, slab = command
        outcome: Filled | Failed | Bundle = self._course.filled.pop(seq)
        steps: list[Any] = outcome.steps if isinstance(outcome, Bundle) else [outcome]
        rows = nbytes = 0
        if isinstance(outcome, Failed):
            self._leases.give_back(slab)
        else:
            nbytes = outcome.nbytes
            self._leases.lend(slab, outcome.root, nbytes)
            rows = sum([step.rows for step in steps if type(step) is Filled])
        self.stopwatch.deliver(len(steps), rows, nbytes, seq)
        self._course.deliver(seq, steps)
        self._answer = self._unwrap()

    def _unwrap(self) -> StepResult:
        """Removes the next step from the delivered task. Returns the result of the step."""
        task, outcome = self._course.ready.popleft()
        if outcome.mark is not None:
            task = task._replace(mark=outcome.mark)
        if isinstance(outcome, Failed):
            return StepResult(task, error=outcome.error, worker=outcome.worker)
        try:
            if self._receive is None:
                data = self.backend.open(outcome)
            else:
                data = outcome.held.batch if type(outcome.held) is ReceivedEarly else self._received(outcome)
        except Exception as trouble:
            where = f"While the batch of step {task.step} of epoch {task.epoch} was received."
            return StepResult(task, error=caught(trouble, where), worker=outcome.worker)
        return new(StepResult, (task, data, outcome.rows, None, outcome.mended, outcome.worker))

    def _received(self, outcome: Filled) -> Any:
        assert self._receive is not None
        return self._receive(self.backend.open(outcome), outcome.root)

    def _receive_early(self) -> None:
        """Converts the next finished batches ahead of time, so that their data reaches an accelerator early."""
        course, left = self._course, self._early
        for at in range(min(left, len(course.ready))):
            task, outcome = course.ready[at]
            course.ready[at] = task, self._with_batch(outcome)
            left -= 1
        seqs = self._scheduler.deliverable(left)
        if len(seqs) < left:
            self._take_in(0)
            seqs = self._scheduler.deliverable(left)
        for seq in seqs:
            outcome = course.filled.get(seq)  # None for a step whose workers died
            if type(outcome) is Bundle:
                outcome.steps[:left] = map(self._with_batch, outcome.steps[:left])
            elif outcome is not None:
                course.filled[seq] = self._with_batch(outcome)
            left -= len(outcome.steps) if type(outcome) is Bundle else 1
            if left <= 0:
                return

    def _with_batch(self, outcome: Any) -> Any:
        if type(outcome) is not Filled or type(outcome.held) is ReceivedEarly:
            return outcome
        try:
            return outcome._replace(held=ReceivedEarly(self._received(outcome)))
        except Exception:
            return outcome  # the same error is raised again in place of the batch

    def _deliver_lost(self, command: commands.DeliverLost) -> None:
        loss, task = self._losses[command.worker], self._course.find(command.seq)
        assert task is not None
        lost = [(step.seq, command.worker, lost_error(step, loss, self._retries)) for step in task.single()]
        self.stopwatch.deliver(len(lost), 0, 0, command.seq)
        self._course.deliver(command.seq, [Failed(*one) for one in lost])
        self._answer = self._unwrap()

    def _break(self, command: commands.Break) -> None:
        run = self._course.run
        task = self._course.find(command.seq) or self._course.draw(command.seq)[0]
        assert run is not None and task is not None
        why = refusal(self._position_in(run)) if command.unknown else None
        run.fail(broken_error(task, self._losses[command.worker], self._retries, why))
        self._course.forget_from(command.seq)

    def _fail(self, command: commands.Fail) -> None:
        loss = self._losses[command.worker]
        raise irreplaceable(loss, self._course.find(loss.seq))

    def _finish(self, command: commands.Finish) -> None:
        assert self._course.run is not None
        self._end_is_told = True
        self._answer = StepResult(None, error=self._course.run.finish())

    def _cool(self, command: commands.Cool) -> None:
        self.backend.cool(command.slab)


_END = StepResult(None)


def _has_left(run: Run | None) -> bool:
    return run is not None and run.is_left


_PERFORM: dict[type, Callable[[Engine, Any], None]] = {
    kind: getattr(Engine, method_for(kind)) for kind in get_args(commands.Command)
}
