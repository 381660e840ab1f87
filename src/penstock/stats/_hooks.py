"""Passes the figures of all loaders to the user's functions at regular intervals, and logs a line for each epoch.

A function runs in the thread that reads the loader, inside `next()`. A function that raises an exception is removed
with a warning, so that it cannot break a training run.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import cache
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING

from penstock._printable import printable
from penstock._system.interrupts import interrupts_deferred

if TYPE_CHECKING:  # `import penstock` imports this module, and must be fast
    import logging

    from penstock.stats._figures import Stats

# All hooks that are not closed. Every change and every copy is one atomic operation, so no thread sees half a change.
_hooks: dict[StatsHook, None] = {}


class StatsHook:
    """A function that receives the figures of loaders until `close()` is called or the `with` block ends."""

    def __init__(self, function: Callable[[Stats], object], every: float) -> None:
        self.function, self.every = function, every
        self._pid = os.getpid()
        self._threads: set[int] = set()  # the threads that are calling the function now

    def call(self, stats: Stats) -> None:
        """Calls the function. Does nothing in a forked child, or if this thread is already inside the function."""
        me = get_ident()
        if os.getpid() != self._pid or me in self._threads:
            return
        self._threads.add(me)
        try:
            self.function(stats)
        except Exception as error:
            self.close()
            warnings.warn(
                printable(
                    f"{_name(self.function)} was given to penstock.on_stats, raised {type(error).__name__}: {error}, "
                    "and was removed: it gets no more figures."
                ),
                stacklevel=2,
            )
        finally:
            self._threads.discard(me)

    def close(self) -> None:
        """Removes the function, so that it receives no more figures."""
        _hooks.pop(self, None)

    def __enter__(self) -> StatsHook:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def on_stats(function: Callable[[Stats], object], every: float = 10.0) -> StatsHook:
    """Calls `function(stats)` for every loader of this process, every `every` seconds and at the end of each epoch.

    The function runs in the thread that reads the loader, inside `next()`. It should be quick, because your loop
    waits for it. A function that raises an exception is removed with a warning. Returns a context manager: the end of
    the `with` block, or its `close()` method, removes the function.

        >>> import penstock
        >>> seen = []
        >>> with penstock.on_stats(lambda stats: seen.append(stats.epoch.batches)):
        ...     for batch in penstock.DataLoader(range(100), batch_size=10):
        ...         pass
        >>> seen
        [10]
    """
    if not callable(function):
        raise TypeError(f"function must be callable, got {type(function).__name__}.")
    if isinstance(every, bool) or not isinstance(every, (int, float)) or not every > 0:
        raise ValueError(f"every must be a positive number of seconds, got {every!r}.")
    hook = StatsHook(function, every)
    _hooks[hook] = None
    return hook


class Turns:
    """Decides when each hook receives the figures of one loader. Times are values of `time.perf_counter`."""

    def __init__(self) -> None:
        self._next: dict[StatsHook, float] = {}
        self._ended: tuple[int, int] | None = None  # the number of epochs and batches when the last epoch ended

    def due(self, now: float) -> list[StatsHook]:
        """Returns the hooks that are due. This takes less than a microsecond if there are no hooks."""
        if not _hooks:
            return []
        return [hook for hook in _hooks.copy() if now >= self._next.setdefault(hook, now + hook.every)]

    def tick(self, now: float, stats: Callable[[], Stats]) -> None:
        if hooks := self.due(now):
            self._call(hooks, now, stats())

    def epoch_ended(self, now: float, stats: Callable[[], Stats]) -> None:
        """Passes the result of `stats()` to all hooks, and logs a line. Does nothing if called again for an epoch."""
        logs = _logger_is_on()
        if _hooks or logs:
            figures = stats()
            ended, self._ended = self._ended, (figures.life.epochs, figures.life.batches)
            if ended == self._ended:
                return
            if logs:
                _log(figures)
            self._call(list(_hooks), now, figures)

    def _call(self, hooks: list[StatsHook], now: float, stats: Stats) -> None:
        # Closed hooks are dropped.
        self._next = {hook: at for hook, at in self._next.copy().items() if hook in _hooks}
        for hook in hooks:
            self._next[hook] = now + hook.every
            hook.call(stats)


@cache
def _logger() -> logging.Logger:
    import logging

    with interrupts_deferred():  # an interrupt here could leave logging's own lock locked forever
        return logging.getLogger("penstock")


def _logger_is_on() -> bool:
    # A program that has not imported logging has no handler for the line, so the import is not worth its time.
    logging = sys.modules.get("logging")
    if logging is None:
        return False
    logger = _logger()
    # Like `isEnabledFor`, but without taking a lock.
    on: bool = logger.getEffectiveLevel() <= logging.INFO > logger.manager.disable
    return on and not logger.disabled


def _log(stats: Stats) -> None:
    from penstock.stats._units import count, seconds, share
    from penstock.stats._verdict import rule_of

    epoch, verdict = stats.epoch, stats.verdict if rule_of(stats) else ""
    text = (
        f"{stats.name}: epoch {stats.epoch_number}: {count(epoch.batches)} batches in {seconds(epoch.seconds)} "
        f"({count(epoch.rate)} a second), waited for data {share(epoch.waiting)} of the time. {verdict}"
    )
    _logger().info("%s", text.rstrip())


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
