"""An iterable of the user's that is read batch by batch, and that can say where it is if it has a state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

from penstock.errors import StateError


class Mark(NamedTuple):
    """Where a reading is: after `read` batches, with these states of the iterable and of its iterator.

    None in their place: at its end, where nothing is left. `kept` is the state of the iterable there: with it the
    next epoch begins, and so it is in a mark before that epoch's first batch too.
    """

    read: int
    states: dict[str, Any] | None
    kept: dict[str, Any] | None = None


def has_state(thing: object) -> bool:
    """Whether it has both `state_dict` and `load_state_dict`, and they say where it is.

    What a Module of torch's has by itself are its parameters.
    """
    take = getattr(thing, "state_dict", None)
    is_place = callable(take) and getattr(take, "__module__", None) != "torch.nn.modules.module"
    return is_place and callable(getattr(thing, "load_state_dict", None))


def by_next(items: Iterator[Any]) -> Iterator[Any]:
    """The same items, by `next` alone: what is its own iterator may begin again whenever `iter()` is called."""
    return map(next, repeat(items))


class Reading:
    """An iterable that is being read. `read` counts the batches, `ended` says that there are no more."""

    def __init__(self, source: Iterable[Any]) -> None:
        self.read = 0
        self.ended = False
        self.source: Any = source
        self._items: Iterator[Any] | None = iter(())  # None: it is iterated when it is first asked
        self._stateful: dict[str, Any] = {}
        self._kept: dict[str, Any] | None = None

    def open(self, mark: Mark | None = None) -> bool:
        """Begins, or goes on where the mark was made.

        True: nothing that was drawn from random generators meanwhile is part of what is read from here on.
        """
        if mark is None:
            self._iterate()
            return False
        self.read, self.ended = mark.read, mark.states is None
        if mark.states is None:
            self._kept = mark.kept
            return True
        states = mark.kept or mark.states
        if "iterable" in states:
            _restore(self.source, states["iterable"])
        items = self._iterate()
        if "iterator" in states:
            _restore(items, states["iterator"])
        if not mark.kept:
            return True
        # The state was taken after an epoch. If it says that nothing is left of that one, the next is asked for.
        first = list(islice(by_next(items), 1))
        self._items = chain(first, by_next(items)) if first else None
        return not first

    def _iterate(self) -> Iterator[Any]:
        source = self.source
        items: Iterator[Any] = iter(source)
        self._items = by_next(items)
        # An iterable that is its own iterator may begin again in `iter()`, so it is restored after that.
        parts = {"iterator": items} if items is source else {"iterable": source, "iterator": items}
        self._stateful = {name: part for name, part in parts.items() if has_state(part)}
        return items

    def take(self, size: int) -> list[Any]:
        """The next batch of so many items, or what is left."""
        self.read += 1  # also where it raises: what comes after that is the next batch
        if self._items is None:
            taken = list(islice(by_next(self._iterate()), size))
            self._check_some(taken)
        else:
            taken = list(islice(self._items, size))
        if len(taken) < size:
            self._items = iter(())  # some iterators begin again when asked after their end
            self.ended = True
        return taken

    def _check_some(self, taken: list[Any]) -> None:
        if not taken:
            name = type(self.source).__name__
            raise StateError(
                f"{name} gives nothing, though iterated twice, after its state from the end of the epoch before was "
                "loaded. A state that was taken there must not say that nothing is left in any epoch to come. Where "
                f"{name} has a method for it (set_epoch), tell it that another epoch begins."
            )

    def end(self) -> Mark | None:
        """The mark that the next epoch begins with; None if the iterable has no state."""
        kept = self._keep()
        return None if kept is None else Mark(0, {}, kept)

    def mark(self) -> Mark | None:
        """Where it is; None if neither the iterable nor its iterator has a state."""
        if not self._stateful:
            return None
        if self.ended:
            return Mark(self.read, None, self._keep())
        return Mark(self.read, {name: part.state_dict() for name, part in self._stateful.items()})

    def _keep(self) -> dict[str, Any] | None:
        """What outlives the iterator, if there is anything."""
        if self._kept is None and has_state(self.source):
            return {"iterable": self.source.state_dict()}
        return self._kept


def _restore(part: Any, state: Any) -> None:
    if not has_state(part):
        raise StateError(
            f"The resume state has a state for {type(part).__name__}, which has no load_state_dict() here. Give the "
            "loader what it had when the state was taken, or begin anew without the state."
        )
    part.load_state_dict(state)
