"""A simulated backend for testing races without processes, in one thread.

Time is virtual, and the test chooses the order of events. Everything in penstock except the backend is real. The
workers are objects, and the calling thread runs the user's code for them. A function named `choose` decides what
happens next: it receives a list of all possible next actions, and returns the index of the chosen action. So a
race is a list of numbers. Hypothesis can search for such a list, and a test can replay the list.

    >>> import penstock
    >>> from penstock.testing import simulate
    >>> faults = [simulate.Kill("report", step=1, times=2)]  # twice, whichever worker has filled step 1
    >>> with simulate.workers(faults=faults, choose=simulate.seeded(7)) as simulation:
    ...     with penstock.DataLoader(range(6), 2, num_workers=2, backend=simulation.name) as loader:
    ...         print([batch.tolist() for batch in loader])
    [[0, 1], [2, 3], [4, 5]]
    >>> [action.step for action in simulation.history if action.kind == "die"]
    [1, 1]

The actions of a worker, from its start to its end, are:

    start     the worker runs `worker_init_fn`
    claim     it takes the next task
    fill      it does one step of the task, which runs the dataset's code
    report    it sends the result
    leave     it leaves, because the number of workers was reduced
    die       it dies, and loses its task if it has one
    bury      the loader learns of the death

The actions of the loader are `return` (the loader continues with the results so far) and `wait` (time passes until a
worker wakes up, or until the timeout). Only `simulate.sleep` takes virtual time, and time passes only when nothing
else can happen. If nothing can ever happen again, `Stuck` is raised, because the loader would wait forever.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace

from penstock._wire.task import Task
from penstock.backends import Backend, register, unregister
from penstock.testing._simulated import Action, SimulatedBackend, Stuck, sleep

__all__ = [
    "Action",
    "Choose",
    "Kill",
    "Refuse",
    "Simulation",
    "Stuck",
    "replay",
    "seeded",
    "sleep",
    "workers",
]

Choose = Callable[[Sequence[Action]], int]
"""A function that returns the index of the next action. It is called only if several actions are possible."""


@dataclass
class Kill:
    """A fault that makes a worker die instead of doing `action`. The fault happens `times` times.

    `Kill("claim", step=3)` kills a worker that is about to claim step 3. `Kill("fill", step=3)` kills a worker that
    has claimed step 3 but not done it. `Kill("report", step=3)` kills a worker that has done step 3 but not reported
    it. `Kill("start", seat=1, times=4)` makes four workers in seat 1 (the second worker slot) crash at start-up.
    A field that is None matches anything.
    """

    action: str
    step: int | None = None
    epoch: int | None = None
    seat: int | None = None
    times: int = 1

    def concerns(self, action: Action, task: Task | None, seat: int) -> bool:
        if self.action != action.kind or self.seat not in (None, seat):
            return False
        if task is None:
            return self.step is None and self.epoch is None
        steps = range(task.step, task.step + task.steps)
        return (self.step is None or self.step in steps) and self.epoch in (None, task.epoch)


@dataclass
class Refuse:
    """A fault that keeps workers from being started.

    The fault applies to workers in the slot `seat`, or to all workers if `seat` is None. The first `after` workers
    are started; then `times` attempts fail with `error`, which is an OSError by default.

    >>> import penstock
    >>> from penstock.testing import simulate
    >>> with simulate.workers(faults=[simulate.Refuse()]) as simulation:
    ...     with penstock.DataLoader(range(4), num_workers=2, backend=simulation.name) as loader:
    ...         try:
    ...             next(iter(loader))
    ...         except OSError as error:
    ...             print(error)
    the simulation refuses to start a worker
    """

    seat: int | None = None
    times: int = 1
    after: int = 0
    error: Exception | None = None


def seeded(seed: int) -> Choose:
    """Returns a function that chooses actions at random. The same seed gives the same choices."""
    numbers = random.Random(seed)
    return lambda actions: numbers.randrange(len(actions))


def replay(numbers: Iterable[int]) -> Choose:
    """Returns a function that repeats the choices of an earlier simulation (`Simulation.choices`).

    After the last choice, the function always chooses the first action, which is the simplest one: the loader returns
    as soon as possible, and the first worker does all the work.

    >>> import penstock
    >>> from penstock.testing import simulate
    >>> def run(choose):
    ...     with simulate.workers(choose=choose) as simulation:
    ...         with penstock.DataLoader(range(4), num_workers=2, backend=simulation.name) as loader:
    ...             list(loader)
    ...     return simulation
    >>> first = run(simulate.seeded(3))
    >>> run(simulate.replay(first.choices)).history == first.history
    True
    """
    left = iter(numbers)
    return lambda actions: next(left, 0) % len(actions)


_numbers = itertools.count(1)


@dataclass(eq=False, repr=False)
class Simulation:
    """Registers a simulated backend for a `with` block.

    In the block, use the backend as in `DataLoader(..., num_workers=2, backend=simulation.name)`.

    - `choose`: the function that decides what happens next (by default `seeded(0)`).
    - `faults`: the faults to inject.
    - `deaths`: the number of workers that may die. `choose` decides when.
    - `copies_dataset`: True if each worker has its own copy of the dataset, as processes do. Otherwise all workers
      share the caller's dataset, as threads do.
    - `most_steps`: the maximum number of steps in one task.
    - `names_step`: False if the backend cannot tell which step of a task a worker was working on when it died, as
      with workers on remote machines.

    The results are available as attributes:

    - `now`: the virtual time.
    - `history`: all actions so far.
    - `choices`: all numbers that `choose` has returned. `replay(choices)` repeats the simulation.
    - `open`: the backends that have not been closed.

    >>> import penstock
    >>> with Simulation(seeded(1)) as simulation:  # or `simulate.workers(...)`
    ...     with penstock.DataLoader(range(4), 2, num_workers=1, backend=simulation.name) as loader:
    ...         batches = list(loader)
    >>> {action.kind for action in simulation.history} >= {"start", "claim", "fill", "report"}
    True
    """

    choose: Choose | None = None
    faults: Iterable[Kill | Refuse] = ()
    _: KW_ONLY
    deaths: int = 0
    copies_dataset: bool = True
    most_steps: int = 1
    names_step: bool = True

    def __post_init__(self) -> None:
        self._choose = self.choose or seeded(0)
        self._faults = [replace(fault) for fault in self.faults]  # they count down
        self.name, self.now = f"simulated_{next(_numbers)}", 0.0
        self.history: list[Action] = []
        self.choices: list[int] = []
        self.open: list[Backend] = []

    def __enter__(self) -> Simulation:
        register(self.name, lambda job, context: SimulatedBackend(self, job))
        return self

    def __exit__(self, *exc_info: object) -> None:
        unregister(self.name)

    def chosen(self, actions: Sequence[Action]) -> Action:
        at = 0
        if len(actions) > 1:
            at = self._choose(actions)
            self.choices.append(at)
        self.history.append(actions[at])
        return actions[at]

    def kills(self, action: Action, task: Task | None, seat: int) -> bool:
        """True if a fault kills the worker before this action. If so, the fault's `times` is reduced by one."""
        for fault in self._faults:
            if isinstance(fault, Kill) and fault.times and fault.concerns(action, task, seat):
                fault.times -= 1
                return True
        return False

    def refuse(self, seat: int) -> None:
        """Raises an error if a fault prevents a worker from starting in this seat (worker slot)."""
        for fault in self._faults:
            if isinstance(fault, Refuse) and fault.seat in (None, seat):
                if fault.after:
                    fault.after -= 1
                elif fault.times:
                    fault.times -= 1
                    raise fault.error or OSError("the simulation refuses to start a worker")


workers = Simulation
