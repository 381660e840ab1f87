"""The one table of backends, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock._work.runner import Job
from penstock.backends._base import Backend

Make = Callable[[Job, Any], Backend]
"""Makes a backend for a job; the second argument is `multiprocessing_context=` as the user gave it."""


def _inline(job: Job, context: Any) -> Backend:
    from penstock.backends._local import InlineBackend

    return InlineBackend(job)


def _thread(job: Job, context: Any) -> Backend:
    from penstock.backends._local import ThreadBackend

    return ThreadBackend(job)


def _process(job: Job, context: Any) -> Backend:
    from penstock.backends._process.backend import ProcessBackend
    from penstock.backends._process.methods import choose_method

    return ProcessBackend(job, choose_method(context), explicit=context is not None)


class Entry(NamedTuple):
    """A backend in the table. `processes`: its workers are processes, started by a method of multiprocessing."""

    make: Make
    processes: bool = False


# Each imports what it needs when it is first used: processes take some 10 ms.
_TABLE: dict[str, Entry] = {"inline": Entry(_inline), "process": Entry(_process, True), "thread": Entry(_thread)}

DEFAULT = "process"


def register(name: str, make: Make) -> None:
    """From now on `DataLoader(..., backend=name)` runs its workers on what `make(job, context)` returns.

    A name that is registered already is replaced.
    """
    if not name.isidentifier():
        raise ValueError(f"The name of a backend must be an identifier, got {name!r}.")
    _TABLE[name] = Entry(make)


def unregister(name: str) -> None:
    """`backend=name` is not known any more. Loaders that were made keep their workers."""
    del _TABLE[name]


def known() -> list[str]:
    """The names that `backend=` takes."""
    return [name for name in _TABLE if name != "inline"]


def has_processes(name: str) -> bool:
    return _TABLE[name].processes


def make(name: str, job: Job, context: Any = None) -> Backend:
    return _TABLE[name].make(job, context)
