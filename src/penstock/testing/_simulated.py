"""The simulated backend, whose workers are objects that do one action at a time. Tests use it through `simulate`."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._at_work import get_worker_info, set_worker_info
from penstock._measure.gauges import NO_GAUGE, Gauges
from penstock._memory.layout import ALIGN, Writer
from penstock._memory.slabs import Slabs
from penstock._printable import counted
from penstock._system.interrupts import with_loan
from penstock._wire.pickling import dumps, loads
from penstock._wire.task import Task
from penstock._wire.updates import Change, encode
from penstock._work.job import Job
from penstock._work.runner import Runner
from penstock._work.seeding import Borrowed
from penstock.backends import Backend, Bundle, Doing, Filled, Left, Lost, Outcome
from penstock.backends._local import run_task, runner_of

if TYPE_CHECKING:
    from penstock.testing.simulate import Simulation

# If nothing can happen in the simulation, the loader waits this many real seconds for another thread to wake it.
_PATIENCE = 10.0


class Action(NamedTuple):
    """A possible next action of the loader or of a worker.

    `worker` is the id of the worker, or -1 for the loader. `step` is the step that the action concerns, or -1.

    >>> Action("fill", worker=1, step=7).kind
    'fill'
    """

    kind: str
    worker: int = -1
    step: int = -1


class Stuck(AssertionError):
    """Raised if the loader waits for something that can never happen.

    >>> issubclass(Stuck, AssertionError)  # so a test that meets it fails
    True
    """


_slept: list[float] = []  # how long each step that is being filled has slept, the innermost step last


def sleep(seconds: float) -> None:
    """Adds `seconds` of virtual time to the current step. Call `sleep` from a dataset.

    Does nothing outside a simulation.

    >>> import penstock
    >>> from penstock.testing import simulate
    >>> slow = penstock.dataset(range(2)).map(lambda number: simulate.sleep(3600) or number)
    >>> with simulate.workers() as simulation:
    ...     with penstock.DataLoader(slow, num_workers=1, backend=simulation.name) as loader:
    ...         print([batch.item() for batch in loader], simulation.now)
    [0, 1] 7200.0
    """
    if _slept:
        _slept[-1] += seconds


class _PostedTask:
    """A posted task. `worker` is the id of the worker that has claimed the task, or None if none has."""

    worker: int | None = None
    used = 0  # the number of bytes used in its slab

    def __init__(self, task: Task, slab: int, root: NDArray[np.uint8], seat: int, changes: int) -> None:
        self.task, self.slab, self.root, self.seat, self.changes = task, slab, root, seat, changes
        self.steps = task.steps  # the number of steps to do
        self.done: list[Any] = []  # the outcomes of the steps so far

    def current(self) -> Task:
        """Returns the next unfinished step as a task of its own, or the last step if all are done."""
        return self.task.single()[min(len(self.done), self.steps - 1)]


class _SimulatedWorker:
    runner: Runner | None = None
    info: Any = None
    posted: _PostedTask | None = None
    busy_until = took = 0.0
    changes = 0  # how many changes its dataset has received
    cause: BaseException | None = None
    _is_alive = True

    def __init__(self, worker: int, seat: int) -> None:
        self.id, self.seat, self.who = worker, seat, f"worker {seat} (simulated)"

    def kill(self) -> None:
        self._is_alive = False

    def is_alive(self) -> bool:
        return self._is_alive

    def join(self, timeout: float | None = None) -> None:
        """Returns at once, because a killed worker is dead immediately."""

    def does(self, kind: str) -> Action:
        return Action(kind, self.id, -1 if self.posted is None else self.posted.current().step)


class SimulatedBackend(Backend):
    """The backend of a `Simulation`. The simulation decides what happens next, and injects the faults."""

    leaves_nothing = False

    def __init__(self, simulation: Simulation, job: Job) -> None:
        self._simulation = simulation
        simulation.open.append(self)
        self.most_steps, self.copies_dataset = simulation.most_steps, simulation.copies_dataset
        self._job = job
        self._shipped = dumps(job, by_value=True) if self.copies_dataset else b""
        self._slabs, self.gauges = Slabs(None), Gauges(None)
        self._board: dict[int, _PostedTask] = {}
        self._workers: dict[int, _SimulatedWorker] = {}
        self._hired: set[int] = set()
        self._outbox: list[Outcome] = []
        self._changes: list[bytes] = []
        self._leaving = 0
        self._woken = threading.Event()

    # What the engine calls.

    def clock(self) -> float:
        return self._simulation.now

    @property
    def workers(self) -> list[Any]:
        return sorted(filter(_SimulatedWorker.is_alive, self._workers.values()), key=lambda worker: worker.seat)

    def hire(self, worker: int, seat: int) -> None:
        self._simulation.refuse(seat)
        assert worker not in self._hired, "a worker id is used once"
        assert all(other.seat != seat for other in self._workers.values()), "a seat has one worker"
        self._hired.add(worker)
        self._workers[worker] = _SimulatedWorker(worker, seat)
        self.flush()

    def retire(self, seat: int = -1) -> None:
        self._leaving += 1

    def retain(self) -> int:
        self.flush()
        retained, self._leaving = self._leaving, 0
        return retained

    def post(self, task: Task, slab: int, seat: int) -> None:
        assert task.seq not in self._board, "a task is posted once"
        assert all(other.slab != slab for other in self._board.values()), "a slab belongs to one task"
        assert task.steps <= self.most_steps, "a task has no more steps than it may"
        if self.copies_dataset and not isinstance(task.keys, np.ndarray):
            task = task._replace(keys=loads(dumps(task.keys)))
        root = self._slabs.arena.root(self._slabs.region(slab, 0, task.steps, self.most_steps))
        self._board[task.seq] = _PostedTask(task, slab, root, seat, len(self._changes))
        self.flush()

    def cool(self, slab: int) -> None:
        assert all(other.slab != slab for other in self._board.values()), "only a free slab is cooled"
        self._slabs.cool(slab)

    def encode(self, change: Change) -> bytes:
        return encode(change) if self.copies_dataset else b""

    def update(self, change: bytes) -> None:
        if self.copies_dataset:
            self._changes.append(change)
            return
        for worker in self._workers.values():
            if worker.runner is not None:
                worker.runner.look_up()

    def flush(self) -> None:
        """Lets workers act until `choose` picks "return". Real workers may act at any time, even during `flush`."""
        while len(actions := [Action("return"), *self._actions()]) > 1:
            action = self._simulation.chosen(actions)
            if action.kind == "return":
                return
            self._perform(action)

    def rescind(self, seq: int) -> bool:
        self.flush()
        posted = self._board.get(seq)
        if posted is not None and posted.worker is None:
            del self._board[seq]
            return True
        if posted is not None:
            posted.steps = max(1, len(posted.done))
        return False

    def poll(self, timeout: float | None) -> list[Outcome]:
        deadline = math.inf if timeout is None else self.clock() + timeout
        while not self._woken.is_set():
            actions = self._actions()
            asleep = (worker.busy_until for worker in self.workers if worker.busy_until > self.clock())
            wakes = min([deadline, *asleep])
            if self._outbox or self.clock() >= deadline:
                actions.insert(0, Action("return"))
            elif all(action.kind == "die" for action in actions):
                if wakes == math.inf:
                    self._wait_for_ever()
                    continue
                actions.insert(0, Action("wait"))
            action = self._simulation.chosen(actions)
            if action.kind == "return":
                break
            if action.kind == "wait":
                self._simulation.now = wakes
            else:
                self._perform(action)
        self._woken.clear()
        found, self._outbox = self._outbox, []
        return found

    def open(self, outcome: Filled) -> object:
        return outcome.held

    def memory(self) -> tuple[int, int]:
        return self._slabs.nbytes, 0

    def end_hung(self, seconds: float) -> list[Doing]:
        return []

    def doing(self, seq: int | None) -> list[Doing]:
        at_work = [
            Doing(worker.who, "", posted.task.seq, posted.task.epoch, posted.current().step)
            for worker in self.workers
            if (posted := worker.posted) is not None
        ]
        return [one for one in at_work if one.seq == seq is not None] or at_work

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._board.clear()
        self._workers.clear()
        self._outbox.clear()
        if self in self._simulation.open:
            self._simulation.open.remove(self)

    # What may happen next.

    def _actions(self) -> list[Action]:
        actions = [action for worker in self._workers.values() if (action := self._action(worker))]
        if self._leaving:
            free = (w for w in self.workers if w.runner and not w.posted and w.busy_until <= self.clock())
            actions += [worker.does("leave") for worker in free]
        if self._simulation.deaths:
            actions += [worker.does("die") for worker in self.workers]
        return actions

    def _action(self, worker: _SimulatedWorker) -> Action | None:
        """Returns the worker's next action, or None if the worker must wait. Never returns "leave" or "die"."""
        posted = worker.posted
        if not worker.is_alive():
            return worker.does("bury")
        if worker.runner is None:
            return worker.does("start")
        if worker.busy_until > self.clock():
            return None
        if posted is not None:
            return worker.does("fill" if len(posted.done) < posted.steps else "report")
        task = self._next_task(worker.seat)
        return None if task is None else Action("claim", worker.id, task.step)

    def _task(self, worker: _SimulatedWorker, kind: str) -> Task | None:
        """Returns the task of the worker's action, or None. For "fill", the task contains only the step to fill."""
        if worker.posted is None:
            return self._next_task(worker.seat) if kind == "claim" else None
        return worker.posted.current() if kind == "fill" else worker.posted.task

    def _next_task(self, seat: int) -> Task | None:
        """Returns the first unclaimed task for this seat. Streams rely on tasks being claimed in order."""
        unclaimed = (p.task for p in self._board.values() if p.worker is None and p.seat in (-1, seat))
        return min(unclaimed, key=lambda task: task.seq, default=None)

    def _wait_for_ever(self) -> None:
        if threading.active_count() > 1 and self._woken.wait(_PATIENCE):
            return
        tasks = [posted.task.step for posted in self._board.values()]
        alive = f"{counted(len(self.workers), 'worker')} {'is' if len(self.workers) == 1 else 'are'} alive"
        raise Stuck(
            f"The loader waits, but nothing can happen any more: {alive}, the steps "
            f"{tasks} are posted. The last actions: {self._simulation.history[-20:]}"
        )

    # What happens.

    def _perform(self, action: Action) -> None:
        worker = self._workers[action.worker]
        if worker.is_alive() and self._simulation.kills(action, self._task(worker, action.kind), worker.seat):
            self._simulation.history[-1] = action._replace(kind="die")
            worker.kill()
        else:
            getattr(self, f"_{action.kind}")(worker)

    def _die(self, worker: _SimulatedWorker) -> None:
        self._simulation.deaths -= 1
        worker.kill()

    def _start(self, worker: _SimulatedWorker) -> None:
        try:
            job: Job = loads(self._shipped) if self.copies_dataset else self._job
        except Exception as error:
            worker.cause = error
            worker.kill()
            return
        worker.runner = runner = runner_of(job, worker.who)
        with self._at_work(worker):
            loan = Borrowed(job.seed, -1, job.number(worker.seat))
            with_loan(loan, partial(runner.begin, worker.seat, alone=False))

    @contextmanager
    def _at_work(self, worker: _SimulatedWorker) -> Iterator[None]:
        """Makes the calling thread act as this worker. Calls to `sleep` keep the worker busy in virtual time."""
        outer = get_worker_info()
        set_worker_info(worker.info, of_process=False)
        _slept.append(0.0)
        try:
            yield
        finally:
            worker.info = get_worker_info()
            set_worker_info(outer, of_process=False)
            worker.took = _slept.pop()
            worker.busy_until = self.clock() + worker.took

    def _claim(self, worker: _SimulatedWorker) -> None:
        task = self._next_task(worker.seat)
        assert task is not None
        worker.posted = self._board[task.seq]
        worker.posted.worker = worker.id

    def _fill(self, worker: _SimulatedWorker) -> None:
        posted, runner = worker.posted, worker.runner
        assert posted is not None and runner is not None
        task = posted.current()
        # Each step of a bundle has its own part of the slab.
        base = -(-posted.used // ALIGN) * ALIGN
        writer = Writer(posted.root[base:] if base else posted.root)
        changes, worker.changes = self._changes[worker.changes : posted.changes], posted.changes
        with self._at_work(worker):
            if changes:
                with_loan(runner.borrowed(task), runner.change, map(loads, changes))
            outcome: Outcome = with_loan(runner.borrowed(task), run_task, runner, worker.id, task, writer, NO_GAUGE)
        if isinstance(outcome, Filled):
            outcome = outcome._replace(seconds=worker.took)
        posted.done.append(outcome)
        posted.used = base + writer.used

    def _report(self, worker: _SimulatedWorker) -> None:
        posted, worker.posted = worker.posted, None
        assert posted is not None
        del self._board[posted.task.seq]
        done = posted.done
        outcome = done[0]
        if posted.task.steps > 1:
            seconds = sum(one.seconds for one in done if isinstance(one, Filled))
            outcome = Bundle(posted.task.seq, worker.id, posted.used, seconds, done, posted.root)
        self._slabs.learn(posted.used // len(done) + 1)
        self._outbox.append(outcome)

    def _leave(self, worker: _SimulatedWorker) -> None:
        self._leaving -= 1
        del self._workers[worker.id]
        self._outbox.append(Left(worker.id))

    def _bury(self, worker: _SimulatedWorker) -> None:
        del self._workers[worker.id]
        seq, at = None, 0
        if worker.posted is not None:
            task = worker.posted.task
            seq, at = task.seq, worker.posted.current().step - task.step
            del self._board[seq]
        told = at if self._simulation.names_step else None
        lost = Lost(worker.id, seq, told, worker.who, "was killed by the simulation", "SIGKILL", worker.cause)
        self._outbox.append(lost)
