"""The objects that the `__foresee__` methods of datasets return. A loader starts and closes them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from penstock._cache.scout import Scout


class Watches:
    """The objects returned by several `__foresee__` methods, started and closed together."""

    def __init__(self, *found: Any) -> None:
        self._all: list[Any] = []
        for each in found:
            self.add(each)

    def add(self, found: Any) -> None:
        for each in found._all if isinstance(found, Watches) else [found]:
            # Scouts are merged, because the next piece to fetch or to evict depends on what all of them need.
            scouts = [one for one in self._all if isinstance(one, Scout) and isinstance(each, Scout)]
            if each is not None and not any(one.joins(each) for one in scouts):
                self._all.append(each)

    def start(self) -> None:
        for each in self._all:
            start = getattr(each, "start", None)
            if start is not None:
                start()

    def close(self) -> None:
        with ExitStack() as stack:
            for each in self._all:
                stack.callback(each.close)
