"""One object per thread, such as a counter: if threads shared a counter, some increments would be lost."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Generic, TypeVar

T = TypeVar("T")


class PerThread(Generic[T]):
    """One object per thread, made by `make` when the thread first asks for it. Any thread may read all objects.

    A single object with a lock was rejected. There would be a deadlock if the process forked while a thread held the
    lock, or if a finalizer that needs the lock ran in a thread that held the lock.
    """

    __slots__ = ("_by_thread", "_make")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._by_thread: dict[int, T] = {}  # the id of a thread that has ended may be used again

    def mine(self) -> T:
        thread = get_ident()
        found = self._by_thread.get(thread)
        if found is None:
            found = self._by_thread[thread] = self._make()
        return found

    def all(self) -> list[T]:
        return [*self._by_thread.copy().values()]

    def sums(self, read: Callable[[T], tuple[int, ...]], first: T) -> tuple[int, ...]:
        """Returns the sums of the numbers that `read` finds in `first` and in the object of each thread."""
        if not self._by_thread:
            return read(first)
        return tuple(map(sum, zip(*map(read, [first, *self.all()]), strict=True)))
