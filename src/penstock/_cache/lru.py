"""An in-memory cache with a size limit in bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable
from itertools import count
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Kept(Generic[T]):
    __slots__ = ("nbytes", "used", "value")

    def __init__(self, value: T, nbytes: int, used: int) -> None:
        self.value, self.nbytes, self.used = value, nbytes, used


class LruCache(Generic[K, T]):
    """Caches up to `most` bytes. Drops the least recently used values, but always keeps at least one value.

    If several threads request a missing value, one thread reads the value and the others wait.
    A forked child inherits the values.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.dropped = 0
        self.needed: set[K] = set()
        """Keys of values that must stay and do not count towards `most`. A `Keeper` updates this set every 50 ms."""
        # Changed under the lock, but read without it. So a use only numbers the entry: if it moved the entry, another
        # thread might look for the entry while it is in neither place.
        self._values: dict[K, _Kept[T]] = {}
        self._uses = count()
        self._renew()

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._reading: dict[K, threading.Lock] = {}
        self._nbytes = sum(kept.nbytes for kept in self._values.copy().values())
        self._process = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return LruCache, (self._most,)

    def __contains__(self, number: K) -> bool:
        return number in self._values

    def drop(self, numbers: Iterable[K]) -> None:
        with self._lock:
            for number in numbers:
                self._pop(number)

    def found(self, number: K) -> T | None:
        kept = self._values.get(number)
        if kept is None:
            return None
        kept.used = next(self._uses)
        return kept.value

    def get(self, number: K, read: Callable[[K], tuple[T, int]]) -> T:
        """Returns the value of a key. If it is not cached, calls `read`, which returns (value, size in bytes)."""
        value = self.found(number)
        if value is not None:
            return value
        if self._process != os.getpid():  # a thread of the parent may have held a lock when this process was forked
            self._renew()
        with self._reading.setdefault(number, threading.Lock()):
            kept = self._values.get(number)
            if kept is None:
                kept = _Kept(*read(number), next(self._uses))
                self._add(number, kept)
        self._reading.pop(number, None)
        return kept.value

    def _add(self, number: K, kept: _Kept[T]) -> None:
        with self._lock:
            self._pop(number)  # another thread may have read it too
            self._values[number] = kept
            self._nbytes += kept.nbytes
            needed = self.needed
            most = self._most + sum(self._values[each].nbytes for each in needed if each in self._values)
            if self._nbytes > most:
                others = [old for old in self._values if old != number and old not in needed]
                for old in sorted(others, key=lambda old: self._values[old].used):
                    self._pop(old)
                    self.dropped += 1
                    if self._nbytes <= most:
                        break

    def _pop(self, number: K) -> None:
        kept = self._values.pop(number, None)
        self._nbytes -= 0 if kept is None else kept.nbytes
