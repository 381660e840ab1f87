"""An in-memory cache with a size limit in bytes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class LruCache(Generic[K, T]):
    """A cache of `most` bytes that drops the least recently used values, but always keeps at least one value.

    If several threads request a missing value, one reads it and the others wait. A forked child inherits the values.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.dropped = 0
        """Number of values dropped so far."""
        self.needed: set[K] = set()
        """Keys of values that must stay and do not count towards `most`. A `Keeper` updates them every 50 ms."""
        self._values: OrderedDict[K, tuple[T, int]] = OrderedDict()
        self._renew()

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._reading: dict[K, threading.Lock] = {}
        self._nbytes = sum(nbytes for _, nbytes in self._values.values())
        self._process = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return LruCache, (self._most,)

    def __contains__(self, number: K) -> bool:
        return number in self._values

    def drop(self, numbers: Iterable[K]) -> None:
        with self._lock:
            for number in numbers:
                _, nbytes = self._values.pop(number, (None, 0))
                self._nbytes -= nbytes

    def found(self, number: K) -> T | None:
        found = self._values.get(number)
        if found is None:
            return None
        try:
            self._values.move_to_end(number)
        except KeyError:  # another thread has dropped it
            pass
        return found[0]

    def get(self, number: K, read: Callable[[K], tuple[T, int]]) -> T:
        """Returns a value. If the value is not cached, calls `read(number)`, which returns (value, size in bytes)."""
        value = self.found(number)
        if value is not None:
            return value
        if self._process != os.getpid():  # a thread of the parent may have held a lock when this process was forked
            self._renew()
        with self._reading.setdefault(number, threading.Lock()):
            found = self._values.get(number)
            if found is None:
                found = read(number)
                self._add(number, found)
        self._reading.pop(number, None)
        return found[0]

    def _add(self, number: K, value: tuple[T, int]) -> None:
        with self._lock:
            _, before = self._values.pop(number, (None, 0))  # another thread may have read it too
            self._values[number] = value
            self._nbytes += value[1] - before
            needed = self.needed
            most = self._most + sum(self._values[each][1] for each in needed if each in self._values)
            if self._nbytes > most:
                for old in [old for old in self._values if old != number and old not in needed]:
                    _, nbytes = self._values.pop(old)
                    self._nbytes -= nbytes
                    self.dropped += 1
                    if self._nbytes <= most:
                        break
