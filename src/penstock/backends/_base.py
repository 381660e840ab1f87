"""What a backend is to the engine, and the one table of backends, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from penstock._measure.gauges import Gauges
from penstock._system.interrupts import import_whole
from penstock._wire.task import Bundle, Ended, Failed, Filled, Task
from penstock._wire.updates import Change
from penstock._work.job import Job


class Lost(NamedTuple):
    """A worker is dead; `seq` is the task that it had in its hands, `at` which of its steps, the first being 0.

    `unborn`: why no other could be started in its place, where that was tried. `phrase`: how torch's loader says it.
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
    """A worker has left because it was asked to; it had no step in hand."""

    worker: int


class Doing(NamedTuple):
    """`who` is "worker 2 (pid 8127)"; `stack` its calls, the innermost first, a line each.

    `seq` is the task that it has in hand, or None, and `epoch` and `step` say which of its steps it is at.
    `likely` is the likely cause of a hang that the worker's state shows, with what to do; "" if it shows none.
    """

    who: str
    stack: str = ""
    seq: int | None = None
    epoch: int = -1
    step: int = -1
    likely: str = ""


HUNG = "hung"
"""In the place of a signal: the worker was killed because it hung."""

# Seconds that the system is asked to wait at once; longer timeouts are waited for in turns.
LONGEST_WAIT = 3600.0

Outcome = Filled | Failed | Bundle | Ended | Lost | Left


class Backend(Protocol):
    """Tasks go out by `post`, and come in by `poll`, in any order. One thread calls it.

    Memory belongs to the backend: the engine names slabs by number, and the backend has memory for each.
    """

    most_steps: int
    """How many steps a task may have."""
    copies_dataset: bool
    """Whether workers have a copy of the dataset, made when they were started, and not the caller's own object."""
    leaves_nothing: bool
    """Whether it may be forgotten without being closed."""
    gauges: Gauges
    """What its workers count. `Gauges(None)` if they count nothing."""

    def clock(self) -> float:
        """Seconds that timeouts are measured in: `time.monotonic()`, unless time is simulated."""

    @property
    def workers(self) -> list[Any]:
        """Handles of the living worker processes, by seat."""

    def hire(self, worker: int, seat: int) -> None:
        """Starts a worker."""

    def retire(self, seat: int = -1) -> None:
        """Asks one worker, whichever is free first, to leave after its present step: `poll` tells of it as `Left`.

        Where tasks are for certain workers, it is the one in `seat` that leaves, after all its tasks.
        """

    def retain(self) -> int:
        """Withdraws the requests to leave that no worker has taken yet, and returns how many. It never waits."""

    def post(self, task: Task, slab: int, seat: int) -> None:
        """Offers the task to whichever worker is free, or to the one in `seat`, at the latest at the next `flush`.

        Its batch goes into the memory of `slab`, which no live array looks into. Keys that cannot be sent to a worker
        raise, and then nothing was posted.
        """

    def cool(self, slab: int) -> None:
        """Gives the pages of a free slab back to the system. It may be posted again."""

    def encode(self, change: Change) -> bytes:
        """The change as bytes, for `update`. One that cannot be sent raises."""

    def update(self, change: bytes) -> None:
        """What is posted from now on is done by workers whose dataset has this change."""

    def flush(self) -> None:
        """Makes sure that what was posted is known to the workers."""

    def rescind(self, seq: int) -> bool:
        """Takes back a task that no worker has begun; False if one has."""

    def poll(self, timeout: float | None) -> list[Outcome]:
        """What happened since; waits for something to happen, at most `timeout` seconds.

        It may come back with nothing before that.
        """

    def open(self, outcome: Filled) -> object:
        """The batch."""

    def memory(self) -> tuple[int, int]:
        """Bytes that batches take: in slabs, and elsewhere."""

    def doing(self, seq: int | None) -> list[Doing]:
        """Who has the task in hand, and is at what: for a message. If nobody has, all who are at anything."""

    def end_hung(self, seconds: float) -> list[Doing]:
        """Kills the workers that have had one task for longer than this: `poll` tells of each as `Lost`.

        Returns what they did. Not called with threads, which cannot be killed.
        """

    def wake(self) -> None:
        """Makes a `poll` that another thread waits in come back, be it with nothing."""

    def close(self) -> None:
        """Ends the workers without waiting for what they do. Where it was interrupted, it goes on."""


Make = Callable[[Job, Any], Backend]
"""Makes a backend for a job; the second argument is `multiprocessing_context=` or `ray_options=` as it was given."""


# Each imports what it needs when it is first used: processes take some 10 ms.


def _inline(job: Job, context: Any) -> Backend:
    import_whole("penstock.backends._local")
    from penstock.backends._local import InlineBackend

    return InlineBackend(job)


def _thread(job: Job, context: Any) -> Backend:
    import_whole("penstock.backends._local")
    from penstock.backends._local import ThreadBackend

    return ThreadBackend(job)


def _process(job: Job, context: Any) -> Backend:
    import_whole("penstock.backends._process.backend")
    from penstock.backends._process.backend import start
    from penstock.backends._process.methods import choose_method, is_chosen

    return start(job, choose_method(context), explicit=is_chosen(context))


def _ray(job: Job, options: Any) -> Backend:
    import_whole("penstock.backends._ray.backend")
    from penstock.backends._ray.backend import start
    from penstock.backends._ray.settings import check

    options = check(options or {})
    try:
        from penstock.backends._ray.cluster import RayCluster
    except ImportError as error:
        remedy = 'pip install ".[ray]" in a clone of penstock'
        raise RuntimeError(f'backend="ray" needs Ray ({error}): {remedy}.') from error
    patience = options.pop("patience")
    return start(job, RayCluster(options), patience)


DEFAULT = "process"

_TABLE: dict[str, Make] = {"inline": _inline, DEFAULT: _process, "thread": _thread, "ray": _ray}


def register(name: str, make: Make) -> None:
    """From now on `DataLoader(..., backend=name)` runs its workers on what `make(job, context)` returns.

    A name that is registered already is replaced.
    """
    if not name.isidentifier():
        raise ValueError(f"The name of a backend must be an identifier, got {name!r}.")
    _TABLE[name] = make


def unregister(name: str) -> None:
    """`backend=name` is not known any more. Loaders that were made keep their workers."""
    del _TABLE[name]


def known() -> list[str]:
    """The names that `backend=` takes."""
    return [name for name in _TABLE if name != "inline"]


def has_processes(name: str) -> bool:
    """True if the workers are processes, started by a method of multiprocessing."""
    return _TABLE[name] is _process


def is_ray(name: str) -> bool:
    """True if the workers are actors of a Ray cluster."""
    return _TABLE[name] is _ray


def can_kill(name: str) -> bool:
    """True if a worker that hangs can be killed."""
    return _TABLE[name] not in (_inline, _thread)


def room(name: str, context: Any) -> int | None:
    """How many workers have room on the cluster; None if they run on this machine, or there is no cluster yet."""
    if not is_ray(name):
        return None
    from penstock.backends._ray.settings import check

    try:
        from penstock.backends._ray.cluster import room
    except ModuleNotFoundError:
        return None
    return room(check(context or {}))


def make(name: str, job: Job, context: Any = None) -> Backend:
    return _TABLE[name](job, context)
