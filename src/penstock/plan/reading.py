"""An iterable of the user's that is read batch by batch, and that can say where it is if it has a state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any, NamedTuple

from penstock.errors import StateError


class Mark(NamedTuple):
    """Where a reading is: after `read` batches, with these states of the iterable and of its iterator.

    None in their place: at its end. (What an iterable's state says there is its own affair.)
    """

    read: int
    states: dict[str, Any] | None


def has_state(thing: object) -> bool:
    """Whether it has both `state_dict` and `load_state_dict`."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def by_next(items: Iterator[Any]) -> Iterator[Any]:
    """The same items, by `next` alone: what is its own iterator may begin again whenever `iter()` is called."""
    return map(next, repeat(items))


class Reading:
    """An iterable that is being read. `read` counts the batches, `ended` says that there are no more."""

    def __init__(self, source: Iterable[Any]) -> None:
        self.read = 0
        self.ended = False
        self._source = source
        self._items: Iterator[Any] = iter(())
        self._stateful: dict[str, Any] = {}

    def open(self, mark: Mark | None = None) -> None:
        """Begins, or goes on where the mark was made."""
        states: dict[str, Any] = {}
        if mark is not None:
            self.read, self.ended = mark.read, mark.states is None
            states = mark.states or {}
        source = self._source
        if "iterable" in states:
            _restore(source, states["iterable"])
        items = iter(()) if self.ended else iter(source)
        if "iterator" in states:
            _restore(items, states["iterator"])
        # An iterable that is its own iterator may begin again in `iter()`, so it is restored after that.
        parts = {"iterator": items} if items is source else {"iterable": source, "iterator": items}
        self._stateful = {name: part for name, part in parts.items() if has_state(part)}
        self._items = by_next(items)

    def take(self, size: int) -> list[Any]:
        """The next batch of so many items, or what is left."""
        taken = list(islice(self._items, size))
        self.read += 1
        if len(taken) < size:
            self._items = iter(())  # some iterators begin again when asked after their end
            self.ended = True
        return taken

    def mark(self) -> Mark | None:
        """Where it is; None if neither the iterable nor its iterator has a state."""
        if not self._stateful:
            return None
        if self.ended:
            return Mark(self.read, None)
        return Mark(self.read, {name: part.state_dict() for name, part in self._stateful.items()})


def _restore(part: Any, state: Any) -> None:
    if not has_state(part):
        raise StateError(
            f"The resume state has a state for {type(part).__name__}, which has no load_state_dict() here. Give the "
            "loader what it had when the state was taken, or begin anew without the state."
        )
    part.load_state_dict(state)
