"""Makes workers look like processes that multiprocessing started.

Libraries ask multiprocessing whether they are running in a worker (`current_process()`, `parent_process()`), watch
workers (`active_children()`), and authenticate themselves to managers and queues (`authkey`). So the parent registers
a handle for each worker, and a worker runs `main`, and then the exit functions, the way multiprocessing would.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from penstock._system.platform import register_at_fork

# Has `_process_counter`, which numbers the children of this process, and `_children`, the live ones.
_known: Any = multiprocessing.process

# From Python 3.13 on, the exit functions that the child has registered run after `_bootstrap`, not inside it.
_EXITS_AFTERWARDS = sys.version_info >= (3, 13)
_atexit: Any = atexit


class Lineage(NamedTuple):
    """The settings that multiprocessing passes on to child processes, in a form that marshal can write."""

    identity: tuple[int, ...]
    config: dict[str, Any]
    pid: int
    name: str
    method: str  # the start method

    @classmethod
    def of_children(cls, method: str) -> Lineage:
        parent: Any = multiprocessing.current_process()
        inherited = {name: value for name, value in parent._config.items() if isinstance(value, (str, bytes))}
        config = {**inherited, "authkey": bytes(parent.authkey), "daemon": True}
        return cls(parent._identity, config, os.getpid(), parent.name, method)


def next_child() -> int:
    return int(next(_known._process_counter))


class Relative(BaseProcess):
    """A process with the name, flags and authentication key that multiprocessing would give it."""

    def __init__(self, lineage: Lineage, child: int) -> None:
        # BaseProcess.__init__ is not called, because it describes a child that this process is about to start.
        self._identity = (*lineage.identity, child)
        self._name = "Process-" + ":".join(map(str, self._identity))
        self._config = {**lineage.config, "authkey": _known.AuthenticationString(lineage.config["authkey"])}
        self._parent_pid, self._parent_name = lineage.pid, lineage.name
        self._popen: Any = None
        self._closed = False


class CurrentWorker(Relative):
    """The object that `multiprocessing.current_process()` returns in a worker."""

    def __init__(self, lineage: Lineage, child: int) -> None:
        super().__init__(lineage, child)
        self._start_method = lineage.method
        self._work: Callable[[], object] = bool

    def live(self, work: Callable[[], None], parent_sentinel: int) -> int:
        """Runs `work` the way multiprocessing runs a process's target, and returns the exit code."""
        self._work = work
        if not _EXITS_AFTERWARDS:
            return int(self._bootstrap(parent_sentinel))  # type: ignore[attr-defined]
        if self._start_method != "spawn":
            _atexit._clear()  # the functions that the parent has registered
            _atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
        try:
            return int(self._bootstrap(parent_sentinel))  # type: ignore[attr-defined]
        finally:
            _atexit._run_exitfuncs()

    def run(self) -> None:
        self._work()


@contextmanager
def inheriting(itself: Relative) -> Iterator[None]:
    """Sets the name and key with which a worker unpickles. `CurrentWorker.live` later registers manager proxies."""
    current: Any = multiprocessing.current_process()
    current.name, current.authkey, current._inheriting = itself.name, itself.authkey, True
    try:
        yield
    finally:
        del current._inheriting


class Child(Relative):
    """A worker in the list of `multiprocessing.active_children()`. The subclass `WorkerProcess` adds a handle."""

    def register(self) -> None:
        self._popen = _ChildPopen(self)
        _known._children.add(self)

    def unregister(self) -> None:
        self._popen = None
        _known._children.discard(self)


class _ChildPopen:
    """Stands in for multiprocessing's Popen in `active_children()` and at the interpreter's exit."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def poll(self) -> int | None:
        return self._child.exitcode

    def terminate(self) -> None:
        # The worker is not ended here, because multiprocessing would then wait for it, and it may ignore SIGTERM. The
        # engine's finalizer ends it.
        _known._children.discard(self._child)


def _disown() -> None:
    """Makes a forked process forget its parent's workers, so that it neither lists nor terminates them."""
    _known._children = {child for child in _known._children if not isinstance(child, Child)}


register_at_fork(after_in_child=_disown)
