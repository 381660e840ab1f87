"""The one loop where the scheduler meets a backend.

The scheduler says what to do, the engine does it: draws steps from the run, gives slabs memory,
posts tasks, takes outcomes in, and hands a batch out. It runs only inside the caller's `next()`:
there is no thread of ours, and workers find their next task on their own (see `backends/board.py`).
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from penstock._epoch.reports import irreplaceable, lost_error, timeout_error, vacancy
from penstock._epoch.run import Run
from penstock._memory.lease import Leases
from penstock._memory.pool import BUNDLE
from penstock._schedule.assigned import Assigned
from penstock._schedule.commands import Cool, Deliver, DeliverLost, Finish, GiveUp, Hire, Post, Rescind
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
from penstock._wire.failure import annotate
from penstock._wire.task import PULLED, Mended, Task, shorten
from penstock._wire.updates import Change
from penstock._work.job import Job
from penstock.backends._base import Backend, Bundle, Ended, Failed, Filled, Lost, Outcome
from penstock.errors import LoaderTimeout

# Small steps are bundled, as many to a task as take so long and so much memory: a task costs the two sides
# some 50 µs beyond its steps, and a change of processes. A caller who keeps one batch of a bundle keeps its slab: so
# the more slabs are lent, the less of them is bundled, down to the smaller of the two.
_BUNDLE_SECONDS = 1.6e-3
_BUNDLE_BYTES = 256 << 10, BUNDLE
_SLOW = 1e-3  # seconds that a step takes, until it is known: not to be bundled with many

# Another object after a fork: comparing it costs less than the system call that asks for the pid.
_this_process = object()


def _be_another_process() -> None:
    global _this_process
    _this_process = object()


os.register_at_fork(after_in_child=_be_another_process)


class Delivery(NamedTuple):
    """What `next` answers: a batch, or the error that stands in its place, or the end of the run.

    `worker` is who did it.
    """

    task: Task | None
    data: Any = None
    rows: int = 0
    error: BaseException | None = None
    mended: Mended | None = None
    worker: int = -1


class Engine:
    """A crew and its memory. One run at a time is read from it; the next may be prefetched."""

    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        job: Job,
        *,
        retries: int,
        look_ahead: bool,
        bundles: bool = False,
    ) -> None:
        self._process = _this_process
        self.job = job  # for workers that are hired later
        self._most_steps = backend.most_steps if bundles else 1
        self.ahead: Run | None = None
        self._backend = backend
        self._retries = retries
        self._leases = Leases()
        self._scheduler = scheduler
        self._run: Run | None = None
        self._look_ahead = look_ahead
        self._tasks: dict[int, Task] = {}
        self._outcomes: dict[int, Filled | Failed | Bundle] = {}
        self._ready: deque[tuple[Task, Filled | Failed]] = deque()  # the rest of a bundle
        self._again: deque[Task] = deque()  # drawn already, and to be posted before any other
        self._pace = _SLOW  # seconds a step, lately
        self._largest = 1  # bytes of a batch
        self._bundle = 1
        self._losses: dict[int, Lost] = {}
        self._given_up: dict[int, Lost] = {}  # by seat, and the caller was not told yet
        self.heritage: tuple[int, bytes] | None = None  # the last mark that came from a worker, and its run
        self._events: deque[Event] = deque()
        self._asking = False
        self._answer: Delivery | None = None
        # Which thread is at it, by one call that cannot be interrupted: an entry of this thread's from before an
        # interrupt is its own again. While one is inside, in "next" or in "update", another may only ask it to close.
        self._owner: dict[str, int] = {}
        self._inside = ""
        self._wanted = 0  # the thread that comes before those that are in `next` again and again
        self._ended_by = ""
        # For an engine that nobody closed, also at the interpreter's exit.
        last = (_close_at_last, backend, self._owner) if not backend.leaves_nothing else (bool,)
        self._finalizer = weakref.finalize(self, *last)

    @property
    def closed(self) -> bool:
        """Whether its workers were ended, by `close` or at the interpreter's exit."""
        return bool(self._ended_by) or "closed" in self._owner

    def is_ours(self) -> bool:
        """Whether it belongs to this process, and not to the one that this was forked from."""
        return self._process is _this_process

    @property
    def workers(self) -> list[Any]:
        """Handles of the worker processes."""
        return self._backend.workers

    def open(self, run: Run) -> None:
        """Begins a run: the one that is prefetched, or any other."""
        if run is not self.ahead:
            self.cancel()
        if self.closed:
            raise self._closed_error()
        with self.held():
            self._run, self.ahead = run, None
            self._carry_out(Opened(run.seat))
            self._backend.flush()

    def next(self, timeout: float | None) -> Delivery:
        """The next batch, or error, of the run. A LoaderTimeout leaves everything as it was."""
        if not self.is_ours():
            raise RuntimeError(
                "This iterator was made before this process was forked, and its workers serve only the process "
                "that started them. Call iter(loader) after the fork."
            )
        while self._wanted or not self._is_free():
            self._wait_for_turn()
        try:
            self._inside = "next"
            return self._next(timeout)
        finally:
            self._inside = ""
            self._leave()

    def _wait_for_turn(self) -> None:
        """Lets a thread that is in update(), or waits to be, go first."""
        if self._ended_by:
            raise self._closed_error()
        if self.is_in_use_here() or self._wanted == threading.get_ident():
            raise RuntimeError("The loader was asked for a batch from inside of its own next() or update().")
        if self._inside == "next":
            raise RuntimeError(
                "Two threads asked one iterator for a batch at the same time. Give each its own iter(loader), "
                "or let them take turns."
            )
        time.sleep(1e-3)

    def is_in_use_here(self) -> bool:
        """Whether this thread is in the middle of using it."""
        return bool(self._inside) and self._owner.get("thread") == threading.get_ident() and self.is_ours()

    def _is_free(self) -> bool:
        """Takes it for this thread, if no other has it."""
        me = threading.get_ident()
        return self._owner.setdefault("thread", me) == me and not self._inside

    def _leave(self) -> None:
        """Gives it up, and does what another thread's close() in between has left to this one."""
        self._owner.pop("thread", None)
        if self._ended_by and self._finalizer.alive:
            self._end_if_free()

    def _next(self, timeout: float | None) -> Delivery:
        if self.closed:
            raise self._closed_error()
        try:  # not _closed_on_error: 2 µs, for every batch
            if self._ready:
                return self._unwrap()
            deadline = None if timeout is None else time.monotonic() + timeout
            for slab in self._leases.collect():
                self._carry_out(SlabReturned(slab))
            if not self._asking:
                self._asking = True
                self._carry_out(Asked())
            self._backend.flush()
            while self._answer is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._take_in(left)
                if self._ended_by:  # by another thread, which leaves the rest to this one
                    raise self._closed_error()
        except BaseException as error:
            self._end(self._ended_by or f"was ended by {type(error).__name__}")
            raise
        if self._answer is None:
            raise self._timed_out(timeout)
        answer, self._answer, self._asking = self._answer, None, False
        return answer

    @contextmanager
    def held(self) -> Iterator[None]:
        """For this thread alone: one that is in `next` is waited for, and the next one has to wait.

        Whatever is raised meanwhile ends the workers: how much was done, nobody knows.
        """
        self._wanted = threading.get_ident()
        try:
            while not self._is_free():
                time.sleep(1e-3)
            try:
                self._inside = "update"
                with self._closed_on_error():
                    yield
            finally:
                self._inside = ""
                self._leave()
        finally:
            self._wanted = 0

    def packed(self, change: Change) -> bytes:
        """The change as `update` takes it. What cannot be sent raises."""
        return self._backend.encode(change)

    def update(self, change: bytes) -> None:
        """While it is held: the dataset was changed, for all that was not handed out yet.

        What was prefetched is done again.
        """
        if self.closed:
            return
        run, ahead = self._run, self.ahead
        again = [task for task, _ in self._ready]
        again += [step for _, task in sorted(self._tasks.items()) for step in task.single()]
        again += self._again
        # Before anything is dropped: a worker that is forked meanwhile, in another's place, has the change
        # already and must not make it again.
        self._backend.update(change)
        self._cancel()
        self._pace, self._bundle = _SLOW, 1  # steps may take any time from now on
        if run is not None:
            # The one that is prefetched is drawn anew: what it is, is for the next iter() to say.
            self._again.extend(task for task in again if ahead is None or task.epoch == run.epoch)
            self._run = run
            self._carry_out(Opened())
            self._backend.flush()

    def cancel(self, timeout: float | None = None) -> None:
        """Drops what was prefetched. Nobody is waited for: a step that a worker has in hand is void.

        Only where steps belong to workers, what they have in hand is waited for. A LoaderTimeout leaves it to the
        next call. While another thread waits for a batch, it is closed instead.
        """
        if not self.is_ours():
            return
        if not self._is_free():
            self.close()
            return
        try:
            if not self.closed:  # asked only now: from here on no other thread ends it
                self._cancel(timeout)
        finally:
            self._leave()

    def _cancel(self, timeout: float | None = None) -> None:
        with self._closed_on_error():
            self._tasks.clear()
            self._outcomes.clear()
            self._ready.clear()
            self._again.clear()
            self._run = self.ahead = self._answer = None
            self._asking = False
            self._carry_out(Cancelled())
            # What was done before it could be rescinded. Without this, its places on the board would be
            # missing when the next run is posted; what is left after it is in the hands of a worker each.
            self._take_in(0)
            deadline = None if timeout is None else time.monotonic() + timeout
            while self._is_busy():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._take_in(left)
        if self._is_busy():
            raise self._timed_out(timeout)

    def _is_busy(self) -> bool:
        """Whether steps that were dropped must be waited for."""
        return isinstance(self._scheduler, Assigned) and self._scheduler.is_busy

    def close(self) -> None:
        """Ends the workers. Batches that were handed out stay valid.

        While another thread waits for a batch, that thread is woken and does it.
        """
        self._ended_by = self._ended_by or "was closed"
        if not self.is_ours():
            return
        if not self._end_if_free():
            self._backend.wake()

    def _end_if_free(self) -> bool:
        """Ends the workers, unless another thread is at it, which will."""
        if not self._is_free():
            return False
        try:
            self._end(self._ended_by)
        finally:
            self._owner.pop("thread", None)
        return True

    def _end(self, by: str) -> None:
        self._ended_by = by
        self._scheduler.handle(Closed())
        self._backend.close()
        # Not before: an interrupt may have come in between, and then the finalizer does the rest.
        self._finalizer.detach()

    def _closed_error(self) -> RuntimeError:
        how = self._ended_by or "was closed"
        return RuntimeError(f"This iterator {how}. Call iter(loader) for a new one.")

    def _carry_out(self, event: Event) -> None:
        while True:
            for command in self._scheduler.handle(event):
                _PERFORM[type(command)](self, command)
            if not self._events:
                return
            event = self._events.popleft()

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Ctrl-C may come in the middle of a list of commands: what is left of it cannot be trusted."""
        try:
            yield
        except BaseException as error:
            self._end(f"was ended by {type(error).__name__}")
            raise

    def _take_in(self, timeout: float | None) -> None:
        for outcome in self._backend.poll(timeout):
            self._take(outcome)
        self._backend.flush()

    def _take(self, outcome: Outcome) -> None:
        if isinstance(outcome, (Filled, Failed, Bundle)):
            task = self._tasks.get(outcome.seq)
            if task is not None:  # else it was cancelled
                self._outcomes[outcome.seq] = outcome
                if not isinstance(outcome, Bundle) and outcome.mark is not None:
                    self.heritage = task.run, outcome.mark
            if not isinstance(outcome, Failed):
                self._learn(outcome)
            self._carry_out(StepFilled(outcome.seq, outcome.worker))
        elif isinstance(outcome, Ended):
            task = self._tasks.pop(outcome.seq, None)
            if task is not None and outcome.mark is not None:
                self.heritage = task.run, outcome.mark
                if self._run is not None and self._run.number == task.run:
                    self._run.end = self._run.ends[outcome.worker] = outcome.mark
            self._carry_out(StepEnded(outcome.seq, outcome.worker))
        elif isinstance(outcome, Lost):
            worker, seq, at = outcome[:3]
            steps: list[Task] = []
            if seq is not None and seq in self._tasks:
                steps = self._tasks[seq].single()
                self._tasks.update((task.seq, task) for task in steps)
                outcome = outcome._replace(seq=steps[at].seq)
            if isinstance(self._scheduler, Assigned):
                raise irreplaceable(outcome, steps)
            self._losses[worker] = outcome
            if steps and self._was_last_reader(steps[at]):
                self._end_stream(steps[at], outcome)
                seq, steps, at = None, [], 0
            self._carry_out(WorkerLost(worker, seq, len(steps), at))

    def _is_fatal(self, task: Task) -> bool:
        """Whether nobody else can do it: in the middle of a stream that has no state to go on from."""
        begins = task.step == 0 or isinstance(task.keys, tuple)
        known = self.heritage is not None and self.heritage[0] == task.run
        return task.kind in PULLED and not (begins or known)

    def _was_last_reader(self, task: Task) -> bool:
        """Whether nobody will read a stream on from the step of which its reader has died."""
        deaths = sum(loss.seq == task.seq for loss in self._losses.values())
        return task.kind in PULLED and (self._is_fatal(task) or deaths > self._retries)

    def _end_stream(self, task: Task, loss: Lost) -> None:
        """The stream ends before this step, as one that has no more, and with the error that tells why."""
        assert self._run is not None
        error = self._run.error = lost_error(task, loss, self._retries, self._is_fatal(task))
        error.__cause__ = loss.cause
        self._tasks = {seq: other for seq, other in self._tasks.items() if seq < task.seq}
        self._carry_out(StepEnded(task.seq, loss.worker))

    def _learn(self, outcome: Filled | Bundle) -> None:
        count = len(outcome.steps) if isinstance(outcome, Bundle) else 1
        self._largest = max(self._largest, outcome.nbytes // count + 1)
        # One step that was slow says little: it may have had to wait for a processor.
        self._pace += (min(outcome.seconds / count, 8 * self._pace) - self._pace) / 8
        least, most = _BUNDLE_BYTES
        room = max(least, most // max(1, self._leases.lent))
        limit = min(_BUNDLE_SECONDS / self._pace, room / self._largest, self._most_steps)
        self._bundle = max(1, int(limit))

    # What each command means.

    def _hire(self, command: Hire) -> None:
        self._given_up.pop(command.seat, None)
        self._backend.flush()
        try:
            self._backend.hire(command.worker, command.seat, self.heritage)
        except Exception as error:
            if not self._losses:  # it is of the first crew: that is for the caller to know
                raise
            # As if it had died at birth: those who live go on.
            loss = next(reversed(self._losses.values()))
            unborn = f"{type(error).__name__}: {error}"
            self._losses[command.worker] = loss._replace(seq=None, cause=error, unborn=unborn)
            self._events.append(WorkerLost(command.worker, None))

    def _give_up(self, command: GiveUp) -> None:
        self._given_up[command.seat] = self._losses[command.worker]

    def _post(self, command: Post) -> None:
        seq, slab, _, seat = command
        task = self._tasks.get(seq) or self._draw(seq)
        if task is not None:
            try:
                self._backend.post(task, slab, seat)
            except Exception as error:
                keys = shorten(task.keys)
                annotate(error, f"The keys {keys} of step {task.step} could not be sent to a worker.")
                self._end_run(task, error)
            else:
                self._tasks[seq] = task
                return
        self._events.append(Exhausted(seq))

    def _draw(self, seq: int) -> Task | None:
        """The next step of this run, or else of the one that may follow it."""
        if self._again:
            return self._again.popleft()._replace(seq=seq)
        run = self.ahead or self._run
        assert run is not None, "steps are posted only while a run is open"
        task = run.draw(seq, self._bundle)
        if task is None and run is self._run:
            self._events.append(Bounded(seq))
            if self._look_ahead and run.error is None:
                self.ahead = run.follow()
                return None if self.ahead is None else self.ahead.draw(seq, self._bundle)
        return task

    def _end_run(self, task: Task, error: Exception) -> None:
        """The run that the task was drawn from ends before it, with this error."""
        run = self.ahead or self._run
        assert run is not None
        run.error = error
        if run is self._run:
            self._events.append(Bounded(task.seq))

    def _deliver(self, command: Deliver) -> None:
        if self._given_up:  # not before there is a batch: where nobody lives on, an error tells it
            for loss in self._given_up.values():
                warnings.warn(vacancy(loss), RuntimeWarning, stacklevel=2)
            self._given_up.clear()
        seq, slab = command
        task, outcome = self._tasks.pop(seq), self._outcomes.pop(seq)
        if isinstance(outcome, Bundle):
            self._leases.lend(slab, outcome.root)
            self._ready.extend(zip(task.single(), outcome.steps, strict=True))
        else:
            if isinstance(outcome, Filled):
                self._leases.lend(slab, outcome.root)
            else:
                self._leases.give_back(slab)
            self._ready.append((task, outcome))
        self._answer = self._unwrap()

    def _unwrap(self) -> Delivery:
        """The next of what was delivered by the scheduler."""
        task, outcome = self._ready.popleft()
        if outcome.mark is not None:
            task = task._replace(mark=outcome.mark)
        if isinstance(outcome, Failed):
            return Delivery(task, error=outcome.error, worker=outcome.worker)
        try:
            data = self._backend.open(outcome)
        except Exception as trouble:
            where = f"While the batch of step {task.step} of epoch {task.epoch} was received."
            return Delivery(task, error=annotate(trouble, where), worker=outcome.worker)
        return Delivery(task, data, outcome.rows, mended=outcome.mended, worker=outcome.worker)

    def _deliver_lost(self, command: DeliverLost) -> None:
        loss = self._losses[command.worker]
        for task in self._tasks.pop(command.seq).single():
            error = lost_error(task, loss, self._retries)
            error.__cause__ = loss.cause
            self._ready.append((task, Failed(task.seq, command.worker, error)))
        self._answer = self._unwrap()

    def _finish(self, command: Finish) -> None:
        assert self._run is not None
        error, self._run.error = self._run.error, None
        self._answer = Delivery(None, error=error)

    def _rescind(self, command: Rescind) -> None:
        if self._backend.rescind(command.seq):
            self._events.append(Rescinded(command.seq))

    def _cool(self, command: Cool) -> None:
        self._backend.cool(command.slab)

    def _timed_out(self, timeout: float | None) -> LoaderTimeout:
        task = min(self._tasks.values(), key=lambda task: task.seq, default=None)
        return timeout_error(timeout, task, self._backend.doing(None if task is None else task.seq))


def _close_at_last(backend: Backend, owner: dict[str, int]) -> None:
    # At the interpreter's exit a daemon thread may be inside `next`. It is left alone: the workers end with us.
    if owner.setdefault("thread", threading.get_ident()) == threading.get_ident():
        owner["closed"] = True
        backend.close()


_PERFORM: dict[type, Callable[[Engine, Any], None]] = {
    Post: Engine._post,
    Deliver: Engine._deliver,
    DeliverLost: Engine._deliver_lost,
    Finish: Engine._finish,
    Hire: Engine._hire,
    GiveUp: Engine._give_up,
    Rescind: Engine._rescind,
    Cool: Engine._cool,
}
