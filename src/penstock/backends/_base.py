"""The interface between the engine and a backend, and the registry of backends."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from penstock._measure.gauges import Gauges
from penstock._system.platform import HAS_PROCESSES
from penstock._wire.task import Bundle, Ended, Failed, Filled, Task
from penstock._wire.updates import Change
from penstock._work.job import Job


class Lost(NamedTuple):
    """Reports that a worker has died.

    `seq` is the number of the task that the worker was running, or None. `at` is the index of the current step
    within that task, or None if it is unknown. `who` and `how` are for messages: `who` names the worker ("worker 2
    (pid 8127)"), and `how` says how the worker ended ("was killed by signal 9"). `signal` is the name of the signal
    that killed the worker, or "", "unknown" or `HUNG`. `cause` is the error that ended the worker, if it is known.
    If a replacement could not be started, `unborn` says why. `phrase` is the text with which torch's loader would
    report the death.

    >>> from penstock.backends import HUNG
    >>> lost = Lost(2, seq=7, at=0, who="worker 2 (pid 8127)", how="was killed", signal=HUNG, cause=None)
    >>> lost.who, lost.signal == HUNG
    ('worker 2 (pid 8127)', True)
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
    """Reports that a worker has exited because it was asked to. The worker was not running a task."""

    worker: int


class Doing(NamedTuple):
    """A description of what a worker is doing, for messages.

    `who` names the worker ("worker 2 (pid 8127)"), and `stack` lists its calls, innermost first. `seq` is the number
    of the task that the worker is running, or None. `epoch` and `step` identify the current step of that task.
    `likely` is the likely cause of a hang, together with a remedy, or "" if the worker's state does not show a cause.
    """

    who: str
    stack: str = ""
    seq: int | None = None
    epoch: int = -1
    step: int = -1
    likely: str = ""


HUNG = "hung"
"""The value of `Lost.signal` for a worker that was killed because it hung."""

# The most seconds that one system call waits. A longer timeout takes several calls.
LONGEST_WAIT = 3600.0

Outcome = Filled | Failed | Bundle | Ended | Lost | Left


class Backend(Protocol):
    """Runs workers for the engine. The engine sends tasks with `post`, and gets outcomes from `poll`, in any order.

    Only one thread at a time calls a backend, except that any thread may call `wake` at any time. The backend owns
    the memory of all slabs (blocks of memory that batches are written to). The engine refers to a slab by its number.

    Derive from this class to inherit defaults for all attributes except `gauges`, and for all methods that are not
    abstract.
    """

    gauges: Gauges
    """The workers' counters. Use `Gauges(None)` if the workers count nothing."""
    most_steps: int = 1
    """The maximum number of steps in one task."""
    copies_dataset: bool = True
    """True if each worker gets a copy of the dataset when it starts. False if workers use the caller's object."""
    leaves_nothing: bool = False
    """True if the backend may be dropped without being closed."""
    shares_gauges: bool = False
    """True if workers update their counters (`gauges`) at any time, even during a task.

    False if the counters change only when an outcome arrives.
    """
    handles: Mapping[int, Any] = MappingProxyType({})
    """The last worker process in each seat (worker slot), dead or alive.

    Empty if workers are not processes on this machine.
    """

    def clock(self) -> float:
        """Returns the time in seconds, for timeouts. This is `time.monotonic()`, unless time is simulated."""
        return time.monotonic()

    @property
    @abstractmethod
    def workers(self) -> list[Any]:
        """The live worker processes, sorted by seat (worker slot). The list is empty if the workers are threads.

        Each element is a handle similar to `multiprocessing.Process`.
        """

    @abstractmethod
    def hire(self, worker: int, seat: int) -> None:
        """Starts the worker with this number, in this seat (worker slot).

        Worker numbers are never reused. A seat has only one worker at a time.
        """

    @abstractmethod
    def retire(self, seat: int = -1) -> None:
        """Asks one worker to exit: the first one that finishes its current step. `poll` reports the exit as `Left`.

        If tasks are assigned to particular workers, the worker in `seat` exits instead, after all its tasks.
        """

    @abstractmethod
    def retain(self) -> int:
        """Withdraws the exit requests that no worker has accepted yet. Returns their number without waiting."""

    @abstractmethod
    def post(self, task: Task, slab: int, seat: int) -> None:
        """Offers the task to the first free worker, or to the worker in `seat` if `seat` is not -1.

        Workers learn of the task at the next `flush` at the latest. The worker writes the batch to `slab`. No live
        array may use the memory of this slab. If the keys cannot be sent to a worker, raises an error and posts
        nothing.
        """

    def cool(self, slab: int) -> None:
        """Frees the memory pages of an unused slab (memory for a batch). The slab may be used again later."""
        return

    @abstractmethod
    def encode(self, change: Change) -> bytes:
        """Encodes a change to the dataset as bytes, for `update`. Raises an error if the change cannot be sent."""

    @abstractmethod
    def update(self, change: bytes) -> None:
        """Sends the workers a change to the dataset. The change applies to all tasks posted from now on."""

    def flush(self) -> None:
        """Makes sure that the workers know of all posted tasks."""
        return

    @abstractmethod
    def rescind(self, seq: int) -> bool:
        """Takes back a task that no worker has started. Returns False if a worker has already started the task."""

    @abstractmethod
    def poll(self, timeout: float | None) -> list[Outcome]:
        """Returns the outcomes since the last call. If there are none, waits for one, for at most `timeout` seconds.

        The list may also be empty before the timeout has passed.
        """

    def has_dead(self) -> bool:
        """True if a worker is dead and `poll` has not reported it yet.

        A backend that learns of deaths only in `poll` always returns False.
        """
        return False

    @abstractmethod
    def open(self, outcome: Filled) -> object:
        """Returns the batch of an outcome. The batch's arrays are views of `outcome.root`."""

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Returns two sizes in bytes: the slabs (memory for batches), and the batches outside slabs."""

    @abstractmethod
    def doing(self, seq: int | None) -> list[Doing]:
        """Describes, for messages, the workers that are running this task or, if none is, all busy workers."""

    def end_hung(self, seconds: float) -> list[Doing]:
        """Kills the workers that have been running the same task for more than this many seconds.

        Returns descriptions of what these workers were doing. `poll` reports each killed worker as `Lost`. This
        method is called only if the backend was registered with `kills=True`.
        """
        return []

    @abstractmethod
    def wake(self) -> None:
        """Makes a thread that is waiting in `poll` return, even if there is no outcome.

        If no thread is waiting, the next call to `poll` returns at once.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the workers without waiting for their tasks.

        This method may be called again, for example after an interrupt.
        """


MakeBackend = Callable[[Job, Any], Backend]
"""Makes a backend from a job and the value of the loader's argument for this backend (see `register`)."""


def _nothing(*given: Any) -> None:
    """Serves as the default `check`, which accepts everything, and as the default `room`, which sets no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A registered backend. The fields are the arguments of `register`."""

    make: MakeBackend
    argument: str | None = None
    check: Callable[[Any, int], object] = _nothing
    room: Callable[[Any], int | None] = _nothing
    kills: bool = True
    threads: bool = False
    needs_workers: bool = False

    def given_in(self, arguments: Mapping[str, Any]) -> Any:
        return None if self.argument is None else arguments.get(self.argument)


ARGUMENT = "backend_options"
"""The name of the loader's argument for backends that declare no other argument."""

INLINE, THREAD, PROCESS = "inline", "thread", "process"
DEFAULT: Literal["process", "thread"] = "process" if HAS_PROCESSES else "thread"
"""The backend of a loader that has workers but does not name a backend."""

TABLE: dict[str, Registered] = {}
"""All backends by name: penstock's own (see `_ours.py`), and those registered by other code."""


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

    If a backend with this name is already registered, it is replaced.

    - `argument` is the name of the `DataLoader` argument whose value is passed to `make`, `check` and `room` as
      `given`. It is "backend_options", or "multiprocessing_context" for a backend that starts processes. If it is
      None, the backend takes no options.
    - `check(given, num_workers)` is called when a loader is created, and raises if the backend cannot work with these
      values. `given` is None if the user passed nothing.
    - `room(given)` returns how many workers fit on the machines that the backend uses, as a limit for
      `num_workers="auto"`. It returns None if the workers run on this machine, or if the number is not known.
    - `kills` says whether `end_hung` can kill workers. If it is False, `hang=` is refused.
    - `threads` says whether the workers are threads of the calling process, which share its random generators. If it
      is True, `hang=` is refused too, and `penstock.torch` refuses the backend, because the workers of
      `penstock.torch` seed torch's global generator.
    - `needs_workers` says whether `num_workers=0` is refused. If it is False, `num_workers=0` loads in the calling
      process.
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
    """Removes a backend, so that `backend=name` is refused from now on. Existing loaders keep their workers."""
    del TABLE[name]


def known() -> list[str]:
    """Returns the names that `backend=` accepts."""
    return [name for name in TABLE if name != INLINE]


def registered(name: str) -> Registered:
    return TABLE[name]


def arguments() -> list[str]:
    return sorted({ARGUMENT, *(each.argument for each in TABLE.values() if each.argument is not None)})


def make(name: str, job: Job, given: Any = None) -> Backend:
    """Makes a backend for this job. The new backend has no workers yet.

    >>> import penstock
    >>> from penstock.backends import Job, known, make, register, unregister
    >>> def announced(job: Job, given):
    ...     print(job.num_workers, "workers for", job.dataset)
    ...     return make("thread", job)
    >>> register("announced", announced)
    >>> with penstock.DataLoader(range(2), num_workers=2, backend="announced") as loader:
    ...     [batch.item() for batch in loader]
    2 workers for range(0, 2)
    [0, 1]
    >>> "announced" in known()
    True
    >>> unregister("announced")
    """
    return TABLE[name].make(job, given)
