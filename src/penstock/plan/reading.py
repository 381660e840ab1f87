"""An iterable of the user's that is read batch by batch, and that can say where it is if it has a state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

from penstock.errors import StateError


class Mark(NamedTuple):
    """Where a reading is: after `read` batches, with these states of the iterable and of its iterator.

    Where it has `ended`, nothing is left to be read, and the state is what the next epoch begins with. So it is
    after 0 batches, of the next epoch.
    """

    read: int
    states: dict[str, Any]
    ended: bool = False


def has_state(thing: object) -> bool:
    """Whether it has both `state_dict` and `load_state_dict`."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


class Reading:
    """An iterable that is being read. `read` counts the batches, `ended` says that there are no more."""

    def __init__(self, source: Iterable[Any]) -> None:
        self.read = 0
        self.ended = False
        self._source: Any = source
        self._items: Iterator[Any] | None = iter(())  # None: it is iterated when it is first asked
        self._stateful: dict[str, Any] = {}
        self._left: Mark | None = None

    def open(self, mark: Mark | None = None) -> bool:
        """Begins, or goes on where the mark was made.

        True: nothing that was drawn from random generators meanwhile is part of what is read from here on.
        """
        if mark is None:
            self._iterate()
            return False
        self.read, self.ended = mark.read, mark.ended
        if mark.ended:
            self._left = mark._replace(read=0, ended=False)
            return True
        if "iterable" in mark.states:
            _restore(self._source, mark.states["iterable"])
        items = self._iterate()
        if "iterator" in mark.states:
            _restore(items, mark.states["iterator"])
        if mark.read > 0 or not mark.states:
            return mark.read > 0
        # The state was taken after an epoch. If it says that nothing is left of that one, the next is asked for.
        first = list(islice(items, 1))
        self._items = chain(first, items) if first else None
        return not first

    def _iterate(self) -> Iterator[Any]:
        source = self._source
        items: Iterator[Any] = iter(source)
        self._items = items
        # An iterable that is its own iterator may begin again in `iter()`, so it is restored after that.
        parts = {"iterator": items} if items is source else {"iterable": source, "iterator": items}
        self._stateful = {name: part for name, part in parts.items() if has_state(part)}
        return items

    def take(self, size: int) -> list[Any]:
        """The next batch of so many items, or what is left."""
        if self._items is None:
            taken = list(islice(self._iterate(), size))
            self._check_some(taken)
        else:
            taken = list(islice(self._items, size))
        self.read += 1
        if len(taken) < size:
            self._items = iter(())  # some iterators begin again when asked after their end
            self.ended = True
        return taken

    def _check_some(self, taken: list[Any]) -> None:
        if not taken:
            name = type(self._source).__name__
            raise StateError(
                f"{name} gives nothing, though iterated twice, after its state from the end of the epoch before was "
                "loaded. A state that was taken there must not say that nothing is left in any epoch to come. Where "
                f"{name} has a method for it (set_epoch), tell it that another epoch begins."
            )

    def end(self) -> Mark | None:
        """The mark that the next epoch begins with; None if the iterable has no state."""
        if self._left is not None:
            return self._left
        return Mark(0, self._kept()) if has_state(self._source) else None

    def mark(self) -> Mark | None:
        """Where it is; None if neither the iterable nor its iterator has a state."""
        if not self._stateful:
            return None
        if self.ended:
            return Mark(self.read, self._kept(), ended=True)
        return Mark(self.read, {name: part.state_dict() for name, part in self._stateful.items()})

    def _kept(self) -> dict[str, Any]:
        """What outlives the iterator."""
        return {"iterable": self._source.state_dict()} if has_state(self._source) else {}


def _restore(part: Any, state: Any) -> None:
    if not has_state(part):
        raise StateError(
            f"The resume state has a state for {type(part).__name__}, which has no load_state_dict() here. Give the "
            "loader what it had when the state was taken, or begin anew without the state."
        )
    part.load_state_dict(state)
