"""Start methods: which of fork, spawn and forkserver starts the workers."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

import numpy  # noqa: F401  (its BLAS starts threads, which must exist when the threads are counted)

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

METHODS = ("fork", "spawn", "forkserver")
_MUST_BE = f"multiprocessing_context must be one of {', '.join(METHODS)}"


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


# Threads that Python does not know, right after the import of numpy: those of OpenBLAS, which stops them before a
# fork and starts them again after it. Threads that come later are not known to survive a fork. OpenBLAS has one
# thread less than there are cores, so any more than that belong to another library already now.
_NATIVE_THREADS = min(_threads() - threading.active_count(), (os.cpu_count() or 1) - 1)

# Libraries whose threads hold locks at almost any moment, or which refuse to work in a forked child.
_NEVER_FORKED = ("jax", "jaxlib", "tensorflow", "grpc")


def choose_method(asked: str | BaseContext | None) -> str:
    """The start method to use: the requested one, else the one set in multiprocessing, else a safe one.

    The safe one is fork while this process is single-threaded, because fork is fastest and sends nothing; else
    forkserver, because a fork copies the locks that other threads hold, and no thread in the child releases them.

    Where fork is multiprocessing's default, finding fork set there does not count as a choice: multiprocessing fixes
    its default as soon as a program makes a lock, as tqdm does, and that looks the same.
    """
    # If no module has imported multiprocessing, it holds no choice, and `asked` is no context of it.
    multiprocessing = sys.modules.get("multiprocessing")
    if asked is None and multiprocessing is not None:
        asked = multiprocessing.get_start_method(allow_none=True)
        if asked == "fork" == multiprocessing.get_all_start_methods()[0]:
            asked = None
    elif asked is not None and not isinstance(asked, str):
        if multiprocessing is None or not isinstance(asked, multiprocessing.context.BaseContext):
            raise TypeError(f"{_MUST_BE}, or a multiprocessing context, not {type(asked).__name__}")
        asked = asked.get_start_method(allow_none=True)
    if asked is None:
        return "fork" if survives_fork() else "forkserver"
    if asked not in METHODS:
        raise ValueError(f"{_MUST_BE}, not {asked!r}")
    return asked


def survives_fork() -> bool:
    """True if a fork of this process copies no lock that another thread may hold."""
    if threading.active_count() > 1 or _threads() - 1 > _NATIVE_THREADS:
        return False
    return not any(name in sys.modules for name in _NEVER_FORKED)
