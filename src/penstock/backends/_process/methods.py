"""Chooses the start method of worker processes: fork, spawn or forkserver."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock._system.interrupts import import_whole
from penstock._system.warnings import warn_caller
from penstock.backends._process.forking import obstacle

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

METHODS = ("fork", "spawn", "forkserver")
_MUST_BE = f"multiprocessing_context must be one of {', '.join(METHODS)}"


def choose_method(asked: str | BaseContext | None) -> str:
    """Returns the requested start method, else the method set in multiprocessing, else a safe method."""
    method, is_pythons = _asked(asked)
    used = method or _configured() or _safe()
    if not is_pythons:  # only the start method of a library's context is used, if penstock knows it
        _warn(f"The multiprocessing_context {type(asked).__module__}.{type(asked).__qualname__}", used)
    return used


def is_chosen(asked: str | BaseContext | None) -> bool:
    """True if `asked` names a start method. False if it leaves the choice to penstock."""
    return _asked(asked)[0] is not None


def configured_method() -> str:
    """Returns the start method set in multiprocessing, or multiprocessing's default if none is set."""
    import_whole("multiprocessing")
    import multiprocessing

    method = multiprocessing.get_start_method()
    return method if method in METHODS else choose_method(None)


def _configured() -> str | None:
    """Returns the start method that the program has set in multiprocessing, or None."""
    # If multiprocessing is not imported, the program has set nothing there.
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return None
    method: str | None = multiprocessing.get_start_method(allow_none=True)
    # The default (fork; from Python 3.14 on, forkserver) does not count as a choice: multiprocessing sets it when a
    # program makes a lock, as tqdm does.
    if method == multiprocessing.get_all_start_methods()[0]:
        return None
    # A library may have set a method of its own, as in joblib's workers: the program did not choose it.
    return method if method in METHODS else None


def _safe() -> str:
    # fork is fastest and sends nothing, but copies the locks that other threads hold.
    return "fork" if survives_fork() else _without_fork


_without_fork = "forkserver"  # the default method if this process must not be forked
_told: set[bool] = set()


def give_up_templates(obstacle: str, *, asked: bool) -> None:
    """Makes spawn, not forkserver, the default. If the program `asked` for forkserver, warns once; else logs once."""
    global _without_fork
    _without_fork = "spawn"
    if asked in _told:
        return
    _told.add(asked)
    text = (
        "Workers are started by spawn and not by forkserver: unpickling the dataset has made the process from which "
        f"workers are forked unsafe to fork ({obstacle}). Each worker imports and unpickles for itself. Give "
        'multiprocessing_context="spawn" to confirm this.'
    )
    if asked:
        warn_caller(text)
    else:
        import logging  # late: it takes 1.5 ms, which the first batch would wait for

        logging.getLogger("penstock").info(text)


def _asked(asked: Any) -> tuple[str | None, bool]:
    """Returns the requested start method, and False if `asked` is another library's context, otherwise True.

    The method is None if no method was requested, or if penstock does not know the method of that context.
    """
    if asked is None:
        return None, True
    if isinstance(asked, str):
        if asked not in METHODS:
            raise ValueError(f"{_MUST_BE}, not {asked!r}")
        return asked, True
    is_context = callable(getattr(asked, "get_start_method", None)) and hasattr(asked, "Process")
    if isinstance(asked, type) or not is_context:
        raise TypeError(f"{_MUST_BE}, or a multiprocessing context, not {type(asked).__name__}")
    process, names = asked.Process, list[Any]()
    with suppress(Exception):  # the code of a library
        names.append(asked.get_start_method(allow_none=True))
        if names == [None]:  # the default context, and no method is set
            return None, True
    # A subclass of one of Python's contexts may have another name; its processes are started in the same way.
    names += [getattr(base, "_name", None) for base in type(asked).__mro__]
    names += [getattr(process, "_start_method", None)]
    method = next((name for name in names if name in METHODS), None)
    return method, method is not None and _is_pythons(process)


def _is_pythons(process: Any) -> bool:
    """True for multiprocessing's own Process classes, and for the `Process` method of its default context."""
    return getattr(process, "__module__", "").partition(".")[0] == "multiprocessing"


@cache
def _warn(what: str, used: str) -> None:
    warn_caller(
        f"{what} is not one of Python's own. penstock starts its workers itself, by {used}, and does not use the "
        f'Process class of the context. Give multiprocessing_context="{used}" to confirm this, or another of '
        f"{', '.join(METHODS)}.",
        UserWarning,
    )


def survives_fork() -> bool:
    return not obstacle()
