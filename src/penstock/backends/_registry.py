"""The one table of backends, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock._work.job import Job
from penstock.backends._base import Backend

Make = Callable[[Job, Any], Backend]
"""Makes a backend for a job; the second argument is `multiprocessing_context=` as the user gave it."""


def _inline(job: Job, context: Any) -> Backend:
    from penstock.backends._inline import InlineBackend

    return InlineBackend(job)


def _thread(job: Job, context: Any) -> Backend:
    from penstock.backends._threads import ThreadBackend

    return ThreadBackend(job)


def _process(job: Job, context: Any) -> Backend:
    from penstock.backends._process.backend import ProcessBackend
    from penstock.backends._process.methods import choose_method

    return ProcessBackend(job, choose_method(context), explicit=context is not None)


# Each imports what it needs when it is first used: processes take some 10 ms.
_MAKERS: dict[str, Make] = {"inline": _inline, "process": _process, "thread": _thread}


def register(name: str, make: Make) -> None:
    """From now on `DataLoader(..., backend=name)` runs its workers on what `make(job, context)` returns.

    A name that is registered already is replaced.
    """
    if not name.isidentifier():
        raise ValueError(f"The name of a backend must be an identifier, got {name!r}.")
    _MAKERS[name] = make


def known() -> list[str]:
    """The names that `backend=` takes."""
    return [name for name in _MAKERS if name != "inline"]


def make(name: str, job: Job, context: Any = None) -> Backend:
    return _MAKERS[name](job, context)
