"""The interface between the engine and a backend, and the registry of backends."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from penstock._measure.gauges import Gauges
from penstock._wire.task import Bundle, Ended, Failed, Filled, Task
from penstock._wire.updates import Change
from penstock._work.job import Job


class Lost(NamedTuple):
    """A worker is dead. `seq` is the task that it was running, and `at` the step of that task, counted from 0.

    `who` names the worker ("worker 2 (pid 8127)"), and `how` says how it ended ("was killed by signal 9"): both are
    for messages. `unborn`: why no replacement could be started, if one was tried. `phrase`: how torch's loader would
    report the death.
    """

    worker: int
    seq: int | None
    at: int | None
    who: str
    how: str
    signal: str
    cause: BaseException | None
    unborn: str = ""
    phrase: str = ""


class Left(NamedTuple):
    """A worker has exited because it was asked to. It was running no task."""

    worker: int


class Doing(NamedTuple):
    """What a worker is doing, for a message: `who` is "worker 2 (pid 8127)", `stack` its calls, innermost first.

    `seq` is the task that it is running, or None; `epoch` and `step` name the current step of that task. `likely` is
    the likely cause of a hang, with a remedy, if the worker's state shows one; otherwise "".
    """

    who: str
    stack: str = ""
    seq: int | None = None
    epoch: int = -1
    step: int = -1
    likely: str = ""


HUNG = "hung"
"""The value of `Lost.signal` for a worker that was killed because it hung."""

# Seconds that one system call waits at most. A longer timeout takes several calls.
LONGEST_WAIT = 3600.0

Outcome = Filled | Failed | Bundle | Ended | Lost | Left


class Backend(Protocol):
    """Runs workers for the engine: tasks go out by `post`, and outcomes come in by `poll`, in any order.

    One thread at a time calls a backend, except `wake`, which any thread may call. Memory belongs to the backend: the
    engine names slabs by number, and the backend has memory for each.

    Derive from this class to inherit the defaults of all attributes except `gauges`, and of the methods that are not
    abstract.
    """

    gauges: Gauges
    """The counters of the workers. `Gauges(None)` if workers count nothing."""
    most_steps: int = 1
    """The largest number of steps in a task."""
    copies_dataset: bool = True
    """Whether each worker has a copy of the dataset, made when it was started. False: the caller's own object."""
    leaves_nothing: bool = False
    """Whether the backend may be dropped without being closed."""
    shares_gauges: bool = False
    """Whether workers write to `gauges` at any moment, also while they are busy, and not only with an outcome."""
    handles: Mapping[int, Any] = MappingProxyType({})
    """The last worker process of each seat, dead or alive. Empty if workers are not processes of this machine."""

    def clock(self) -> float:
        """The clock for timeouts, in seconds: `time.monotonic()`, unless time is simulated."""
        return time.monotonic()

    @property
    @abstractmethod
    def workers(self) -> list[Any]:
        """The live worker processes, by seat, each a handle like `multiprocessing.Process`. Threads have none."""

    @abstractmethod
    def hire(self, worker: int, seat: int) -> None:
        """Starts the worker with this number. Numbers are never used again; a seat has one worker at a time."""

    @abstractmethod
    def retire(self, seat: int = -1) -> None:
        """Asks one worker to exit: the first that finishes its current step. `poll` reports it as `Left`.

        If tasks are assigned to workers, the worker in `seat` exits, after all its tasks.
        """

    @abstractmethod
    def retain(self) -> int:
        """Withdraws the requests to exit that no worker has taken yet, and returns their number. Never waits."""

    @abstractmethod
    def post(self, task: Task, slab: int, seat: int) -> None:
        """Offers the task to the first free worker, or to the worker in `seat` if that is not -1.

        Workers learn of it at the next `flush` at the latest. The batch is written to the memory of `slab`, which no
        live array refers to. If the keys cannot be sent to a worker, this raises, and nothing was posted.
        """

    def cool(self, slab: int) -> None:
        """Returns the memory pages of a free slab to the system. The slab may be posted again."""
        return

    @abstractmethod
    def encode(self, change: Change) -> bytes:
        """The change as bytes, for `update`. Raises if the change cannot be sent."""

    @abstractmethod
    def update(self, change: bytes) -> None:
        """Sends a change of the dataset to the workers, for the tasks that are posted from now on."""

    def flush(self) -> None:
        """Makes sure that workers know of all posted tasks."""
        return

    @abstractmethod
    def rescind(self, seq: int) -> bool:
        """Takes back a task that no worker has begun; False if one has."""

    @abstractmethod
    def poll(self, timeout: float | None) -> list[Outcome]:
        """The outcomes since the last call. Waits for one, at most `timeout` seconds; may return none earlier."""

    def has_dead(self) -> bool:
        """True if a worker is dead and `poll` has not reported it yet. False if only `poll` can tell."""
        return False

    @abstractmethod
    def open(self, outcome: Filled) -> object:
        """The batch of an outcome: arrays that are views of `outcome.root`."""

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Bytes that batches take: in slabs, and elsewhere."""

    @abstractmethod
    def doing(self, seq: int | None) -> list[Doing]:
        """The workers running the task, with their stacks; if none is, all busy workers. For messages."""

    def end_hung(self, seconds: float) -> list[Doing]:
        """Kills the workers that have been running one task for longer than this. `poll` reports each as `Lost`.

        Returns what they were doing. Only called if the backend was registered with `kills=True`.
        """
        return []

    @abstractmethod
    def wake(self) -> None:
        """Makes `poll` return, even without an outcome, in the thread that waits in it; else at its next call."""

    @abstractmethod
    def close(self) -> None:
        """Ends the workers without waiting for their tasks. May be called again, also after an interrupt."""


MakeBackend = Callable[[Job, Any], Backend]
"""Makes a backend for a job. The second argument is the value of the loader's argument that the backend declares."""


def _nothing(*given: Any) -> None:
    """The default of `check`, which accepts everything, and of `room`, which knows no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A backend as it was registered. See `register`."""

    make: MakeBackend
    argument: str | None = None
    check: Callable[[Any, int], object] = _nothing
    room: Callable[[Any], int | None] = _nothing
    kills: bool = True
    threads: bool = False
    needs_workers: bool = False

    def given_in(self, arguments: Mapping[str, Any]) -> Any:
        """Returns the value for this backend from the arguments of a loader; None if the user gave none."""
        return None if self.argument is None else arguments.get(self.argument)


ARGUMENT = "backend_options"
"""The loader's argument for backends that declare no other one."""

INLINE, DEFAULT = "inline", "process"
"""The backend without workers, and the one that is used if none is named."""

TABLE: dict[str, Registered] = {}
"""The backends by name: ours (see `_ours.py`), and those of others."""


def register(
    name: str,
    make: MakeBackend,
    *,
    argument: str | None = ARGUMENT,
    check: Callable[[Any, int], object] = _nothing,
    room: Callable[[Any], int | None] = _nothing,
    kills: bool = True,
    threads: bool = False,
    needs_workers: bool = False,
) -> None:
    """Makes `DataLoader(..., backend=name)` run its workers on the backend that `make(job, given)` returns.

    A backend with this name that was registered before is replaced.

    - `argument`: the argument of `DataLoader` whose value `make`, `check` and `room` get as `given`:
      "backend_options", or "multiprocessing_context" for a backend that starts processes. None: the backend takes no
      options.
    - `check(given, num_workers)` is called when a loader is made, and raises if the backend cannot work with these
      values; `given` is None if the user gave nothing.
    - `room(given)`: how many workers fit on the machines that the backend uses, as a limit for `num_workers="auto"`;
      None if they run on this machine, or the number is not known.
    - `kills`: whether `end_hung` can kill workers. If not, `hang=` is refused.
    - `threads`: whether workers are threads of the calling process, which share its random generators. Then `hang=`
      is refused too, and `penstock.torch` refuses the backend, because its workers seed torch's global generator.
    - `needs_workers`: whether `num_workers=0` is refused, instead of loading in the calling process.
    """
    if not name.isidentifier():
        raise ValueError(f"The name of a backend must be an identifier, got {name!r}.")
    if argument is not None and argument not in arguments():
        raise ValueError(f"argument must be one of {', '.join(arguments())}, or None, got {argument!r}.")
    TABLE[name] = Registered(
        make=make,
        argument=argument,
        check=check,
        room=room,
        kills=kills and not threads,
        threads=threads,
        needs_workers=needs_workers,
    )


def unregister(name: str) -> None:
    """Removes a backend: `backend=name` is refused from now on. Existing loaders keep their workers."""
    del TABLE[name]


def known() -> list[str]:
    """The names that `backend=` accepts."""
    return [name for name in TABLE if name != INLINE]


def registered(name: str) -> Registered:
    return TABLE[name]


def arguments() -> list[str]:
    """The names of a loader's arguments that are passed to backends."""
    return sorted({ARGUMENT, *(each.argument for each in TABLE.values() if each.argument is not None)})


def make(name: str, job: Job, given: Any = None) -> Backend:
    """Makes a backend for this job. It has no workers yet."""
    return TABLE[name].make(job, given)
