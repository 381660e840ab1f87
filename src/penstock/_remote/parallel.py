"""Makes many network calls at the same time, in threads that end when the calls are done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from penstock._at_work import at_work
from penstock._system.threads import started

A = TypeVar("A")
T = TypeVar("T")
Pause = Callable[[float], object]


class Abandoned(Exception):
    """Raised in a call whose result is no longer wanted."""


def in_parallel(call: Callable[[A, Pause], T], items: Iterable[A], threads: int) -> Iterator[T]:
    """Yields `call(item, pause)` for each item, in order, computing up to `2 * threads` results ahead.

    To wait, `call` must use `pause(seconds)`, which raises if the result is no longer needed. The threads are daemon
    threads, so that Ctrl-C does not wait for requests in flight.
    """
    items = list(items)
    if threads < 2 or len(items) < 2:
        for item in items:
            yield call(item, time.sleep)
    else:
        yield from _in_threads(call, items, min(threads, len(items)))


def interruptibly(call: Callable[[], T]) -> T:
    """Returns `call()`. In the main thread, makes the call in another thread, so that Ctrl-C works at once."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    (result,) = _in_threads(lambda *_: call(), [None], 1)
    return result


def _in_threads(call: Callable[[A, Pause], T], items: list[A], threads: int) -> Iterator[T]:
    run = _ParallelRun(call, items, 2 * threads)
    try:
        workers = [started("penstock-request", run.work, run.end) for _ in range(threads)]
        for number in range(len(items)):
            yield run.result(number)
    finally:
        run.end()
    for worker in workers:  # so that this process can be forked safely
        worker.join()


class _ParallelRun:
    def __init__(self, call: Callable[[Any, Pause], Any], items: list[Any], ahead: int) -> None:
        self._call, self._items, self._ahead = call, items, ahead
        self._source = at_work.source  # the threads count for the worker that waits for them
        self._results: dict[int, tuple[Any, BaseException | None]] = {}
        self._next = self._taken = 0
        self._ended = threading.Event()
        self._changed = threading.Condition()

    def work(self) -> None:
        at_work.source = self._source
        while (number := self._draw()) is not None:
            self._put(number, self._called(self._items[number]))

    def _called(self, item: Any) -> tuple[Any, BaseException | None]:
        try:
            return self._call(item, self._pause), None
        except BaseException as error:
            return None, error

    def _put(self, number: int, result: tuple[Any, BaseException | None]) -> None:
        with self._changed:
            if not self._ended.is_set():  # the traceback of an error would keep this object alive
                self._results[number] = result
            self._changed.notify_all()

    def _draw(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended.is_set() or self._next < self._taken + self._ahead)
            if self._ended.is_set() or self._next == len(self._items):
                return None
            self._next += 1
            return self._next - 1

    def _pause(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise Abandoned

    def result(self, number: int) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: number in self._results)
            value, error = self._results.pop(number)
            self._taken = number + 1
            self._changed.notify_all()
        try:
            if error is not None:
                raise error
            return value
        finally:
            del error  # its traceback refers to this frame, which would be a cycle

    def end(self) -> None:
        self._ended.set()
        with self._changed:
            self._changed.notify_all()
