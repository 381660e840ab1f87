"""A backend with virtual time and a chosen order of events, in one thread, for testing races without processes.

Everything in penstock except the backend is real. The workers are objects, and the calling thread runs the user's
code for them. A function decides what happens next: `choose` gets the list of all actions that are possible now, and
returns the index of one. So a race is a list of numbers: hypothesis can search for it, and a test can keep it.

    >>> import penstock
    >>> from penstock.testing import simulate
    >>> faults = [simulate.Kill("report", step=1, times=2)]  # twice, whichever worker has filled step 1
    >>> with simulate.workers(faults=faults, choose=simulate.seeded(7)) as simulation:
    ...     with penstock.DataLoader(range(6), 2, num_workers=2, backend=simulation.name) as loader:
    ...         print([batch.tolist() for batch in loader])
    [[0, 1], [2, 3], [4, 5]]
    >>> [action.step for action in simulation.history if action.kind == "die"]
    [1, 1]

The actions of a worker, in the order of its life:

    start     runs `worker_init_fn`
    claim     takes the next task
    fill      does one step of the task: this runs the dataset's code
    report    sends the result
    leave     leaves, because the number of workers was reduced
    die       dies, together with its task
    bury      the death becomes known to the loader

and those of the loader: `return` (it continues with the results so far) and `wait` (time passes until a worker
wakes up, or until the timeout). Time is virtual: only `simulate.sleep` takes any, and time passes only when nothing
else can happen. If nothing can ever happen again, the loader would wait for ever: `Stuck` is raised.
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
"""Returns the index of the next action. It is called only if there are several."""


@dataclass
class Kill:
    """A fault: a worker dies instead of doing this action, `times` times.

    `Kill("fill", step=3)` kills a worker that has claimed step 3, before it does the step; "report" kills it after
    the step, and "claim" when it is about to claim the step. `Kill("start", seat=1, times=4)` makes four
    workers crash at start-up. A field that is None matches anything.
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
    """A fault: a worker cannot be started, `times` times, in this seat or in any (None), after `after` successes."""

    seat: int | None = None
    times: int = 1
    after: int = 0
    error: Exception | None = None


def seeded(seed: int) -> Choose:
    """Chooses actions at random, as a function of the seed."""
    numbers = random.Random(seed)
    return lambda actions: numbers.randrange(len(actions))


def replay(numbers: Iterable[int]) -> Choose:
    """Repeats these choices, from `Simulation.choices`; after the last of them, always chooses the first action.

    The first action is the simplest: the loader returns as soon as it can, and the first worker does everything.
    """
    left = iter(numbers)
    return lambda actions: next(left, 0) % len(actions)


_numbers = itertools.count(1)


@dataclass(eq=False, repr=False)
class Simulation:
    """Registers a simulated backend for a block: `DataLoader(..., num_workers=2, backend=simulation.name)`.

    `choose` decides what happens next (default: `seeded(0)`), and `faults` are injected. `deaths`: the number of
    workers that may die, whenever `choose` wants it. `copies_dataset`: each worker has a copy of the dataset, as in a
    process, or all share the caller's, as threads do. `most_steps`: the largest number of small steps in one task.
    `names_step=False`: a loss does not say which step of a bundle was running, as on a remote machine.

    `now` is the virtual time. `history` has every action, and `choices` every number that `choose` returned:
    `replay(choices)` repeats it all. `open` are the backends that were not closed.
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
        """True if a fault kills the worker that is about to do this with this task."""
        for fault in self._faults:
            if isinstance(fault, Kill) and fault.times and fault.concerns(action, task, seat):
                fault.times -= 1
                return True
        return False

    def refuse(self, seat: int) -> None:
        """Raises the error of a fault that keeps a worker in this seat from being started."""
        for fault in self._faults:
            if isinstance(fault, Refuse) and fault.seat in (None, seat):
                if fault.after:
                    fault.after -= 1
                elif fault.times:
                    fault.times -= 1
                    raise fault.error or OSError("the simulation refuses to start a worker")


workers = Simulation
